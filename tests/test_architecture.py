"""Who may import whom, who owns which package, how many modules a folder holds, which names are not used: read from the source itself.

Every rule is a function from a folder to the breaches in it. Each is run on this checkout, where it must find nothing, and on a small
tree that breaks it, where it must find the breach.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("shmstore", "producer", "consumer")  # folders; the last two are imported as shmstore.producer and shmstore.consumer
MOST_MODULES = 15  # in one folder

# Each part's layers, lowest first: a module may import from its own layer and from lower ones. A layer is a sub-package, or a module
# of the part's own folder. What is not named is highest, and so may import all, and be imported by none below it.
LAYERS = {
    "shmstore": (
        "native arguments clock errors event gtids lazy_names patterns sources",
        "atomic_file certificate column_type start_position stored_json",
        "sql",
        "memory",
        "home",
        "encoding",
        "ring",
        "log",
        "store",
    ),
    "shmstore.producer": (
        *(
            "native",
            "native_code",
            "gtid",
            "errors stop",
            "filters",
            "settings",
            "settings_sources",
            "values",
            "binlog",
            "connection",
            "schema",
        ),
        *("transactions", "positions", "start", "snapshot", "verify", "pipeline"),
    ),
    "shmstore.consumer": (
        *(
            "serving",
            "table_schemas",
            "remote",
            "formats",
            "table_choice turn",
            "collector consumer",
            "tail",
            "monitoring",
            "copies",
        ),
        *("wire", "flight", "live", "queues", "spark"),
    ),
    "shmstore.consumer.copies": (
        *(
            "changed_rows copied_tables database_url ddl",
            "change_reduction",
            "reading schema_evolution target",
            "targets",
            "copy databases initial_rows",
            "copy_set kinds",
            "copying",
        ),
    ),
    "shmstore.consumer.monitoring": ("health table_counts", "metrics"),
    "shmstore.consumer.serving": ("access audit capacity", "http_server"),
    "shmstore.consumer.spark": ("callbacks options query_errors spark_version", "decode", "source", "replicate"),
    "shmstore.consumer.remote": ("address protocol events", "batch link", "subscription", "store"),
    "shmstore.consumer.flight": ("settings login connections metrics tables", "endpoint", "sessions", "server", "process"),
    "shmstore.consumer.queues": (
        "native queue canal_routing canal_packets row_plans",
        "connecting",
        "kafka_readers",
        "messages kafka nats_stream pulsar rabbitmq redis_streams rocketmq",
        "kinds sender",
    ),
    "shmstore.consumer.wire": ("native protocol", "encoding", "session", "cluster", "server"),
}

# What producer and consumer may import from shmstore besides its public names: these names of these modules.
PUBLIC = {
    "shmstore": "errors lazy_names",
    "shmstore.arguments": "LOG Parser SECTIONS",
    "shmstore.atomic_file": "replace",
    "shmstore.stored_json": "parse_json read_json",
    "shmstore.certificate": "load_certificate",
    "shmstore.clock": "as_calendar_ms boot_ms calendar_ms",
    "shmstore.column_type": "bytes_of_character column_type logged_type sized",
    "shmstore.encoding.arrow": "BINARY_TYPES Events PartialImage ZeroDate arrow_type column_array fit widens",
    "shmstore.encoding.arrow_rows": (
        "OPS RowPositions Spread StoredEvents index_events partial_images partial_reads read_images read_rows runs stored_positions"
    ),
    "shmstore.encoding.codec": (
        "Header Packed bare_schema decode decode_schema decode_stored encode encode_batch "
        "encode_head encode_schema encode_stored pack split_stored stored_head stored_parts unpack_rows"
    ),
    "shmstore.encoding.conversions": "FROM_PYTHON",
    "shmstore.encoding.row_order": "seqs",
    "shmstore.errors": (
        "BinlogDisabled BinlogPurged CopyUnreadable PositionNotFound ProtocolError SchemaUnknown "
        "SourceError StoreCorrupt StoreError StoreUnreachable UnsupportedEvent did_you_mean install"
    ),
    "shmstore.event": "ABSENT Column EntryType Event EventType FILTERS_CHANGED Position Sources TableSchema",
    "shmstore.gtids": "Gtids covers parse single",
    "shmstore.home": "audit kinds pauses",
    "shmstore.home.acks": "checkpoints_in",
    "shmstore.home.control": "ControlAnswer ControlFiles RELOAD Wish",
    "shmstore.home.definitions": "Definition DefinitionsFile definitions_in position_in sources_of",
    "shmstore.home.home": "Home May state_directory",
    "shmstore.home.pauses": "Pause",
    "shmstore.home.lines": "LinesFile",
    "shmstore.home.reader_state": (
        "CopiesAside CopiesBatch batches_path copies_aside filters_kept keep_aside keep_batch keep_filter keep_planned kept_aside kept_batch "
        "opened planned_end"
    ),
    "shmstore.home.snapshot_progress": "ENTERED Progress REPLACING SnapshotRequest TableProgress Task",
    "shmstore.home.snapshots": "ProgressFile cancel_snapshot new_id request_snapshot snapshot_status snapshot_waits",
    "shmstore.memory.deadline": "RETURN_SECONDS begun retried",
    "shmstore.memory.locks": "holder",
    "shmstore.memory.layout": "DISARMED SUBSCRIPTIONS SlotFlag header_word",
    "shmstore.native": "pure_python",
    "shmstore.patterns.linear_regex": "Name PatternRefused compile_pattern",
    "shmstore.patterns.table_patterns": "FORMS Patterns exactly",
    "shmstore.sources": "place_text pack_sources sources_text unpack_sources",
    "shmstore.sql.catalog": "Catalog Change TableName Unreadable",
    "shmstore.sql.charsets": "charset_of decoder lenient member_text python_codec statement_decoder",
    "shmstore.sql.classify": "Kind Statement classify",
    "shmstore.sql.column_types": "GEOMETRY read_type",
    "shmstore.sql.columns": "GEOMETRY UNKNOWN charset_of_collation column_of_type with_definition",
    "shmstore.sql.hidden_columns": "with_hidden",
    "shmstore.sql.names": "folded free index_of places_of same",
    "shmstore.sql.session": "Dialect Session UNKNOWN",
    "shmstore.sql.table_change": "Draft ROW_ID Table",
    "shmstore.sql.tokens": "SqlMode Token Tokens USUAL literal located modes pieces statement",
    "shmstore.start_position": "FORMS Start parse_start",
    "shmstore.store.batch": "Elsewhere",
    "shmstore.store.reader_place": "ReaderPlace",
    "shmstore.store.remembered": "Homes RememberedStore describe_home",
    "shmstore.units": "TextLines duration moment printable quantity size span",
}

# Third-party package -> the one file or folder that may import it. What is not here may not be imported.
OWNERS = {
    "numpy": ("shmstore/", "producer/", "consumer/"),
    "posix_ipc": ("shmstore/memory/shared_memory.py",),
    "multiprocessing.shared_memory": (),  # of the standard library, and unfit: docs/reference/segment.md says why
    "msgpack": ("shmstore/encoding/codec.py",),
    "pymysql": ("producer/connection/", "consumer/copies/databases/mysql.py"),
    "pymysqlreplication": ("producer/connection/dump.py",),
    "zstandard": ("producer/binlog/compression.py",),
    "pyspark": ("consumer/spark/",),
    "py4j": ("consumer/spark/",),
    "pyarrow": ("shmstore/encoding/", "consumer/spark/", "consumer/remote/", "consumer/flight/", "consumer/copies/"),
    "deltalake": ("consumer/copies/targets/delta.py", "consumer/copies/reading/arrow_copies.py"),
    "duckdb": ("consumer/copies/targets/duckdb.py", "consumer/copies/reading/duckdb_file.py"),
    "duckdb_extension_ducklake": ("consumer/copies/reading/duckdb_file.py",),
    "psycopg": ("consumer/copies/",),
    "pyiceberg": ("consumer/copies/reading/arrow_copies.py",),
    "google": ("consumer/wire/protocol/",),
    "orjson": ("consumer/formats/json_text.py",),
    "confluent_kafka": ("consumer/queues/kafka.py", "consumer/queues/kafka_readers.py"),
    "nats": ("consumer/queues/nats_stream.py",),
    "pika": ("consumer/queues/rabbitmq.py",),
    "pulsar": ("consumer/queues/pulsar.py",),
    "redis": ("consumer/queues/redis_streams.py",),
    "kazoo": ("consumer/wire/cluster/",),
    "textual": ("consumer/live/top.py",),
    "rich": ("consumer/live/top.py",),
}

# Pure parts: arithmetic on buffers and bytes. No lock, clock, socket or log.
PURE = (
    *(f"shmstore/ring/{name}.py" for name in ("cursors", "writer", "reader")),
    *("shmstore/memory/layout.py", "shmstore/encoding/", "producer/values/"),
    *(f"producer/binlog/{name}.py" for name in ("events", "packets", "compression", "table_map", "table_map_metadata", "rows")),
    *("consumer/wire/protocol/", "consumer/wire/encoding/", "shmstore/sql/"),
)
IMPURE = {"asyncio", "logging", "multiprocessing", "select", "selectors", "signal", "socket", "subprocess"} | {
    "threading",
    "time",
}

FORBIDDEN = {"manager", "helper", "util", "abstract", "base", "impl", "info", "data"}
FOREIGN_TERMS = ("DataSource", "DataFrame", "DataType", "Database", "database")  # Spark's and SQL's own words, kept whole


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module, with the names taken from it (none for a plain `import`)."""

    file: str  # relative to the tree's root
    line: int
    module: str  # absolute, dotted
    names: tuple[str, ...]
    late: bool  # inside a function, or for the type checker only

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]

    @property
    def own(self) -> str:
        return module_of(self.file)

    def targets(self, there: set[str]) -> set[str]:
        """The modules of `there` that it imports: the one it names, or those that it takes from a package."""
        inner = {f"{self.module}.{name}" for name in self.names}
        return (inner & there) or ({self.module} & there)

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}" + (f" ({', '.join(self.names)})" if self.names else "")


