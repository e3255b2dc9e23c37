import com.alibaba.otter.canal.connector.core.config.MQProperties;
import com.alibaba.otter.canal.connector.core.producer.AbstractMQProducer;
import com.alibaba.otter.canal.connector.core.producer.MQDestination;
import com.alibaba.otter.canal.connector.core.util.Callback;
import com.alibaba.otter.canal.connector.kafka.producer.CanalKafkaProducer;
import com.alibaba.otter.canal.protocol.CanalEntry;
import com.alibaba.otter.canal.protocol.Message;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.concurrent.Executors;
import java.util.concurrent.ThreadPoolExecutor;
import org.apache.kafka.clients.producer.MockProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * What Canal's own Kafka producer sends. Entries are on standard input, as CanalEntries reads them. The file that is named has a
 * configuration a line, with tabs: flat, topic, dynamicTopic, partition, partitionsNum, dynamicTopicPartitionNum, partitionHash, database.hash.
 * Printed is a line for each message: number of the configuration, topic, partition, value in base64.
 */
public class CanalQueue {
    private static final ThreadPoolExecutor SENDS = (ThreadPoolExecutor) Executors.newFixedThreadPool(1);
    private static final ThreadPoolExecutor BUILDS = (ThreadPoolExecutor) Executors.newFixedThreadPool(1);

    public static void main(String[] arguments) {
        try {
            run(arguments);
            System.exit(0);
        } catch (Throwable error) { // the pools' threads would keep the process
            error.printStackTrace();
            System.exit(1);
        }
    }

    private static void run(String[] arguments) throws Exception {
        List<CanalEntry.Entry> entries = CanalEntries.read();
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        int number = 0;
        for (String line : Files.readAllLines(Paths.get(arguments[0]))) {
            String[] words = line.split("\t", -1);
            MQProperties properties = new MQProperties();
            properties.setFlatMessage(Boolean.parseBoolean(words[0]));
            properties.setDatabaseHash(Boolean.parseBoolean(words[7]));
            MQDestination destination = new MQDestination();
            destination.setCanalDestination("example");
            destination.setTopic(words[1]);
            destination.setDynamicTopic(words[2]);
            destination.setPartition(Integer.valueOf(words[3]));
            destination.setPartitionsNum(Integer.valueOf(words[4]));
            destination.setDynamicTopicPartitionNum(words[5]);
            destination.setPartitionHash(words[6]);
            long batch = 0;
            for (CanalEntry.Entry entry : entries) {
                for (ProducerRecord<String, byte[]> record : sent(properties, destination, entry, batch++)) {
                    String value = Base64.getEncoder().encodeToString(record.value());
                    out.println(number + "\t" + record.topic() + "\t" + record.partition() + "\t" + value);
                }
            }
            number++;
        }
        out.flush();
    }

    private static List<ProducerRecord<String, byte[]>> sent(MQProperties properties, MQDestination to, CanalEntry.Entry entry, long batch) throws Exception {
        MockProducer<String, byte[]> kafka = new MockProducer<>(true, new StringSerializer(), new ByteArraySerializer());
        CanalKafkaProducer producer = new CanalKafkaProducer();
        set(CanalKafkaProducer.class, producer, "producer", kafka);
        set(AbstractMQProducer.class, producer, "mqProperties", properties);
        set(AbstractMQProducer.class, producer, "sendExecutor", SENDS);
        set(AbstractMQProducer.class, producer, "buildExecutor", BUILDS);
        List<CanalEntry.Entry> alone = new ArrayList<>();
        alone.add(entry);
        final Throwable[] failed = new Throwable[1];
        producer.send(to, new Message(batch, alone), new Callback() {
            public void commit() {}

            public void rollback() {
                failed[0] = new RuntimeException("Canal's producer rolled back");
            }
        });
        if (failed[0] != null) {
            throw new RuntimeException(failed[0]);
        }
        return kafka.history();
    }

    private static void set(Class<?> owner, Object of, String name, Object value) throws Exception {
        Field field = owner.getDeclaredField(name);
        field.setAccessible(true);
        field.set(of, value);
    }
}
