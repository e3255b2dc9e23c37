"""`shmstore tail`: events as documents."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from shmstore.cli.command import Commands
from shmstore.cli.log_lines import say
from shmstore.cli.named_store import look
from shmstore.cli.options import add_form
from shmstore.cli.signals import ended, on_signal
from shmstore.cli.values import place, whole
from shmstore.patterns.table_patterns import FORMS as TABLE_FORMS
from shmstore.patterns.table_patterns import Patterns

if TYPE_CHECKING:
    from shmstore import StoreView
    from shmstore.consumer import Consumer
    from shmstore.consumer.tail import Peek


def add(commands: Commands) -> None:
    """Add the command."""
    sub = commands.add(
        tail,
        "tail",
        "print a store's events, one JSON document per line",
        "  shmstore tail orders | jq .\n"
        "  shmstore tail orders --tables 'shop.*' --format debezium --subscription export >> changes.jsonl",
        "Without --subscription it moves no cursor and delays no reader; events that have left the ring come from the log. If events "
        "are removed before it prints them (in a store without a log, when every reader has acked them), it prints their number on "
        "stderr. With --subscription it acks each batch after writing it, the store keeps the rest, and the next run continues "
        "there.\n"
        "\n"
        "formats:\n"
        "  json      a document for each row, DDL, begin and end. op is insert, update, delete, read (a row of a\n"
        "            snapshot), ddl, statement, begin or end. DECIMAL, times and JSON are text, bytes are base64\n"
        "  canal     Canal's flat message: a document for each rows event, all values as text, ENUM and SET as numbers\n"
        "  debezium  the envelope of Debezium's MySQL connector with its defaults, but decimals as text; its topic\n"
        "            prefix is the store's name. --schemas adds the schema part, --transactions the transaction\n"
        "            block and the documents of BEGIN and END. A DDL has its statement, because a binlog has no more:\n"
        "            tableChanges has dropped tables only\n"
        "  maxwell   with its options output_ddl, output_binlog_position, output_gtid_position, output_server_id,\n"
        "            output_thread_id and output_primary_keys. A DDL has its statement, without def and old;\n"
        "            there is no xid and no commit\n"
        "A change that was logged as a statement (produce --statements pass) is printed by json and canal only.",
    )
    what = sub.add_argument_group("What to read")
    which = what.add_mutually_exclusive_group()
    which.add_argument("--subscription", metavar="NAME", help="read as this named subscription; created if it does not exist")
    which.add_argument("--peek", action="store_true", help="only look, without a subscription (the default)")
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
    add_form(sub)


def tail(options: argparse.Namespace) -> int:
    """`shmstore tail`."""
    from shmstore.consumer import Consumer
    from shmstore.consumer.formats.formatter import Formatter
    from shmstore.consumer.tail import BATCH_EVENTS, Peek, tables
    from shmstore.consumer.tail import tail as write

    chosen = None if options.tables is None else tables(options.tables)
    with look(options) as store:
        if options.tables is not None:
            warn_of_no_table(store, options.tables)
        more = {"schemas": options.schemas, "transactions": options.transactions, "gtids": options.gtids}
        formatter = Formatter(options.format, name=store.name, **more)
        reader: Consumer | Peek
        if options.subscription is None:
            reader = Peek(store, options.start, follow=options.follow, missed=warn_of_missed)
        else:
            how = {"start": options.start, "limit_events": BATCH_EVENTS, "timeout": None if options.follow else 0}
            reader = Consumer(options.store, options.subscription, path=options.path, state=options.state, **how)
        last = None if options.follow else store.newest
        with reader, on_signal(reader.stop) as came:
            write(reader, sys.stdout.buffer, formatter=formatter, chosen=chosen, count=options.count, last=last)
        return ended(came)


def warn_of_no_table(store: StoreView, patterns: str) -> None:
    """Report on stderr patterns that no table has the name of which the producer defines: one may come, or a name is mistyped."""
    from shmstore.consumer.table_schemas import defined

    names, match = sorted(defined(store)), Patterns.of_tables(patterns).match
    if names and not any(map(match, names)):
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        say(
            f"no table that the producer of store {store.name!r} defines has a name as in --tables {patterns!r}: there are {shown}"
        )


def warn_of_missed(count: int) -> None:
    """Report on stderr events that the store dropped before they were printed."""
    say(f"{count} events were dropped from the store before they could be printed; with --subscription it keeps them")