def modules(root: Path, folders: tuple[str, ...] = PACKAGES) -> Iterator[tuple[str, ast.Module]]:
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            if path.relative_to(root).parts[:2] in (("shmstore", "producer"), ("shmstore", "consumer")):
                continue  # a link to the folder of that name
            yield path.relative_to(root).as_posix(), parsed(path.read_text(encoding="utf-8"), str(path))


@cache
def parsed(text: str, name: str) -> ast.Module:
    """Each file is parsed once for all rules; none of them changes a tree."""
    return ast.parse(text, name)


def module_of(file: str) -> str:
    """The name that a file is imported by."""
    name = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return name if name.partition(".")[0] not in PACKAGES[1:] else f"shmstore.{name}"


def part_of(module: str) -> str:
    """Which of shmstore, shmstore.producer and shmstore.consumer a module belongs to."""
    return next((part for part in ("shmstore.producer", "shmstore.consumer") if f"{module}.".startswith(f"{part}.")), "shmstore")


def runs_late(block: ast.AST) -> bool:
    if isinstance(block, ast.If):
        return isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING" and not block.orelse
    return isinstance(block, ast.FunctionDef | ast.AsyncFunctionDef)


def imports(root: Path) -> Iterator[Import]:
    for file, tree in modules(root):
        package = file.removesuffix("/__init__.py") if file.endswith("/__init__.py") else file.rpartition("/")[0]
        late = {id(node) for block in ast.walk(tree) if runs_late(block) for node in ast.walk(block)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(file, node.lineno, alias.name, (), id(node) in late)
            elif isinstance(node, ast.ImportFrom):
                parts = package.split("/")[: len(package.split("/")) - node.level + 1] if node.level else []
                prefix = ["shmstore"] if parts and parts[0] in PACKAGES[1:] else []
                module = ".".join([*prefix, *parts, *filter(None, [node.module])])
                yield Import(file, node.lineno, module, tuple(alias.name for alias in node.names), id(node) in late)


def public_names(root: Path) -> set[str]:
    for file, tree in modules(root, ("shmstore",)):
        if file == "shmstore/__init__.py":
            for node in tree.body:
                if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
                    return set(ast.literal_eval(node.value))
    return set()


# ---- the rules


def packages_stay_apart(root: Path) -> list[str]:
    """producer -> shmstore <- consumer; the command line alone knows all three, and imports them inside its commands."""
    breaches = []
    for found in imports(root):
        if found.top in PACKAGES[1:]:
            breaches.append(f"{found}: it is called shmstore.{found.top}")
            continue
        own, other = part_of(found.own), part_of(found.module)
        if other in ("shmstore", own) or (found.module, found.file) in FRONT_DOORS:
            continue
        if not found.file.startswith("shmstore/cli/"):
            breaches.append(str(found))
        elif not found.late:
            breaches.append(f"{found} outside a function")
    return breaches


# Short names for what is elsewhere: `shmstore.Consumer` (looked up when asked for; here for the type checker), `shmstore.spark`.
FRONT_DOORS = {("shmstore.consumer.consumer", "shmstore/__init__.py"), ("shmstore.consumer.spark", "shmstore/spark.py")}


def public_names_only(root: Path) -> list[str]:
    """producer and consumer use shmstore's public names, or those of PUBLIC."""
    public, breaches = public_names(root), []
    for found in imports(root):
        if found.top != "shmstore" or found.file.startswith("shmstore/") or part_of(found.module) != "shmstore":
            continue
        allowed = set(PUBLIC.get(found.module, "").split())
        private = [name for name in found.names if name not in allowed]
        if found.module == "shmstore":
            private = [name for name in private if name not in public and part_of(f"shmstore.{name}") != part_of(found.own)]
        elif not found.names:
            private = [found.module]
        if private:
            breaches.append(f"{found}: not public: {', '.join(private)}")
    return breaches


def layers_hold(root: Path) -> list[str]:
    """A layer imports from itself and from lower ones (LAYERS), also late and for the type checker."""
    there = {module_of(file) for file, _ in modules(root)}
    breaches = []
    for found in imports(root):
        for part, layers in LAYERS.items():
            floors = {f"{part}.{name}": floor for floor, names in enumerate(layers) for name in names.split()}
            own = layer_of(found.own, part)
            for target in found.targets(there) if own in floors else ():
                other = layer_of(target, part)
                if (
                    part_of(target) == part_of(part)
                    and target.startswith(f"{part}.")
                    and floors.get(other, len(layers)) > floors[own]
                ):
                    breaches.append(f"{found}: {own} is below {other}")
    return breaches


def layer_of(module: str, part: str) -> str:
    """The sub-package or module of `part` that `module` is in; `module` itself where it is in none."""
    inner = module.removeprefix(f"{part}.")
    return module if inner == module else f"{part}.{inner.partition('.')[0]}"


def no_circles(root: Path) -> list[str]:
    """No module imports itself by way of others, also late and for the type checker."""
    there = {module_of(file): file for file, _ in modules(root)}
    arrows: dict[str, set[str]] = {module: set() for module in there}
    for found in imports(root):
        if found.file != "shmstore/__init__.py":  # a table of where names are: it imports none itself
            arrows[found.own] |= found.targets(set(there)) - {found.own}
    while free := [module for module, onward in arrows.items() if not onward & set(arrows)]:
        for module in free:  # nothing it imports leads anywhere
            del arrows[module]
    while free := [module for module in arrows if not any(module in onward for onward in arrows.values())]:
        for module in free:  # nothing that is left imports it
            del arrows[module]
    circle = sorted(arrows)
    return [f"{there[module]} is in a circle with {', '.join(sorted(arrows[module] & set(circle)))}" for module in circle]


def small_folders(root: Path) -> list[str]:
    """No folder of the packages holds more modules than a newcomer takes in at a glance."""
    counts = Counter(file.rpartition("/")[0] for file, _ in modules(root) if not file.endswith(("/__init__.py", "/__main__.py")))
    return [
        f"{folder}/ holds {count} modules, {MOST_MODULES} at most" for folder, count in counts.items() if count > MOST_MODULES
    ]


def third_party_owners(root: Path) -> list[str]:
    """Each third-party package is imported by its one owner."""
    breaches = []
    for found in imports(root):
        # `from multiprocessing import shared_memory` imports the module that it names.
        candidates = [found.module, found.top, *(f"{found.module}.{name}" for name in found.names)]
        owned = next((name for name in candidates if name in OWNERS), None)
        if owned is None and (found.top in sys.stdlib_module_names or found.top in PACKAGES):
            continue
        owners = OWNERS.get(owned or "", ())
        if not any(found.file == owner or (owner.endswith("/") and found.file.startswith(owner)) for owner in owners):
            breaches.append(f"{found}: its owner is {' and '.join(owners) or 'nobody yet (see OWNERS)'}")
    return breaches


def pure_parts(root: Path) -> list[str]:
    """The ring, the bytes and the wire protocol import no lock, clock, socket or log."""
    return [str(found) for found in imports(root) if found.file.startswith(PURE) and found.top in IMPURE]


def words(name: str) -> list[str]:
    for term in FOREIGN_TERMS:
        name = name.replace(term, "")
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return [part.lower() for part in parts]


def plain_names(root: Path) -> list[str]:
    """No class or module is named Manager, Helper, Util, Abstract, Base, Impl, Info or Data."""
    breaches = []
    for file, tree in modules(root):
        module = file.removesuffix("/__init__.py").removesuffix(".py").rpartition("/")[2]
        named = [(file, module)] + [(f"{file}:{n.lineno}", n.name) for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
        for place, name in named:
            bad = FORBIDDEN.intersection(
                word.removesuffix("s") if word.removesuffix("s") in FORBIDDEN else word for word in words(name)
            )
            if bad:
                breaches.append(f"{place}: {name} says nothing by {', '.join(sorted(bad))}")
    return breaches


def one_meaning(root: Path) -> list[str]:
    """No two classes have the same name, private ones included: a name alone says what it is."""
    places: dict[str, list[str]] = {}
    for file, tree in modules(root):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{file}:{node.lineno}")
    return [f"{found[0]}: {name} is also in {', '.join(found[1:])}" for name, found in sorted(places.items()) if len(found) > 1]


def states_are_given(root: Path) -> list[str]:
    """Who attaches to a store that may have to be restored says in which folder its home is: `state`, which every command and call takes."""
    breaches = []
    for file, tree in modules(root):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "EventStore.attach",
                "StoreView.attach",
                "StoreView.home_of",
            ):
                given = {keyword.arg: keyword.value for keyword in node.keywords}
                restores = not isinstance(found := given.get("restore"), ast.Constant) or bool(found.value)
                if restores and "state" not in given:
                    breaches.append(f"{file}:{node.lineno}: {ast.unparse(node)} names no state")
    return breaches


def docstrings(root: Path) -> list[str]:
    """Every module of the packages, the tests and the scripts says what it is."""
    breaches = []
    for file, tree in modules(root, (*PACKAGES, "tests", "scripts")):
        if tree.body and not ast.get_docstring(tree):  # an empty __init__.py has nothing to say
            breaches.append(f"{file}: no docstring")
    return breaches


RULES: list[Callable[[Path], list[str]]] = [
    packages_stay_apart,
    public_names_only,
    third_party_owners,
    pure_parts,
    layers_hold,
    no_circles,
    small_folders,
    plain_names,
    one_meaning,
    states_are_given,
    docstrings,
]

# ---- this checkout


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_holds(rule: Callable[[Path], list[str]]) -> None:
    """The rule finds no breach in this checkout, and looks at a tree that is really there."""
    assert len(list(modules(ROOT))) > 20
    breaches = rule(ROOT)
    assert not breaches, f"{rule.__doc__}\n  " + "\n  ".join(breaches)


def test_every_public_name_is_used() -> None:
    """Each name of PUBLIC is imported by producer or consumer: the list does not outlive what it is for."""
    used: dict[str, set[str]] = {}
    for found in imports(ROOT):
        if not found.file.startswith("shmstore/"):
            used.setdefault(found.module, set()).update(found.names)
    unused = {module: set(names.split()) - used.get(module, set()) for module, names in PUBLIC.items()}
    assert {module: names for module, names in unused.items() if names} == {}


def test_every_owner_owns() -> None:
    """Each owner in OWNERS imports its package."""
    used = {(found.file, name) for found in imports(ROOT) for name in (found.module, found.top) if name in OWNERS}
    unused = [
        (name, owner)
        for name, owners in OWNERS.items()
        for owner in owners
        if not any(
            package == name and (file == owner or (owner.endswith("/") and file.startswith(owner))) for file, package in used
        )
    ]
    assert unused == []


EXTRAS = [
    "pymysql",
    "pymysqlreplication",
    "cryptography",
    "zstandard",
    "pyspark",
    "pyarrow",
    "pandas",
    "google",
    "deltalake",
    "shmstore.producer",
    "shmstore.consumer",
]


def import_without(blocked: list[str], statement: str) -> subprocess.CompletedProcess[str]:
    code = f"""
        import sys
        sys.path.insert(0, {str(ROOT)!r})
        class Blocked:
            def find_spec(self, name, path=None, target=None):
                if name in {blocked!r} or name.partition(".")[0] in {blocked!r}:
                    raise ImportError(f"blocked: {{name}}", name=name)
        sys.meta_path.insert(0, Blocked())
        {statement}
    """
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)


