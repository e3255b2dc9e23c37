import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONWriter.Feature;
import com.alibaba.otter.canal.connector.core.producer.MQMessageUtils;
import com.alibaba.otter.canal.connector.core.producer.MQMessageUtils.EntryRowData;
import com.alibaba.otter.canal.protocol.CanalEntry;
import com.alibaba.otter.canal.protocol.FlatMessage;
import java.io.PrintStream;

/** Entries on standard input, as CanalEntries reads them; Canal's flat message of each as a line of JSON on standard output. */
public class CanalMessages {
    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        for (CanalEntry.Entry entry : CanalEntries.read()) {
            EntryRowData one = new EntryRowData();
            one.entry = entry;
            if (one.entry.getEntryType() != CanalEntry.EntryType.ROWDATA) {
                continue;
            }
            one.rowChange = CanalEntry.RowChange.parseFrom(one.entry.getStoreValue());
            for (FlatMessage message : MQMessageUtils.messageConverter(new EntryRowData[] {one}, 0)) {
                out.println(JSON.toJSONString(message, Feature.WriteNulls));
            }
        }
        out.flush();
    }
}
