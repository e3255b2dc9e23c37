import com.alibaba.otter.canal.protocol.CanalEntry;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;

/** Entries on standard input, each with its length in four bytes before it. */
class CanalEntries {
    static List<CanalEntry.Entry> read() throws IOException {
        List<CanalEntry.Entry> entries = new ArrayList<>();
        DataInputStream in = new DataInputStream(System.in);
        while (true) {
            byte[] bytes;
            try {
                bytes = new byte[in.readInt()];
            } catch (EOFException end) {
                return entries;
            }
            in.readFully(bytes);
            entries.add(CanalEntry.Entry.parseFrom(bytes));
        }
    }
}