@pytest.mark.parametrize(
    "statement",
    ["import shmstore; [getattr(shmstore, name) for name in shmstore.__all__ if name != 'Consumer']", "import shmstore.cli.main"],
)
def test_store_needs_no_extra(statement: str) -> None:
    """`import shmstore`, each of its names, and its command line load without any extra and without the other two packages."""
    done = import_without(EXTRAS, statement)
    assert done.returncode == 0, done.stderr


def test_copies_need_no_spark() -> None:
    """The engine of copies and its targets load without Spark and its JVM's gateway."""
    names = [module_of(file) for file, _ in modules(ROOT, ("consumer",)) if file.startswith("consumer/copies/")]
    assert "shmstore.consumer.copies.copy_set" in names
    done = import_without(["pyspark", "py4j", "shmstore.consumer.spark"], f"import {', '.join(names)}")
    assert done.returncode == 0, done.stderr


def test_the_command_line_loads_quickly() -> None:
    """The command line explains itself without numpy, which takes longer to load than all the rest."""
    done = import_without(["numpy", "msgpack"], "from shmstore.cli.main import main; main(['tail', '--help'])")
    assert done.returncode == 0, done.stderr
    assert "--follow" in done.stdout


def test_blocking_blocks() -> None:
    """The hook of the test above really keeps a package out."""
    done = import_without(["numpy"], "from shmstore import EventStore")
    assert done.returncode != 0
    assert "blocked: numpy" in done.stderr
