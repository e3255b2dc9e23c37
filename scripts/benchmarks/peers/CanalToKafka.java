import com.alibaba.otter.canal.connector.core.producer.MQDestination;
import com.alibaba.otter.canal.connector.core.util.Callback;
import com.alibaba.otter.canal.connector.kafka.producer.CanalKafkaProducer;
import com.alibaba.otter.canal.protocol.CanalEntry;
import com.alibaba.otter.canal.protocol.ClientIdentity;
import com.alibaba.otter.canal.protocol.Message;
import com.alibaba.otter.canal.server.embedded.CanalServerWithEmbedded;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.TimeUnit;

/**
 * Canal's server in its MQ mode, as its own starter runs it: batches of 50 entries into its Kafka producer, flat messages, the settings of
 * the shipped canal.properties. Arguments: those of CanalServer, then Kafka's address and the topic. Prints "rows N" after each batch.
 */
public class CanalToKafka {
    public static void main(String[] arguments) throws Exception {
        CanalServer.main(java.util.Arrays.copyOf(arguments, 5)); // returns when it serves
        Properties properties = new Properties();
        properties.put("canal.mq.flatMessage", "true");
        properties.put("canal.mq.canalBatchSize", "50");
        properties.put("canal.mq.database.hash", "true");
        properties.put("kafka.bootstrap.servers", arguments[5]);
        properties.put("kafka.acks", "all");
        properties.put("kafka.compression.type", "none");
        properties.put("kafka.batch.size", "16384");
        properties.put("kafka.linger.ms", "1");
        properties.put("kafka.max.request.size", "1048576");
        properties.put("kafka.buffer.memory", "33554432");
        properties.put("kafka.max.in.flight.requests.per.connection", "1");
        properties.put("kafka.retries", "0");
        CanalKafkaProducer producer = new CanalKafkaProducer();
        producer.init(properties);
        MQDestination destination = new MQDestination();
        destination.setCanalDestination("canal");
        destination.setTopic(arguments[6]);
        destination.setPartition(0);
        CanalServerWithEmbedded server = CanalServerWithEmbedded.instance();
        ClientIdentity client = new ClientIdentity("canal", (short) 1001, "");
        server.subscribe(client);
        long[] rows = new long[1];
        while (true) {
            Message message = server.getWithoutAck(client, 50, 100L, TimeUnit.MILLISECONDS);
            if (message.getId() == -1) {
                continue;
            }
            long found = message.isRaw() ? counted(message) : 0;
            producer.send(destination, message, new Callback() {
                public void commit() {
                    server.ack(client, message.getId());
                    rows[0] += found;
                }

                public void rollback() {
                    server.rollback(client, message.getId());
                }
            });
            System.out.println("rows " + rows[0]);
            System.out.flush();
        }
    }

    /** Rows of the entries: their headers say it. */
    private static long counted(Message message) throws Exception {
        long found = 0;
        List<com.google.protobuf.ByteString> entries = message.getRawEntries();
        for (com.google.protobuf.ByteString bytes : entries) {
            CanalEntry.Header header = CanalEntry.Entry.parseFrom(bytes).getHeader();
            for (CanalEntry.Pair pair : header.getPropsList()) {
                if (pair.getKey().equals("rowsCount")) {
                    found += Long.parseLong(pair.getValue());
                }
            }
        }
        return found;
    }
}
