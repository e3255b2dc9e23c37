"""The command line's words: commands, options, help. What they do is in `cli`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib.metadata import version
from typing import Any, NoReturn

from shmstore.start_position import Start, parse_start

FORMATS = ("json", "canal", "debezium", "maxwell")

Run = Callable[[argparse.Namespace], int]
Fill = Callable[[argparse.ArgumentParser], None]


class Parser(argparse.ArgumentParser):
    """ArgumentParser whose errors are one line, and whose options may come from a package that is imported only then."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)  # or a new option would change what an old script means
        self.fill: Fill | None = None
        self.passes_on = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Add the options that are not there yet, then parse; or keep the words for somebody else to parse."""
        if self.passes_on and args and args[0] not in ("-h", "--help"):
            return argparse.Namespace(**self._defaults, words=list(args)), []
        fill, self.fill = self.fill, None
        if fill is not None:
            fill(self)
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            like = get_close_matches(unknown[0].partition("=")[0], self._option_string_actions, 1)
            self.error(f"unrecognized arguments: {' '.join(unknown)}" + (f": did you mean {like[0]}?" if like else ""))
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Exit with 2 and one line that says where help is."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def parser(run: Mapping[str, Run], fill: Mapping[str, Fill]) -> argparse.ArgumentParser:
    """Return the whole command line: `run` has a function for each command, `fill` what adds further options to some."""
    top = Parser(prog="shmstore", description="MySQL and MariaDB changes in a shared-memory ring, for many independent readers.")
    top.add_argument("--version", action="version", version=f"shmstore {version('shmstore')}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, does: str, example: str, *, store: bool = True) -> Parser:
        sub: Parser = commands.add_parser(
            name,
            help=does,
            description=f"{does[0].upper()}{does[1:]}.",
            epilog=f"example:\n{example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(run=run[name])
        sub.fill = fill.get(name)
        if store:
            sub.add_argument("store", metavar="STORE", help="the store's name, as `shmstore ls` shows it")
            sub.add_argument("--path", metavar="FILE", help="the store lives in this file instead of shared memory")
        return sub

    command(
        "produce",
        "read a server's binlog into a store, until SIGTERM or Ctrl-C",
        "  SHMSTORE_PASSWORD=... shmstore produce --host db1 --user repl --store orders --include 'shop.*'\n\n"
        "The store is made when it is not there. Started again, it goes on after the last transaction in the store.\n"
        "Each option is also an environment variable (--read-timeout: SHMSTORE_READ_TIMEOUT) and a key of the TOML file, under\n"
        "[producer] or [source.NAME] (read_timeout = 60); a flag wins over a variable, a variable over the file. Secrets have no\n"
        "flags: SHMSTORE_PASSWORD or --password-file; SHMSTORE_HASH_KEY for --column-hash.\n"
        "Exit codes: 0 ended by SIGTERM, 130 by Ctrl-C, 2 an error that names its mend. A link that breaks is made again.",
        store=False,
    )
    command(
        "run",
        "produce from every source of a configuration file (shmstore.toml)",
        "  shmstore run --config shmstore.toml\n\n"
        "Options that are given here hold for every source; --source NAME runs that one alone. Sources that name the same store\n"
        "run as one producer. The first error ends all, with exit code 2.",
        store=False,
    )
    command(
        "doctor",
        "check a server and an account before use, with the SQL that mends what is wrong; exit 1 when something must be mended",
        "  SHMSTORE_PASSWORD=... shmstore doctor --host db1 --user repl\n"
        "  shmstore doctor --config shmstore.toml\n\n"
        "It takes the options of produce, so that it checks what they need; of a file, every source. With --store it looks\n"
        "whether the server still has what comes next.",
        store=False,
    )

    _snapshot(
        command(
            "snapshot",
            "ask a store's producer for the rows of tables, read while streaming goes on",
            "  shmstore snapshot orders --tables 'shop.*,crm.users' --watch\n\n"
            "The producer takes the request up within a second or so; where none runs, the next one does. The rows come as events\n"
            "of their own kind (op read in tail's json, r in Spark, Arrow and Debezium's form), between the changes, at a place where\n"
            "they are as the server has them: put each in place of the row with its key. It goes on where it was after a restart.\n"
            "Rows deleted before the first change that the store has seen are not told. `shmstore produce --snapshot initial` begins\n"
            "a new store with all tables.",
        )
    )
    _tail(
        command(
            "tail",
            "print a store's events, one JSON document a line",
            "  shmstore tail orders | jq .\n"
            "  shmstore tail orders --tables 'shop.*' --format debezium --subscription export >> changes.jsonl\n\n"
            "Without --subscription it looks without taking: nobody is held up, and what the ring lets go before it was printed\n"
            "is counted on stderr. With it, each batch is acked once it is flushed, and the next run goes on there.\n\n"
            "formats:\n"
            "  json      a document for each row, DDL, begin and end: op is insert, update, delete or read (of a snapshot: r elsewhere),\n"
            "            ddl, statement, begin or end; DECIMAL, times and JSON as text, bytes as base64\n"
            "  canal     Canal's flat message: a document for a rows event, all values text; ENUM and SET as numbers\n"
            "  debezium  the MySQL connector's envelope, decimals as text, else its defaults; the store is its topic prefix. --schemas\n"
            "            adds the schema part, --transactions the transaction block and the documents of BEGIN and END. Of a DDL the\n"
            "            statement; tableChanges says of dropped tables only (a binlog holds no more)\n"
            "  maxwell   with its options output_ddl, output_binlog_position, output_gtid_position, output_server_id,\n"
            "            output_thread_id and output_primary_keys; of a DDL the statement, without def and old; no xid, no commit\n"
            "A change that was logged as a statement (produce --statements pass) is told by json and canal only.",
        )
    )
    _serve(
        command(
            "serve",
            "let canal clients read this host's stores over TCP",
            "  shmstore serve orders --listen 0.0.0.0:11111 --user canal --password-file /run/secrets/canal",
            store=False,
        )
    )
    _spool(
        command(
            "spool",
            "keep writing a store's events as files, for readers that are away for longer than the ring holds",
            "  shmstore spool orders --directory /var/spool/orders\n\n"
            "Spark reads them with .option('spool', '/var/spool/orders'). Files that every such query is done with are removed.",
        )
    )
    command(
        "spark",
        "run a Spark program over a store, such as `replicate`: a copy of every table",
        "  shmstore spark replicate orders --tables 'shop.*' --target '/lake/{database}/{table}' --format delta\n\n"
        "`shmstore spark replicate --help` lists its options.",
        store=False,
    ).passes_on = True

    sub = command("ls", "list the stores of this host", "  shmstore ls", store=False)
    sub.add_argument("--json", action="store_true", help="one JSON document a line")
    sub = command("stat", "show a store's cursors, room, producer and readers", "  shmstore stat orders --watch 1")
    sub.add_argument("--json", action="store_true", help="JSON instead of text")
    sub.add_argument("--watch", type=seconds, metavar="SECONDS", help="show it again every so often, with rates")
    sub = command(
        "metrics",
        "print stores' figures as Prometheus text",
        "  shmstore metrics > /var/lib/node_exporter/shmstore.prom\n  shmstore metrics --listen 127.0.0.1:9105",
        store=False,
    )
    sub.add_argument("stores", nargs="*", metavar="STORE", help="default: every store of this host")
    sub.add_argument(
        "--listen",
        type=address,
        metavar="HOST:PORT",
        help="serve it at http://HOST:PORT/metrics instead, until SIGTERM or Ctrl-C; /healthz there is 200, or 503 and what is wrong",
    )
    command("check", "look for damage in a store; exit 1 when something is wrong", "  shmstore check orders")

    _create(command("create", "make an empty store", "  shmstore create orders --capacity 65536 --lag evict --evict-after 60"))
    sub = command("rm", "remove a store that nobody uses", "  shmstore rm orders")
    sub.add_argument(
        "--force", action="store_true", help="even while a living producer or reader is attached: it gets StoreClosed"
    )
    sub.add_argument(
        "--forget", action="store_true", help="its readers' checkpoints too: on a new store of this name they start anew"
    )
    sub = command("unsubscribe", "forget a subscription, so that it holds nothing up", "  shmstore unsubscribe orders audit")
    sub.add_argument("name", metavar="NAME", help="the subscription, as `shmstore stat` shows it")
    return top


def _snapshot(sub: Parser) -> None:
    sub.add_argument(
        "--tables", action="append", metavar="PATTERNS", help="which tables, of those that the producer's filters let through"
    )
    sub.add_argument("--status", action="store_true", help="show how far it is (the default without --tables)")
    sub.add_argument("--watch", action="store_true", help="show it each second, until all is done; exit 1 when a table failed")
    sub.add_argument("--cancel", action="store_true", help="leave out what is not read yet")
    sub.add_argument(
        "--state", metavar="DIR", help="the producer's state folder; default: $SHMSTORE_STATE or the XDG state folder"
    )


def _tail(sub: Parser) -> None:
    sub.add_argument("--format", choices=FORMATS, default="json", help="whose documents to print (default json)")
    sub.add_argument("--schemas", action="store_true", help="debezium: each document with its schema")
    sub.add_argument("--transactions", action="store_true", help="debezium: with transaction metadata")
    which = sub.add_mutually_exclusive_group()
    which.add_argument("--subscription", metavar="NAME", help="read as this named subscription, made if new")
    which.add_argument("--peek", action="store_true", help="only look (the default)")
    sub.add_argument(
        "--from",
        dest="start",
        type=place,
        default="earliest",
        metavar="WHERE",
        help="earliest (default), latest, a sequence, FILE:OFFSET, a GTID set (or gtid:SET) or an ISO time (or time:TIME); a subscription "
        "that is known goes on at its ack",
    )
    sub.add_argument(
        "--tables",
        metavar="PATTERNS",
        help="only these, comma separated: shop.orders, shop.*, *.orders; with ! before it what is left out: !shop.log",
    )
    sub.add_argument("--count", type=whole, metavar="N", help="stop after N printed events")
    sub.add_argument("--follow", action=argparse.BooleanOptionalAction, default=True, help="wait for more at the end (default)")


def _spool(sub: Parser) -> None:
    sub.add_argument("--directory", required=True, metavar="DIR", help="folder of the files; made when it is not there")
    sub.add_argument("--subscription", default="spool", metavar="NAME", help="subscription to read as (default spool)")
    sub.add_argument(
        "--interval", type=seconds, default=1.0, metavar="SECONDS", help="write a file this often, or when it is full (default 1)"
    )
    sub.add_argument("--file-size", type=whole, default=64, metavar="MB", help="most encoded megabytes in a file (default 64)")


def _serve(sub: Parser) -> None:
    sub.add_argument("stores", nargs="*", metavar="STORE", help="the destinations; default: every store of this host")
    sub.add_argument(
        "--listen",
        type=address,
        default=("127.0.0.1", 11111),
        metavar="HOST:PORT",
        help="default 127.0.0.1:11111; port 0 takes a free one",
    )
    sub.add_argument("--user", default="", help="the user name that clients must give")
    sub.add_argument("--password-file", metavar="FILE", help="file with their password; or set SHMSTORE_SERVE_PASSWORD")
    sub.add_argument(
        "--values", choices=("canal", "exact"), default="canal", help="render values as canal does, or exactly where it does not"
    )
    sub.add_argument(
        "--start",
        choices=("earliest", "latest"),
        default="earliest",
        help="where a client id begins that was never seen (default earliest)",
    )
    sub.add_argument(
        "--filter", default="", metavar="REGEXES", help="the tables of clients that give no filter, as canal writes it: shop\\..*"
    )
    sub.add_argument("--tls-cert", metavar="FILE", help="certificate chain (PEM); turns TLS on")
    sub.add_argument("--tls-key", metavar="FILE", help="its key (PEM)")
    sub.add_argument("--max-connections", type=whole, default=1024, metavar="N", help="default 1024")
    sub.add_argument(
        "--max-frame", type=whole, default=1 << 20, metavar="BYTES", help="longest request that is read (default 1048576)"
    )
    sub.add_argument(
        "--max-reply",
        type=whole,
        default=64 << 20,
        metavar="BYTES",
        help="longest answer, but for a single event that is longer (default 67108864)",
    )
    sub.add_argument(
        "--max-outstanding", type=whole, default=1024, metavar="N", help="batches a client may hold un-acked (default 1024)"
    )
    sub.add_argument(
        "--idle-timeout", type=seconds, default=3600.0, metavar="SECONDS", help="close a silent connection after (default 3600)"
    )
    sub.add_argument(
        "--auth-timeout", type=seconds, default=30.0, metavar="SECONDS", help="and one that does not log in after (default 30)"
    )
    sub.add_argument(
        "--state",
        metavar="DIR",
        help="folder of what clients hold un-acked and have acked; default: $SHMSTORE_STATE or the XDG state folder",
    )
    sub.add_argument("--metrics-port", type=int, default=0, metavar="PORT", help="serve Prometheus text there (default: none)")


def _create(sub: Parser) -> None:
    sub.add_argument("--capacity", type=int, default=16384, metavar="N", help="events it holds, a power of two (default 16384)")
    sub.add_argument(
        "--memory-unit", type=int, default=1024, metavar="BYTES", help="bytes it holds for each of them (default 1024)"
    )
    sub.add_argument(
        "--batch-mode", choices=("memsize", "itemsize"), default="memsize", help="bound bytes and events (default), or events"
    )
    sub.add_argument("--ddl-isolation", action="store_true", help="a DDL comes in a batch of its own")
    sub.add_argument(
        "--lag", choices=("block", "evict"), default="block", help="a reader that stops acking blocks the producer, or is let go"
    )
    sub.add_argument(
        "--evict-after", type=seconds, default=30.0, metavar="SECONDS", help="how long it may, with --lag evict (default 30)"
    )
    sub.add_argument("--permissions", type=mode, default=0o600, metavar="MODE", help="of its segment (default 0600)")
    sub.add_argument("--group", help="group that owns it; with --permissions 0660 it may use it, with 0640 look at it")
    sub.add_argument(
        "--checksum", action=argparse.BooleanOptionalAction, help="keep a checksum of each event (default: in a file)"
    )


# ---------------------------------------------------------------- values


def mode(text: str) -> int:
    """Return the file mode that `text` writes in octal digits."""
    return int(text, 8)


def seconds(text: str) -> float:
    """Return the seconds above 0 that `text` says."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds above 0")
    return value


def whole(text: str) -> int:
    """Return the number from 1 up that `text` says."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 up")
    return value


def address(text: str) -> tuple[str, int]:
    """Return the (host, port) of ``HOST:PORT``; an IPv6 host stands in brackets."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise argparse.ArgumentTypeError(f"{text} is not HOST:PORT, such as 127.0.0.1:11111")
    return host.removeprefix("[").removesuffix("]"), int(port)


def place(text: str) -> Start:
    """Return the start that `text` names, in the forms of `shmstore.start_position`."""
    try:
        return parse_start(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
