import com.alibaba.otter.canal.instance.core.CanalInstanceGenerator;
import com.alibaba.otter.canal.instance.spring.SpringCanalInstanceGenerator;
import com.alibaba.otter.canal.server.embedded.CanalServerWithEmbedded;
import com.alibaba.otter.canal.server.netty.CanalServerWithNetty;
import java.io.InputStream;
import java.util.Properties;

/**
 * Canal's own server from its configuration files, which are on the class path: what its deployer does, without its admin and its monitors.
 *
 * Arguments: the destinations. Prints "ready" when it serves; ends when its standard input does.
 */
public class CanalFromFiles {

    public static void main(String[] destinations) throws Exception {
        try {
            serve(destinations);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    static void serve(String[] destinations) throws Exception {
        Properties properties = new Properties();
        try (InputStream file = CanalFromFiles.class.getResourceAsStream("/canal.properties")) {
            properties.load(file);
        }
        CanalServerWithEmbedded embedded = CanalServerWithEmbedded.instance();
        embedded.setCanalInstanceGenerator(destination -> {
            SpringCanalInstanceGenerator generator = new SpringCanalInstanceGenerator();
            generator.setSpringXml("classpath:spring/file-instance.xml");
            return generator.generate(destination);
        });
        embedded.setMetricsPort(Integer.parseInt(properties.getProperty("canal.metrics.pull.port").trim()));
        CanalServerWithNetty server = CanalServerWithNetty.instance();
        server.setEmbeddedServer(embedded);
        server.setIp("127.0.0.1");
        server.setPort(Integer.parseInt(properties.getProperty("canal.port").trim()));
        server.start();
        for (String destination : destinations) {
            embedded.start(destination);
        }
        System.out.println("ready");
        System.out.flush();
        while (System.in.read() >= 0) {
        }
        server.stop();
        System.exit(0);
    }
}
