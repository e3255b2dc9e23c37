"""The command line's words: commands, options, help. What they do is in `main`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import Any

from shmstore.arguments import SECTIONS, Parser, duration, size
from shmstore.cli import config_file
from shmstore.cli.log_lines import LEVELS
from shmstore.start_position import FORMS, Start, parse_start
from shmstore.table_patterns import FORMS as TABLE_FORMS

STATE = "(default: $SHMSTORE_STATE, or ~/.local/state/shmstore)"
FORMATS = ("json", "canal", "debezium", "maxwell")

Run = Callable[[argparse.Namespace], int]
Fill = Callable[[argparse.ArgumentParser], None]


class Command(Parser):
    """A command's parser. Its options may come from a package that is imported only then."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.fill: Fill | None = None
        self.passes_on = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Add the options that are not there yet, then parse; or keep the words for somebody else to parse."""
        if self.passes_on and args and args[0] not in ("-h", "--help"):
            return argparse.Namespace(**self._defaults, words=list(args)), []
        fill, self.fill = self.fill, None
        if fill is not None:
            fill(self)
        if args:
            args = [*config_file.words_of(self, self.prog.rpartition(" ")[2], args), *args]
        return super().parse_known_args(args, namespace)


def parser(run: Mapping[str, Run], fill: Mapping[str, Fill]) -> argparse.ArgumentParser:
    """Return the whole command line: `run` has a function for each command, `fill` what adds further options to some."""
    top = Command(
        prog="shmstore",
        description="MySQL and MariaDB changes in a shared-memory ring with a log on disk, for many independent readers.",
    )
    top.add_argument("--version", action="version", version=f"shmstore {version('shmstore')}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, does: str, example: str, notes: str = "", *, store: bool = True) -> Command:
        sub: Command = commands.add_parser(
            name, help=does, description=f"{does[0].upper()}{does[1:]}.\n\nexample:\n{example}", epilog=notes
        )
        sub.set_defaults(run=run[name])
        sub.fill = fill.get(name)
        if store:
            _store(sub)
        if name in SECTIONS:
            config_file.add_flag(sub, name)
        return sub

    command(
        "init",
        "write a configuration file to begin with, by asking the server",
        "  SHMSTORE_PASSWORD=... shmstore init --host db1 --user repl --include 'shop.*'",
        "It takes the options of produce, looks at the server as doctor does, and writes them into a file with comments: what the account "
        "sees, what else can be set, and what has to be put right first. No password is written.\n"
        "Exit codes: 0 written, 1 written, and something must be put right on the server, 2 an error that says what to do.",
        store=False,
    )
    command(
        "produce",
        "read a server's binlog into a store, until SIGTERM or Ctrl-C",
        "  SHMSTORE_PASSWORD=... shmstore produce --host db1 --user repl --store orders --include 'shop.*'",
        "Started again, it continues after the last transaction in the store. A lost connection is opened again.\n"
        "Each option is also an environment variable (--read-timeout: SHMSTORE_READ_TIMEOUT) and a key of the "
        "TOML file, under [producer] or [source.NAME] (read_timeout = 60). A flag wins over a variable, a variable "
        "over the file. Secrets have no flags, because a process list shows flags.\n"
        "Exit codes: 0 ended by SIGTERM, 130 by Ctrl-C, 2 an error that says what to do.",
        store=False,
    )
    command(
        "run",
        "produce from every source of a configuration file (shmstore.toml)",
        "  shmstore run --config shmstore.toml",
        "Options given here apply to every source; --source NAME runs that one alone. Sources that name the same "
        "store run as one producer. A source that fails is tried again by itself, and the others go on; if it still fails in the end, "
        "or none could be read at all, the exit code is 2.",
        store=False,
    )
    command(
        "doctor",
        "check a server and an account before use, and print the SQL that fixes what is wrong",
        "  SHMSTORE_PASSWORD=... shmstore doctor --host db1 --user repl\n  shmstore doctor --config shmstore.toml",
        "It takes the options of produce and checks what they need; with a configuration file, every source. With "
        "--store it also checks that the server still has the binlog that the store needs next.\n"
        "Exit codes: 0 nothing to fix (there may be warnings), 1 something must be fixed, 2 the server cannot be asked.",
        store=False,
    )

    _snapshot(
        command(
            "snapshot",
            "ask a store's producer for the rows of tables, read while streaming goes on",
            "  shmstore snapshot orders --tables 'shop.*,crm.users' --watch",
            "The store's producer begins within about a second; if none is running, the next one does. The rows arrive "
            "among the changes as events of their own kind (op is read in tail's json, r in Spark, Arrow and Debezium's "
            "form), each as the server has it at that position: let it replace the row with the same key. "
            "A restarted producer continues the snapshot. Rows deleted before the first change in the store are not "
            "reported. `shmstore produce --snapshot initial` begins a new store with all tables.",
        )
    )
    command(
        "verify",
        "prove that copies of tables equal their source, while both change",
        "  SHMSTORE_PASSWORD=... shmstore verify --host db1 --store orders --copy 'delta:/lake/{database}/{table}'",
        "It takes the options of produce, which name the source and the store; no lock is taken, and nothing is written to the server. "
        "Both sides are read once; rows whose keys changed meanwhile, as the store's events say, are compared again by themselves. "
        "Broken off, by Ctrl-C or a kill, the same command goes on where it was.\n"
        "Exit codes: 0 equal, 1 something differs or could not be compared, 2 an error that says what to do.",
        store=False,
    )
    _tail(
        command(
            "tail",
            "print a store's events, one JSON document per line",
            "  shmstore tail orders | jq .\n"
            "  shmstore tail orders --tables 'shop.*' --format debezium --subscription export >> changes.jsonl",
            "Without --subscription it only looks: it delays nobody, reads the store's log where the ring has moved on, and "
            "counts on stderr what was removed before it was printed (in a store without a log, what every reader had acked). "
            "With --subscription each batch is acked once it is written, the store keeps what was not, and the next run "
            "continues after it.\n\n"
            "formats:\n"
            "  json      a document for each row, DDL, begin and end. op is insert, update, delete, read (a row of a\n"
            "            snapshot), ddl, statement, begin or end. DECIMAL, times and JSON are text, bytes are base64\n"
            "  canal     Canal's flat message: a document for each rows event, all values as text, ENUM and SET as numbers\n"
            "  debezium  the envelope of Debezium's MySQL connector with its defaults, but decimals as text; its topic\n"
            "            prefix is the store's name. --schemas adds the schema part, --transactions the transaction\n"
            "            block and the documents of BEGIN and END. A DDL has its statement, because a binlog holds no more:\n"
            "            tableChanges says of dropped tables only\n"
            "  maxwell   with its options output_ddl, output_binlog_position, output_gtid_position, output_server_id,\n"
            "            output_thread_id and output_primary_keys. A DDL has its statement, without def and old;\n"
            "            there is no xid and no commit\n"
            "A change that was logged as a statement (produce --statements pass) is printed by json and canal only.",
        )
    )
    _serve(
        command(
            "serve",
            "let other hosts read this host's stores, by Canal's protocol or Arrow Flight",
            "  shmstore serve orders --listen 0.0.0.0:11111 --user canal --password-file /run/secrets/canal\n"
            "  shmstore serve orders --flight 0.0.0.0:8815 --user audit --password-file /run/flight",
            "By Canal's protocol (--listen) every canal client reads a store. By Arrow Flight (--flight) a Consumer on another host does,\n"
            "as it would here, and pandas, Polars and whatever else speaks Flight get typed rows:\n"
            "  Consumer('grpc+tls://audit:PASSWORD@HOST:8815/orders', 'audit')\n"
            "With --flight alone there is no canal server; with --listen too, there are both.",
            store=False,
        )
    )
    command(
        "spark",
        "run a Spark program over a store, such as `replicate`: a copy of every table",
        "  shmstore spark replicate orders --tables 'shop.*' --target '/lake/{database}/{table}' --format delta",
        "`shmstore spark replicate --help` lists its options.",
        store=False,
    ).passes_on = True

    sub = command(
        "ls",
        "list the stores of this host",
        "  shmstore ls",
        "A store with a log that is not in memory, as after a reboot, is listed as remembered, with what its home has. It is put "
        "together again by whoever attaches to it: its producer, a reader, `shmstore stat`.",
        store=False,
    )
    sub.add_argument("--json", action="store_true", help="print one JSON document per store")
    sub.add_argument("--state", metavar="DIR", help=f"folder of stores' homes {STATE}")
    sub = command(
        "stat",
        "show a store's cursors, free space, log, producer and readers",
        "  shmstore stat orders --watch 1",
        "Of the log it shows how large it is and may be, what is written and what is on disk, and for which reader it keeps the "
        "most. With --watch also when it will be full at the present rate: then --lag decides.",
    )
    sub.add_argument("--json", action="store_true", help="print JSON instead of text")
    sub.add_argument("--watch", type=seconds, metavar="SECONDS", help="repeat this often, with rates and a forecast")
    sub = command(
        "metrics",
        "print stores' figures as Prometheus text",
        "  shmstore metrics > /var/lib/node_exporter/shmstore.prom\n  shmstore metrics --listen 127.0.0.1:9105",
        "A store that is named and is not in memory, or cannot be read, is shmstore_up 0 among the others; /healthz is 503 then, and "
        "the exit code without --listen 1 (2 where none can be read). It is not put together again from its home. With --listen rows and bytes "
        "are also counted by table, from then on: this process reads along, and the producer has no part in it.",
        store=False,
    )
    _stores(sub)
    sub.add_argument(
        "--listen",
        type=address,
        metavar="HOST:PORT",
        help="serve them at http://HOST:PORT/metrics until SIGTERM or Ctrl-C; /healthz there answers 200, or 503 with what is wrong",
    )
    _access(sub, "SHMSTORE_METRICS_PASSWORD")
    sub = command(
        "top",
        "show stores live on the terminal: what flows, how fast, who is behind, and the events",
        "  shmstore top",
        "Keys: n the next store, s sort the tables by another figure, f filter tables and events, p pause the events, x ask for a snapshot, "
        "u forget the reader that the cursor is on (it asks first), q quit. It needs the right to read the stores, and for x and u to write. "
        "In the ring ► is put, | the end of the log, a and A where the first reader has acked and got, b and B the second. Needs the extra `top`.",
        store=False,
    )
    _stores(sub)
    _show_values(sub)
    _web(
        command(
            "web",
            "show stores live on a web page: what flows, how fast, who is behind, and the events",
            "  shmstore web\n"
            "  shmstore web orders --listen 0.0.0.0:9180 --password-file /run/web --tls-cert cert.pem --tls-key key.pem",
            "It needs the right to read the stores, nothing else, holds nothing up, and reads nothing while nobody looks. The page loads "
            "nothing from elsewhere. Values of columns are masked unless --show-values is given; statements and the filter by text are, too.\n\n"
            "On 127.0.0.1 (the default) it is for this host alone; from another one, `ssh -L 9180:127.0.0.1:9180 HOST` brings it there. "
            "Where others reach it, give a password and TLS: --tls-cert and --tls-key, or a proxy in front of it that speaks TLS:\n"
            "  location / { proxy_pass http://127.0.0.1:9180; proxy_buffering off; proxy_read_timeout 1h; }    # nginx\n"
            "  reverse_proxy 127.0.0.1:9180                                                                    # Caddy\n"
            "A proxy that passes the name on that it was asked by (Host) needs --password-file here.",
            store=False,
        )
    )
    command("check", "look for damage in a store; exit code 1 if there is any", "  shmstore check orders")

    _log(commands, run)
    _config(commands, run)
    _create(command("create", "create an empty store", "  shmstore create orders --capacity 65536 --lag evict --evict-after 60"))
    sub = command(
        "rm",
        "remove a store that nobody uses",
        "  shmstore rm orders --log",
        "Without --log only the memory of a store with a log goes: its home stays, and whoever attaches next puts the store "
        "together again, events, sequences, readers and all.",
    )
    sub.add_argument("--log", action="store_true", help="remove its home too: the log, and what its readers have acked")
    sub.add_argument(
        "--force", action="store_true", help="remove it even if a producer or reader is using it: they get StoreClosed"
    )
    sub.add_argument(
        "--forget",
        action="store_true",
        help="of a store without a log: remove its readers' checkpoints too, so that they begin like new readers in the next",
    )
    sub = command(
        "unsubscribe",
        "forget a subscription and what it has acked, so that nothing is kept for it any more",
        "  shmstore unsubscribe orders audit",
        "In a store without a log it also ends the producer's waiting for that reader. To let a reader leave out what it has not "
        "read, and go on, see `shmstore seek`.",
    )
    sub.add_argument("name", metavar="NAME", help="name of the subscription, as `shmstore stat` shows it")
    sub = command(
        "seek",
        "move a reader that is stopped: forward past what it need not see, or back to read again",
        "  shmstore seek orders audit latest\n"
        "  shmstore seek orders audit 2026-01-31T12:00:00Z\n"
        "  shmstore seek orders audit binlog.000003:1520",
        "The store must have a log; a reader can go back as far as that reaches. One that was evicted may read again then. Events "
        "that it passes over count as acked.",
    )
    sub.add_argument("name", metavar="SUBSCRIPTION", help="name of the subscription, as `shmstore stat` shows it")
    sub.add_argument("where", type=place, metavar="WHERE", help=f"the first event that it gets next: {FORMS}")
    return top


def _store(sub: Parser) -> None:
    sub.add_argument("store", metavar="STORE", help="name of the store, as `shmstore ls` shows it")
    sub.add_argument("--path", metavar="FILE", help="file of a store that is kept in a file instead of shared memory")
    sub.add_argument("--state", metavar="DIR", help=f"folder of stores' homes {STATE}")


def _log(commands: Any, run: Mapping[str, Run]) -> None:
    top = commands.add_parser(
        "log",
        help="verify, trim or export a store's log",
        description="Verify, trim or export a store's log.\n\nexamples:\n  shmstore log verify orders\n"
        "  shmstore log trim orders --before 2026-01-31T12:00:00Z\n  shmstore log export orders orders.jsonl",
        epilog="The store may be in memory, used or not, or in its home alone. Nothing of this is needed in daily use: retention "
        "(--log-keep, --log-size of create and produce) removes what is old, and every read checks what it reads.",
    )
    tools = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, does: str, example: str, notes: str) -> Command:
        sub: Command = tools.add_parser(
            name, help=does, description=f"{does[0].upper()}{does[1:]}.\n\nexample:\n{example}", epilog=notes
        )
        sub.set_defaults(run=run[f"log {name}"])
        _store(sub)
        return sub

    command(
        "verify",
        "read a log from end to end and look for damage; exit code 1 if there is any",
        "  shmstore log verify orders",
        "It only reads, also of a store that is in its home alone, and does not put that together again. Each finding names the "
        "file, the events that are lost, and what to do. What is damaged is never given to a reader: it gets an error, and "
        "`shmstore seek` takes it past the place.",
    )
    sub = command(
        "trim",
        "remove the oldest files of a log before retention does",
        "  shmstore log trim orders --before latest\n  shmstore log trim orders --before 2026-01-31T12:00:00Z",
        "Only whole files go, only what every reader has acked, and never the newest file. It says which events went, and who needs "
        "the rest. A producer and readers may run.",
    )
    sub.add_argument("--before", type=place, required=True, metavar="WHERE", help=f"remove what is before: {FORMS}")
    sub = command(
        "export",
        "write a part of a log into a file, as `shmstore tail` prints it",
        "  shmstore log export orders orders.jsonl\n"
        "  shmstore log export orders --from 2026-01-31T12:00:00Z --to 4711 --format debezium - | gzip > orders.gz",
        "A JSON document a line, oldest first, in the formats of `shmstore tail`. It holds nobody up, and ends at the newest event "
        "there was when it began. The file gets its name when it is whole.",
    )
    sub.add_argument("file", metavar="FILE", help="the file to write, replaced if it is there; - for stdout")
    sub.add_argument(
        "--from",
        dest="start",
        type=place,
        default="earliest",
        metavar="WHERE",
        help=f"the first event: {FORMS} (default: earliest)",
    )
    sub.add_argument("--to", dest="last", type=sequence, metavar="SEQUENCE", help="the last event (default: the newest)")
    sub.add_argument("--tables", metavar="PATTERNS", help=f"only these tables: {TABLE_FORMS}")
    _form(sub)


def _form(sub: Parser) -> None:
    form = sub.add_argument_group("How to print it")
    form.add_argument("--format", choices=FORMATS, default="json", help="form of the documents (default: json)")
    form.add_argument("--schemas", action="store_true", help="debezium: add its schema to each document")
    form.add_argument("--transactions", action="store_true", help="debezium: add transaction metadata")


def _snapshot(sub: Parser) -> None:
    sub.add_argument(
        "--tables",
        action="append",
        metavar="PATTERNS",
        help=f"tables to read, of those that the producer's filters let through: {TABLE_FORMS}",
    )
    sub.add_argument("--status", action="store_true", help="show the progress (the default without --tables)")
    sub.add_argument(
        "--watch", action="store_true", help="show the progress each second until the end; exit code 1 if a table failed"
    )
    sub.add_argument("--cancel", action="store_true", help="leave out the tables that have not been read yet")


def _tail(sub: Parser) -> None:
    what = sub.add_argument_group("What to read")
    which = what.add_mutually_exclusive_group()
    which.add_argument("--subscription", metavar="NAME", help="read as this named subscription; created if it does not exist")
    which.add_argument("--peek", action="store_true", help="only look (the default)")
    what.add_argument(
        "--from",
        dest="start",
        type=place,
        default="earliest",
        metavar="WHERE",
        help="where to begin: earliest (default), latest, a sequence, FILE:OFFSET, a GTID set (or gtid:SET) or an ISO time (or "
        "time:TIME); a subscription that exists continues after its last ack",
    )
    what.add_argument(
        "--tables",
        metavar="PATTERNS",
        help=f"only these tables: {TABLE_FORMS}",
    )
    what.add_argument("--count", type=whole, metavar="N", help="stop after N printed events")
    what.add_argument(
        "--follow", action=argparse.BooleanOptionalAction, default=True, help="wait for more events at the end (default), or stop"
    )
    _form(sub)


def _web(sub: Parser) -> None:
    _stores(sub)
    sub.add_argument(
        "--listen",
        type=address,
        default=("127.0.0.1", 9180),
        metavar="HOST:PORT",
        help="address of the page; port 0 takes a free one (default: 127.0.0.1:9180)",
    )
    _access(sub, "SHMSTORE_WEB_PASSWORD")
    what = sub.add_argument_group("What can be seen and done")
    _show_values(what)
    what.add_argument(
        "--token-file",
        metavar="FILE",
        help="let whoever knows the token in this file ask for snapshots and forget subscriptions (default: nobody)",
    )
    log_lines(sub)


def _stores(sub: Parser) -> None:
    sub.add_argument("stores", nargs="*", metavar="STORE", help="the stores (default: every store of this host)")


def _show_values(group: Any) -> None:
    group.add_argument("--show-values", action="store_true", help="show the values of columns, and statements (default: masked)")


def _access(sub: Parser, variable: str) -> None:
    access = sub.add_argument_group("Access")
    access.add_argument("--user", default="", help="user name that clients must give (default: any)")
    access.add_argument(
        "--password-file",
        metavar="FILE",
        help=f"file with the password that they must give, read again when it changes; or set {variable}",
    )
    access.add_argument("--tls-cert", metavar="FILE", help="certificate chain (PEM file); turns TLS on")
    access.add_argument("--tls-key", metavar="FILE", help="key of the certificate (PEM file)")


def _serve(sub: Parser) -> None:
    sub.add_argument(
        "stores",
        nargs="*",
        metavar="STORE",
        help="stores to serve as destinations of the same name, or DESTINATION=STORE (default: every store of this host)",
    )
    sub.add_argument(
        "--listen",
        type=address,
        metavar="HOST:PORT",
        help="address of the canal server; port 0 takes a free port (default: 127.0.0.1:11111, and none with --flight)",
    )
    sub.add_argument(
        "--flight", type=address, metavar="HOST:PORT", help="serve by Arrow Flight there, commonly on port 8815 (default: no)"
    )
    _access(sub, "SHMSTORE_SERVE_PASSWORD")
    what = sub.add_argument_group("What clients read")
    what.add_argument(
        "--start",
        choices=("earliest", "latest"),
        default="earliest",
        help="where a new client id begins (default: earliest)",
    )
    what.add_argument(
        "--filter",
        default="",
        metavar="REGEXES",
        help="tables for clients that give no filter, in Canal's form: shop\\..* (default: all)",
    )
    what.add_argument(
        "--values",
        choices=("canal", "exact"),
        default="canal",
        help="send values, types and statements as Canal does (canal), or values as the server prints them and all statements (exact); "
        "default: canal. What Canal takes that a producer refuses: produce --statements pass --row-image any",
    )
    what.add_argument(
        "--gtids",
        choices=("auto", "on", "off"),
        default="auto",
        help="fill the entries' gtid, as Canal does with gtidon; auto: with --values exact (default: auto)",
    )
    limits = sub.add_argument_group("Limits")
    limits.add_argument("--max-connections", type=whole, default=1024, metavar="N", help="most connections (default: 1024)")
    limits.add_argument(
        "--max-frame", type=whole, default=1 << 20, metavar="BYTES", help="largest request that is accepted (default: 1048576)"
    )
    limits.add_argument(
        "--max-reply",
        type=whole,
        default=64 << 20,
        metavar="BYTES",
        help="largest reply, unless a single event is larger (default: 67108864)",
    )
    limits.add_argument(
        "--max-outstanding",
        type=whole,
        default=1024,
        metavar="N",
        help="most batches that a client may leave un-acked (default: 1024)",
    )
    limits.add_argument(
        "--max-new-clients",
        type=whole,
        default=16,
        metavar="N",
        help="most client ids (with --flight: subscriptions) never seen before that one login (host) may begin (default: 16)",
    )
    limits.add_argument(
        "--release-after",
        type=seconds,
        default=600.0,
        metavar="SECONDS",
        help="let another server have a client that is connected and has asked nothing for this long; one that left is free at once "
        "(default: 600)",
    )
    limits.add_argument(
        "--idle-timeout",
        type=seconds,
        metavar="SECONDS",
        help="close a connection that is silent for this long (default: 3600; with --flight 300)",
    )
    limits.add_argument(
        "--auth-timeout",
        type=seconds,
        default=30.0,
        metavar="SECONDS",
        help="close a connection that has not logged in after this long (default: 30)",
    )
    cluster = sub.add_argument_group("Cluster")
    cluster.add_argument(
        "--zookeeper",
        default="",
        metavar="HOSTS",
        help="register there as Canal's servers do, HOST:PORT,...: one of several servers is active, and clients find it and their "
        "cursors there (default: none)",
    )
    cluster.add_argument(
        "--zookeeper-timeout",
        type=seconds,
        default=10.0,
        metavar="SECONDS",
        help="after so long without a word from this server another becomes the active one (default: 10)",
    )
    cluster.add_argument(
        "--zookeeper-ca",
        default="",
        metavar="FILE",
        help="speak TLS with it, and trust what this CA (PEM) signed; SHMSTORE_ZOOKEEPER_LOGIN=USER:PASSWORD logs in, and keeps others from "
        "writing over what the servers of this login write (default: neither)",
    )
    cluster.add_argument(
        "--zookeeper-cert", default="", metavar="FILE", help="certificate (PEM) that ZooKeeper is shown (default: none)"
    )
    cluster.add_argument("--zookeeper-key", default="", metavar="FILE", help="its private key (PEM)")
    cluster.add_argument(
        "--advertise",
        default="",
        metavar="HOST:PORT",
        help="where clients reach this server (default: the address that it listens on)",
    )
    operation = sub.add_argument_group("Operation")
    operation.add_argument("--state", metavar="DIR", help=f"folder that records what clients have acked {STATE}")
    operation.add_argument(
        "--metrics-port", type=int, default=0, metavar="PORT", help="serve Prometheus text on this port (default: none)"
    )
    log_lines(sub)


def commands(run: Mapping[str, Run], fill: Mapping[str, Fill]) -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command."""
    (found,) = [action for action in parser(run, fill)._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(found.choices)


def _config(commands: Any, run: Mapping[str, Run]) -> None:
    top = commands.add_parser(
        "config",
        help="check a configuration file",
        description="Check a configuration file.\n\nexample:\n  shmstore config check",
    )
    tools = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    sub: Command = tools.add_parser(
        "check",
        help="say what is wrong in a configuration file",
        description="Say what is wrong in a configuration file.\n\nexample:\n  shmstore config check /etc/shmstore/shop.toml",
        epilog="One file serves every command: [producer] and [source.NAME] for produce, run, doctor and verify, [serve], [metrics], [web] and "
        "[top] for these, [log] for how log lines look (format, level). It finds unknown sections and keys, values that are not "
        "allowed, and files that cannot be read. Nothing is connected to; `shmstore doctor --config FILE` does that.\n"
        "Exit codes: 0 nothing is wrong, 1 something is, 2 the file cannot be read.",
    )
    sub.set_defaults(run=run["config check"])
    sub.add_argument(
        "file", nargs="?", default=config_file.CONFIG, metavar="FILE", help=f"the file (default: {config_file.CONFIG})"
    )


def log_lines(sub: argparse.ArgumentParser) -> None:
    """Add the options of `cli.log_lines`."""
    lines = sub.add_argument_group("Log lines, on stderr")
    lines.add_argument("--log-format", choices=("text", "json"), default="text", help="how they look (default: text)")
    lines.add_argument("--log-level", choices=LEVELS, default="info", help="the least that is written (default: info)")


def _create(sub: Parser) -> None:
    memory = sub.add_argument_group("Size")
    memory.add_argument(
        "--capacity", type=int, default=16384, metavar="N", help="most events it holds, a power of two (default: 16384)"
    )
    memory.add_argument(
        "--memory-unit", type=int, default=1024, metavar="BYTES", help="bytes of memory for each of these events (default: 1024)"
    )
    memory.add_argument(
        "--batch-mode",
        choices=("memsize", "itemsize"),
        default="memsize",
        help="what limits it: events and bytes (memsize, the default), or events only (itemsize)",
    )
    log = sub.add_argument_group("Log")
    log.add_argument(
        "--log",
        choices=("on", "off"),
        default="on",
        help="keep the events on disk too: slow readers read on there, and after a reboot everything is as it was (on, the default); or "
        "the ring alone, which forgets (off)",
    )
    log.add_argument(
        "--log-keep",
        type=valued(duration),
        default="24h",
        metavar="TIME",
        help="how long it keeps events that every reader has acked: 90m, 24h, 7d (default: 24h)",
    )
    log.add_argument(
        "--log-size",
        type=valued(size),
        default="10g",
        metavar="BYTES",
        help="most bytes of it, as 500m or 10g; what was acked goes earlier then, and --lag decides about the rest (default: 10g)",
    )
    readers = sub.add_argument_group("Readers")
    readers.add_argument(
        "--lag",
        choices=("block", "evict"),
        default="block",
        help="when a reader is so far behind that the log (without one: the ring) is full: the producer waits (block, the default), or the "
        "reader is marked lost (evict)",
    )
    readers.add_argument(
        "--evict-after",
        type=seconds,
        default=30.0,
        metavar="SECONDS",
        help="with --lag evict: how long the producer waits before it does that (default: 30)",
    )
    readers.add_argument("--ddl-isolation", action="store_true", help="give readers each DDL in a batch of its own")
    files = sub.add_argument_group("Access and safety")
    files.add_argument("--permissions", type=mode, default=0o600, metavar="MODE", help="file mode of the memory (default: 0600)")
    files.add_argument("--group", help="group that owns it: with --permissions 0660 its members may use it, with 0640 only look")
    files.add_argument(
        "--checksum",
        action=argparse.BooleanOptionalAction,
        help="keep a checksum of each event (default: only if the store is kept in a file)",
    )


# ---------------------------------------------------------------- values


def mode(text: str) -> int:
    """Return the file mode that `text` writes in octal digits."""
    try:
        return int(text, 8)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is not a file mode in octal digits, such as 0660") from error


def valued(read: Callable[[str], float]) -> Callable[[str], float]:
    """Return `read` as the type of an option: what it raises is what the command line reports."""

    def found(text: str) -> float:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return found


def seconds(text: str) -> float:
    """Return the seconds above 0 that `text` says."""
    with suppress(ValueError):
        if 0 < (value := float(text)) < float("inf"):
            return value
    raise argparse.ArgumentTypeError(f"{text} is not a number of seconds above 0")


def whole(text: str) -> int:
    """Return the number from 1 up that `text` says."""
    with suppress(ValueError):
        if (value := int(text)) > 0:
            return value
    raise argparse.ArgumentTypeError(f"{text} is not a number from 1 up")


def sequence(text: str) -> int:
    """Return the sequence that `text` says."""
    if text.isascii() and text.isdigit():
        return int(text)
    raise argparse.ArgumentTypeError(f"{text} is not a sequence: give the number of an event, such as 4711")


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
