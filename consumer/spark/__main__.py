"""``python -m shmstore.consumer.spark replicate ...``, also for spark-submit: keep copies of a store's tables until SIGTERM or SIGHUP."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shmstore import EventStore, ShmStoreError
from shmstore.arguments import Parser
from shmstore.consumer.copies.database_url import KINDS as DATABASES
from shmstore.consumer.spark.options import FORMATS, HELP, MERGES
from shmstore.consumer.spark.spark_version import SparkTooOld, check, installed, too_old
from shmstore.errors import install
from shmstore.units import TextLines, printable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ENDING = (signal.SIGTERM, signal.SIGHUP)


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = installed()
    needs = f"\n\n{too_old(found)}" if found is not None and too_old(found) else ""
    parser = Parser(prog="shmstore spark", description=f"Spark programs over a store. They need pyspark 4.0 or later.{needs}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    add = commands.add_parser(
        "replicate",
        help="keep a copy of every table",
        description="Keep a copy of every table, until SIGTERM, SIGHUP or Ctrl-C.\n\nexample:\n"
        f"  shmstore spark replicate orders --tables 'shop.*' --target '/lake/{{database}}/{{table}}'{needs}",
    )
    add.add_argument("store", metavar="STORE", help="name of the store")
    what = add.add_argument_group("What to copy, and where")
    what.add_argument(
        "--target",
        required=True,
        help="path of the copies, with {database} and {table}, and {source} if the store has several; iceberg: CATALOG.SCHEMA.TABLE; "
        "or a database: postgresql://USER@HOST/DATABASE#{database}.{table}, mysql://USER@HOST:PORT#{database}.{table}, sqlite:///FILE#{table}",
    )
    what.add_argument(
        "--format", choices=FORMATS, default="", help="form of the copies, unless they are in a database (default: delta)"
    )
    what.add_argument(
        "--password-file",
        metavar="FILE",
        help="file with the database's password, read again for each connection; or set SHMSTORE_COPY_PASSWORD",
    )
    what.add_argument("--tables", default="*", help=HELP["tables"])
    what.add_argument(
        "--key", action="append", default=[], metavar="DB.TABLE=COLUMN[,COLUMN]", help="key of a table that has no primary key"
    )
    rows = what.add_mutually_exclusive_group()
    rows.add_argument("--snapshot", action="store_true", help="ask the producer for the rows of the tables that have no copy yet")
    rows.add_argument(
        "--snapshot-from",
        metavar="FILE",
        help="the producer's TOML file: executors read these rows straight from its server (delta, parquet)",
    )
    what.add_argument("--history", action="store_true", help="keep every version of a row (SCD type 2)")
    what.add_argument(
        "--remove-dropped",
        action="store_true",
        help="remove the copy of a table that is dropped or renamed (default: keep it without rows); histories stay",
    )
    what.add_argument(
        "--storage", action="append", default=[], metavar="NAME=VALUE", help="delta-rs storage option, for an object store"
    )
    what.add_argument(
        "--optimize", type=int, default=0, metavar="N", help="compact a Delta table's small files after each N commits"
    )
    what.add_argument(
        "--merge",
        choices=MERGES,
        default="driver",
        help="what reduces and merges the rows: executors' jobs merge tables of any size, into delta (with delta-spark) and iceberg (default: %(default)s)",
    )
    query = add.add_argument_group("The query")
    query.add_argument(
        "--subscription", default="replicate", metavar="NAME", help="subscription to read as (default: %(default)s)"
    )
    query.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="folder of the query's checkpoint (default: _checkpoint in the folder of the copies; databases and iceberg need one)",
    )
    query.add_argument("--once", action="store_true", help="stop when all events that are in the store now are copied")
    query.add_argument("--interval", default="0 seconds", help="least time between two micro-batches (default: %(default)s)")
    query.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="further option of the Spark source")
    query.add_argument("--master", help="Spark master, unless spark-submit gives one (default: local[*])")
    query.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="setting of Spark, such as a catalog of Iceberg's tables",
    )
    query.add_argument("--packages", metavar="GROUP:NAME:VERSION", help="packages for Spark to fetch, such as Iceberg's runtime")
    return parser


def _pairs(texts: Sequence[str], parser: argparse.ArgumentParser) -> dict[str, str]:
    for text in texts:
        if "=" not in text:
            parser.error(f"{text!r} is not NAME=VALUE")
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


def _password(file: str | None) -> str | Callable[[], str]:
    """The database's password. There is no option for it: a process list shows options. Raises OSError."""
    if file is None:
        return os.environ.get("SHMSTORE_COPY_PASSWORD", "")

    def read() -> str:
        return Path(file).read_text(encoding="utf-8").rstrip("\r\n")

    read()
    return read


