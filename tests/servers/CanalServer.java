import com.alibaba.otter.canal.instance.manager.CanalInstanceWithManager;
import com.alibaba.otter.canal.instance.manager.model.Canal;
import com.alibaba.otter.canal.instance.manager.model.CanalParameter;
import com.alibaba.otter.canal.parse.inbound.mysql.MysqlEventParser;
import com.alibaba.otter.canal.parse.inbound.mysql.tsdb.MemoryTableMeta;
import com.alibaba.otter.canal.parse.inbound.mysql.tsdb.TableMetaTSDB;
import com.alibaba.otter.canal.parse.inbound.mysql.tsdb.TableMetaTSDBFactory;
import com.alibaba.otter.canal.protocol.position.EntryPosition;
import com.alibaba.otter.canal.server.embedded.CanalServerWithEmbedded;
import com.alibaba.otter.canal.server.netty.CanalServerWithNetty;
import java.net.InetSocketAddress;
import java.util.Collections;

/**
 * Canal's own server with one destination, `canal`, in its default configuration: parallel parser, table definitions followed
 * by DDLs (in memory, where the shipped server uses H2), memory store of 16 MiB.
 *
 * Arguments: port of the database server, port to serve, binlog file and offset to begin at, its time in milliseconds, and
 * the address of a ZooKeeper, which then has the clients' cursors and filters; without it they are in memory.
 * Prints "ready" when it serves; ends when its standard input does.
 */
public class CanalServer {

    /** Table definitions in memory. Canal rolls them back to a start position; here nothing comes before that. */
    static class Definitions extends MemoryTableMeta {
        @Override
        public boolean rollback(EntryPosition position) {
            return true;
        }
    }

    public static void main(String[] arguments) throws Exception {
        Thread end = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                }
            } catch (java.io.IOException closed) {
                // as the end of it
            }
            System.exit(0);
        });
        end.setDaemon(true);
        end.start();
        try {
            serve(arguments);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    static void serve(String[] arguments) throws Exception {
        int database = Integer.parseInt(arguments[0]);
        int port = Integer.parseInt(arguments[1]);
        CanalParameter parameter = new CanalParameter();
        parameter.setDbUsername("canal");
        parameter.setDbPassword("canal");
        parameter.setSlaveId(54321L);
        parameter.setDetectingEnable(false);
        parameter.setIndexMode(CanalParameter.IndexMode.MEMORY);
        parameter.setParallel(true);
        parameter.setDefaultDatabaseName("mysql");
        if (arguments.length > 5) {
            parameter.setZkClusters(new java.util.ArrayList<>(Collections.singletonList(arguments[5])));
            parameter.setMetaMode(CanalParameter.MetaMode.MIXED);
        }
        parameter.setDbAddresses(Collections.singletonList(new InetSocketAddress("127.0.0.1", database)));
        parameter.setPositions(Collections.singletonList(String.format(
            "{\"journalName\":\"%s\",\"position\":%s,\"timestamp\":%s}", arguments[2], arguments[3], arguments[4])));
        CanalServerWithEmbedded embedded = CanalServerWithEmbedded.instance();
        embedded.setCanalInstanceGenerator(destination -> {
            Canal canal = new Canal();
            canal.setId(1L);
            canal.setName(destination);
            canal.setCanalParameter(parameter);
            CanalInstanceWithManager instance = new CanalInstanceWithManager(canal, ".*\\..*");
            MysqlEventParser parser = (MysqlEventParser) instance.getEventParser();
            parser.setTableMetaTSDBFactory(new TableMetaTSDBFactory() {
                @Override
                public TableMetaTSDB build(String name, String configuration) {
                    return new Definitions();
                }

                @Override
                public void destory(String name) {
                }
            });
            parser.setTsdbJdbcUrl("");
            parser.setTsdbJdbcUserName("");
            parser.setTsdbJdbcPassword("");
            parser.setEnableTsdb(true);
            return instance;
        });
        CanalServerWithNetty server = CanalServerWithNetty.instance();
        server.setEmbeddedServer(embedded);
        server.setIp("127.0.0.1");
        server.setPort(port);
        server.start();
        embedded.start("canal");
        System.out.println("ready");
        System.out.flush();
    }
}
