"""A chunk is read consistently at a known position of the binlog, between a low and a high watermark.

No lock and no write to the server: low and high watermark come from what the server says of its own binlog. A chunk is put
into the stream at a transaction end P with

    low <= what the read shows <= high <= P

where low is the position that the stream had reached when it began to note the keys it puts, and the rows whose keys it noted
between low and P are left out (`runner`). What that needs is that the read shows everything up to low, and that everything
it shows is logged before high:

MariaDB   START TRANSACTION WITH CONSISTENT SNAPSHOT names the exact position of the read (binlog_snapshot_file, _position): it
          must not be before low, and it is high. Where the stream has read all transactions that the binlog has after that, low is high:
          it need not wait for the heartbeat that says so, as a stream that begins by GTID would.
MySQL     low must be within @@global.gtid_executed, asked before the read begins: a transaction enters that set only after
          the engine has committed it. high is the end of the binlog, asked after: a transaction is logged before the engine
          commits it. For the same reason SHOW BINARY LOG STATUS is no low watermark: its end may be behind transactions
          that no read shows yet, and a reader's copy would go back to rows from before them. So gtid_mode has to be ON.

What is prepared (XA) is in the binlog, and so in the stream, and in no read before it is committed. So a chunk is not read before those
XA transactions have ended that were prepared when low was noted (`prepared`); of later ones the keys are noted like all others.

A read goes forward by key, WHERE (a, b) > (last a, last b) ORDER BY a, b LIMIT n, compared by the server with its own collations:
the last key comes back to it as the bytes that it sent.

Several chunks at once, each with its own low, read, high and P. They are ranges of the key that do not overlap, as the server
compares, so a row that keeps its key is in one chunk, and what was said holds of it. A row that a change at U moves from the key of
chunk A to that of chunk B:

    A read after U, B before    neither read shows it. low of B <= read of B < U: the change stands in the store behind B's low, or comes
                                there, and brings the row. No reader that keeps the changes from the table's first low on misses it
    A read before U, B after    both show it. Where U <= P of A, U is noted for A, since low of A <= read of A < U, and A is put without
                                it; else the change comes behind A and takes the old key away. B puts it as the change left it, or,
                                where U was noted for B too, leaves it to the change. So it stands under its new key alone

In which order A and B are put does not matter for this: only what is noted between each one's own low and P. They are put in the
order of the key so that one key says how far the table is.
"""

from __future__ import annotations

from shmstore import Position, SourceError
from shmstore.producer.connection.server import SourceServer
from shmstore.producer.connection.session import ServerSession
from shmstore.producer.errors import LinkLost, ServerUnreachable
from shmstore.producer.gtid import ExecutedSet, GtidSet, MariadbGtids
from shmstore.producer.positions.gtid_position import current_position, gtid_at
from shmstore.producer.snapshot.select import HIDDEN

# So that values come as they are stored, and nothing of a global setting cuts a SELECT short.
_SETUP = (
    "SET SESSION time_zone = '+00:00', sql_mode = 'ALLOW_INVALID_DATES', character_set_results = NULL, sql_big_selects = 1, "
    "sql_select_limit = 18446744073709551615, net_write_timeout = 3600, {} = 0"
)


# The server collects an answer in the buffer that it received statements into, and sends that when it is full: 16 KiB, or as much as the longest
# statement so far. With long ones server and reader are woken less often. It takes spaces off a statement's end before it parses or logs it.
SEND_BYTES = 256 << 10


def prepare(session: ServerSession, *, sparse: bool = False) -> None:
    """Set a new connection up for reading chunks. `sparse`: the server may look for a row for long, and is to send the few soon, as a sign of life."""
    setup = _SETUP.format("max_statement_time" if session.mariadb else "max_execution_time")
    if not sparse:
        longest = int(session.query("SELECT @@max_allowed_packet")[0][0]) // 2  # what the server refuses closes the connection
        setup = setup.ljust(min(SEND_BYTES, longest))
    session.query(setup)
    session.query("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    if session.query("SHOW VARIABLES LIKE 'show_gipk_in_create_table_and_information_schema'"):
        session.query(HIDDEN)


def refusal(server: SourceServer) -> str:
    """Why this server's tables cannot be read so that they fit into the stream; empty where they can."""
    where = server.endpoint.where
    if not server.gtids:
        return (
            f"{where} has gtid_mode = {server.variables.get('gtid_mode', 'OFF')}: without GTIDs MySQL does not say which transactions "
            "a read shows, so that a snapshot could bring old rows; set gtid_mode = ON"
        )
    image = server.variables.get("binlog_row_image", "FULL")
    if image != "FULL":
        return f"{where} has binlog_row_image = {image}: a snapshot needs whole rows in the stream; SET GLOBAL binlog_row_image = FULL"
    return ""


def free_connections(session: ServerSession) -> int:
    """How many more connections the server would take from this account."""
    total, own = map(int, session.query("SELECT @@max_connections, @@session.max_user_connections")[0])  # 0: as many as there are
    taken = int(session.query("SHOW GLOBAL STATUS LIKE 'Threads_connected'")[0][1])
    return max(0, min(total - taken, own or total))


def begin(session: ServerSession, server: SourceServer, reached: Position, executed: ExecutedSet | None) -> Position | None:
    """Begin a consistent read; return high. None where it would not show all that the stream has read: try again."""
    if server.mariadb:
        session.query("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        status = {str(name).lower(): str(value) for name, value in session.query("SHOW STATUS LIKE 'binlog_snapshot_%'")}
        high = Position(status["binlog_snapshot_file"], int(status["binlog_snapshot_position"]))
        if high.order > reached.order and executed is not None and _ends_with(session, executed):
            return reached
        if high.order >= reached.order or (executed is not None and _shows(session, high, executed)):
            return high
        session.query("ROLLBACK")
        return None
    if executed is None or not GtidSet(str(session.query("SELECT @@global.gtid_executed")[0][0])).covers(executed):
        return None
    session.query("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
    return current_position(session, server)


def prepared(session: ServerSession) -> set[tuple[object, ...]]:
    """Return the XA transactions that are prepared: their rows are in the binlog, and no read shows them yet.

    None for an account that may not see them (MySQL: without XA_RECOVER_ADMIN).
    """
    try:
        return set(session.query("XA RECOVER"))
    except (LinkLost, ServerUnreachable):
        raise
    except SourceError:  # 1401, which says nothing of a privilege
        return set()


def _ends_with(session: ServerSession, executed: ExecutedSet) -> bool:
    """Whether `executed` has the last transaction of each domain in the binlog, which may have any number: so it has all of them."""
    last = str(session.query("SELECT @@global.gtid_binlog_pos")[0][0])
    return set(last.split(",")) <= set(str(executed).split(","))


def _shows(session: ServerSession, high: Position, executed: ExecutedSet) -> bool:
    """Whether nothing was committed between `high` and what was read: events that are no transactions come behind commits."""
    return MariadbGtids(gtid_at(session, high.file, high.offset)).covers(executed)