def main(argv: Sequence[str] | None = None, tables_of: Callable[[str, str], Any] | None = None) -> int:
    """Run the command line `argv`; return the exit code: 2 for bad input, with one line that says what is wrong.

    `tables_of` gives the `SourceTables` of a store, of which a file has the producer's settings.
    """
    parser = arguments()
    given = parser.parse_args(argv)
    keys = {name: columns.split(",") for name, columns in _pairs(given.key, parser).items()}
    options, storage = _pairs(given.option, parser), _pairs(given.storage, parser)
    if given.target.partition(":")[0] in DATABASES and given.checkpoint is None:
        parser.error("copies in a database need --checkpoint: a folder for the query's checkpoint")
    if given.snapshot_from and tables_of is None:
        parser.error(
            "--snapshot-from reads the producer's settings: run shmstore spark replicate, or call replicate(..., snapshot=ServerTables(...))"
        )
    try:
        check()
        from py4j.protocol import Py4JError
        from pyspark.sql import SparkSession

        from shmstore.consumer.spark.replicate.replicate import session_settings
    except ModuleNotFoundError as error:
        print(f"shmstore: {error.name} is not installed: {install('spark')}", file=sys.stderr)
        return 2
    except SparkTooOld as error:
        print(f"shmstore: {error}", file=sys.stderr)
        return 2
    try:
        password = _password(given.password_file)
        EventStore.attach(
            given.store, path=options.get("storePath"), state=options.get("stateDirectory")
        ).close()  # before a JVM is started for nothing
        tables = tables_of(given.store, given.snapshot_from) if tables_of is not None and given.snapshot_from else given.snapshot
    except (ShmStoreError, OSError) as error:
        print(printable(f"shmstore: {error}"), file=sys.stderr)
        return 2
    settings = (
        session_settings() | ({"spark.jars.packages": given.packages} if given.packages else {}) | _pairs(given.conf, parser)
    )
    builder: Any = SparkSession.builder.config(map=settings).appName(f"shmstore replicate {given.store}")
    spark = builder.master(given.master).getOrCreate() if given.master else _local(builder)
    spark.sparkContext.setLogLevel("ERROR")
    handler = logging.StreamHandler()
    handler.setFormatter(TextLines("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("shmstore").setLevel(logging.INFO)
    stopping = threading.Event()
    jvm = _end_with_jvm(spark, stopping)
    try:
        return _run(spark, given, stopping, keys=keys, options=options, password=password, snapshot=tables, storage=storage)
    except (Py4JError, ConnectionError):
        if jvm is not None:
            jvm.join(5)  # which ends this process where the JVM has ended
        raise


def _run(spark: SparkSession, given: argparse.Namespace, stopping: threading.Event, **settings: Any) -> int:
    """Keep copies until the query ends, or is `stopping`; return the exit code."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException, StreamingQueryException

    from shmstore.consumer.spark.query_errors import cause
    from shmstore.consumer.spark.replicate.replicate import replicate

    query, code, failure = None, 0, ""
    try:
        for number in _ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as by nohup
                signal.signal(number, _interrupt)
        query = replicate(
            spark,
            store=given.store,
            target=given.target,
            tables=given.tables,
            format=given.format,
            checkpoint=given.checkpoint,
            subscription=given.subscription,
            history=given.history,
            trigger={"availableNow": True} if given.once else {"processingTime": given.interval},
            optimize=given.optimize,
            remove_dropped=given.remove_dropped,
            merge=given.merge,
            **settings,
        )
        query.awaitTermination()
    except KeyboardInterrupt:
        stopping.set()
        if query is not None:
            query.stop()
            _say_what_stays(given)
    except (ValueError, ImportError, ShmStoreError, PySparkException) as error:
        if "SHMSTORE_DEBUG" in os.environ:
            raise
        code, failure = 1 if isinstance(error, StreamingQueryException) else 2, cause(error)
    except Py4JJavaError as error:  # what pyspark has no exception of its own for
        if "SHMSTORE_DEBUG" in os.environ:
            raise
        code, failure = 2, f"Spark: {str(error.java_exception).splitlines()[0]}"
    finally:
        try:
            spark.stop()
        finally:
            if failure:  # last: pyspark's processes may print a traceback when they end
                print(printable(f"shmstore: {failure}"), file=sys.stderr, flush=True)
    return code


def _end_with_jvm(spark: SparkSession, stopping: threading.Event) -> threading.Thread | None:
    """End this process when its JVM does, which the sockets alone may not show: a process that the JVM just started can hold them open.

    That is a failure, unless this process is `stopping`. Each batch that lands is whole, so there is nothing to close. None where the JVM
    is not this process's child, as under spark-submit.
    """
    context: Any = spark.sparkContext
    jvm = context._gateway.proc
    if jvm is None:
        return None

    def end() -> None:
        code = jvm.wait()
        asked = code - 128 if code - 128 in _ENDING else 0
        # Where all processes of a service are asked to end, this one's own signal may be on its way.
        if stopping.wait(1.0 if asked else 0.0):
            os._exit(0)
        why = f"signal {asked or -code}" if asked or code < 0 else f"exit code {code}"
        print(
            f"shmstore: Spark's JVM has ended ({why}): the same command continues where this one was", file=sys.stderr, flush=True
        )
        os._exit(1)

    watching = threading.Thread(target=end, name="JVM", daemon=True)
    watching.start()
    return watching


def _say_what_stays(given: argparse.Namespace) -> None:
    """What a query that is stopped permanently leaves behind, and how to remove it."""
    where = given.checkpoint or os.path.join(given.target.split("{", 1)[0], "_checkpoint")
    logging.getLogger("shmstore").info(
        "stopped: the same command continues here. If it is not to continue, remove what it left: `shmstore unsubscribe %s %s`, for which the store "
        "keeps events, and the folder %s",
        shlex.quote(given.store),
        shlex.quote(given.subscription),
        shlex.quote(where),
    )


def _local(builder: Any) -> SparkSession:
    """The session of spark-submit, which brings a master, else one on this host."""
    from pyspark import SparkConf

    session: SparkSession = (builder if SparkConf().contains("spark.master") else builder.master("local[*]")).getOrCreate()
    return session


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt  # and no more: `stopping` has a lock, which the main thread may hold


if __name__ == "__main__":
    sys.exit(main())
