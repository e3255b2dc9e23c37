// Canal's own cluster client, unmodified: prints each batch and each ack, until its standard input ends.
//   java ClusterClient ZOOKEEPER DESTINATION FILTER SIZE
//   java ClusterClient parse < CURSOR           what Canal reads of a cursor

import com.alibaba.otter.canal.client.CanalConnector;
import com.alibaba.otter.canal.client.CanalConnectors;
import com.alibaba.otter.canal.client.impl.ClusterCanalConnector;
import com.alibaba.otter.canal.common.utils.JsonUtils;
import com.alibaba.otter.canal.protocol.CanalEntry;
import com.alibaba.otter.canal.protocol.Message;
import com.alibaba.otter.canal.protocol.position.LogPosition;
import java.util.concurrent.TimeUnit;

public class ClusterClient {
    public static void main(String[] words) throws Exception {
        if (words[0].equals("parse")) {
            LogPosition at = JsonUtils.unmarshalFromByte(System.in.readAllBytes(), LogPosition.class);
            System.out.println(at.getIdentity().getSourceAddress().getHostString() + ":" + at.getIdentity().getSourceAddress().getPort()
                + " " + at.getPostion().getJournalName() + ":" + at.getPostion().getPosition() + " " + at.getPostion().getGtid()
                + " " + at.getPostion().getTimestamp() + " " + at.getPostion().getServerId());
            return;
        }
        Thread ends = new Thread(() -> {
            try {
                while (System.in.read() >= 0) { }
            } catch (java.io.IOException error) { }
            Runtime.getRuntime().halt(0);
        });
        ends.setDaemon(true);
        ends.start();
        CanalConnector connector = null;
        while (true) {
            try {
                if (connector == null) {
                    connector = CanalConnectors.newClusterConnector(words[0], words[1], "", "");
                    ((ClusterCanalConnector) connector).setRetryInterval(300);
                    ((ClusterCanalConnector) connector).setSoTimeout(10000);
                }
                connector.connect();
                connector.subscribe(words[2]);
                say("subscribed");
                while (true) {
                    Message message = connector.getWithoutAck(Integer.parseInt(words[3]), 500L, TimeUnit.MILLISECONDS);
                    if (message.getId() == -1) {
                        continue;
                    }
                    StringBuilder found = new StringBuilder("batch " + message.getId());
                    for (CanalEntry.Entry entry : message.getEntries()) {
                        if (entry.getEntryType() == CanalEntry.EntryType.ROWDATA) {
                            for (CanalEntry.RowData row : CanalEntry.RowChange.parseFrom(entry.getStoreValue()).getRowDatasList()) {
                                found.append(' ').append(row.getAfterColumns(0).getValue());
                            }
                        }
                    }
                    say(found.toString());
                    connector.ack(message.getId());
                    say("ack " + message.getId());
                }
            } catch (Exception error) {
                say("error " + String.valueOf(error.getMessage()).split("\n")[0]);
                try {
                    connector.disconnect();
                } catch (Exception ignored) { }
                Thread.sleep(300);
            }
        }
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
