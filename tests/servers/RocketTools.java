import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;

import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * RocketMQ's own consumer and admin client. Does what each line of stdin says, and answers with lines, the last of which is END.
 *
 * read TOPIC: for each message its queue, id, body, and properties, in base64. topic BROKER NAME QUEUES: makes it, or changes it. register BROKER: has
 * the broker, which is an address, tell the name server of itself. user BROKER NAME PASSWORD: one without rights.
 */
public class RocketTools {
    public static void main(String[] words) throws Exception {
        // The client's threads would keep the process running, and the test waiting.
        Thread.currentThread().setUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            System.exit(1);
        });
        String names = words[0];
        AclClientRPCHook login = words.length > 1 ? new AclClientRPCHook(new SessionCredentials(words[1], words[2])) : null;
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("reading", login);
        consumer.setNamesrvAddr(names);
        consumer.start();
        DefaultMQAdminExt admin = new DefaultMQAdminExt(login);
        admin.setNamesrvAddr(names);
        admin.start();
        DefaultMQProducer producer = new DefaultMQProducer("behind", login);
        producer.setNamesrvAddr(names);
        producer.start();
        Set<String> known = new HashSet<>();
        BufferedReader asked = new BufferedReader(new InputStreamReader(System.in));
        for (String line = asked.readLine(); line != null; line = asked.readLine()) {
            String[] what = line.split(" ");
            if (what[0].equals("read")) {
                all(producer, consumer);
                read(consumer, what[1]);
            } else if (what[0].equals("topic")) {
                int queues = Integer.parseInt(what[3]);
                admin.createAndUpdateTopicConfig(what[1], new TopicConfig(what[2], queues, queues));
            } else if (what[0].equals("register")) {
                Properties changed = new Properties();
                changed.setProperty("brokerPermission", "6");
                admin.updateBrokerConfig(what[1], changed);
                if (known.add(what[1])) {
                    admin.createAndUpdateTopicConfig(what[1], new TopicConfig("behind", 1, 1));
                }
            } else {
                admin.createUser(what[1], what[2], what[3], "Normal");
            }
            System.out.println("END");
            System.out.flush();
        }
        System.exit(0);
    }

    /** Waits until the queues have all that was sent: a broker answers a sender before, and fills them in the order of its log. */
    private static void all(DefaultMQProducer producer, DefaultMQPullConsumer consumer) throws Exception {
        producer.getDefaultMQProducerImpl().getMqClientFactory().updateTopicRouteInfoFromNameServer("behind"); // a broker came back
        for (MessageQueue queue : producer.fetchPublishMessageQueues("behind")) {
            SendResult behind = producer.send(new Message("behind", new byte[] {1}), queue);
            while (consumer.maxOffset(queue) <= behind.getQueueOffset()) {
                Thread.sleep(5);
            }
        }
    }

    private static void read(DefaultMQPullConsumer consumer, String topic) throws Exception {
        List<MessageQueue> queues = new ArrayList<>(consumer.fetchSubscribeMessageQueues(topic));
        queues.sort(null);
        for (MessageQueue queue : queues) {
            long end = consumer.maxOffset(queue);
            for (long offset = consumer.minOffset(queue); offset < end; ) {
                PullResult found = consumer.pull(queue, "*", offset, 32);
                offset = found.getNextBeginOffset();
                if (found.getPullStatus() != PullStatus.FOUND) {
                    continue;
                }
                for (MessageExt message : found.getMsgFoundList()) {
                    StringBuilder line = new StringBuilder();
                    line.append(queues.indexOf(queue)).append(' ').append(message.getMsgId()).append(' ').append(base64(message.getBody()));
                    for (Map.Entry<String, String> each : message.getProperties().entrySet()) {
                        line.append(' ').append(each.getKey()).append('=').append(base64(each.getValue().getBytes("UTF-8")));
                    }
                    System.out.println(line);
                }
            }
        }
    }

    private static String base64(byte[] bytes) {
        return bytes == null ? "" : Base64.getEncoder().encodeToString(bytes);
    }
}
