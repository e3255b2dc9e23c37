"""Who may import whom, who owns which package, how long a file may be, which names are not used: read from the source itself.

Every rule is a function from a folder to the breaches in it. Each is run on this checkout, where it must find nothing, and on a small
tree that breaks it, where it must find the breach.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("shmstore", "producer", "consumer")
LONGEST = {**dict.fromkeys((*PACKAGES, "scripts"), 450), "tests": 600}  # lines

# What producer and consumer may import from shmstore: its public names, and these modules whole.
PUBLIC_MODULES = ("arrow", "codec", "durable", "errors", "event", "gtids", "layout", "start")

# Third-party package -> the one file or folder that may import it. What is not here may not be imported.
OWNERS = {
    "numpy": ("shmstore/", "producer/", "consumer/"),
    "multiprocessing.shared_memory": ("shmstore/segment.py",),  # of the standard library, but with an owner all the same
    "msgspec": ("shmstore/codec.py",),
    "msgpack": ("shmstore/codec.py",),
    "pymysql": ("producer/binlog.py",),
    "pymysqlreplication": ("producer/binlog.py",),
    "cryptography": ("producer/binlog.py",),
    "zstandard": ("producer/compression.py",),
    "pyspark": ("consumer/spark/",),
    "py4j": ("consumer/spark/",),
    "pyarrow": ("shmstore/arrow.py", "shmstore/frame.py", "consumer/spool.py", "consumer/spark/"),
    "pandas": ("consumer/spark/",),
    "deltalake": ("consumer/spark/",),
    "google": ("consumer/wire/",),
}

# Pure parts: arithmetic on buffers and bytes. No lock, clock, socket or log.
PURE = ("shmstore/ring.py", "shmstore/layout.py", "shmstore/codec.py", "consumer/wire/protocol.py", "consumer/wire/frame.py")
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

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}" + (f" ({', '.join(self.names)})" if self.names else "")


def modules(root: Path, folders: tuple[str, ...] = PACKAGES) -> Iterator[tuple[str, ast.Module]]:
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            yield path.relative_to(root).as_posix(), ast.parse(path.read_text(encoding="utf-8"), str(path))


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
                module = ".".join([*parts, *filter(None, [node.module])])
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
    """producer -> shmstore <- consumer; cli.py alone knows all three, and imports them inside its commands."""
    breaches = []
    for found in imports(root):
        own = found.file.partition("/")[0]
        if found.top not in PACKAGES or found.top == own or (own != "shmstore" and found.top == "shmstore"):
            continue
        if found.file == "shmstore/cli.py":
            if not found.late:
                breaches.append(f"{found} outside a function")
        else:
            breaches.append(str(found))
    return breaches


def public_names_only(root: Path) -> list[str]:
    """producer and consumer use shmstore's public names, or its modules arrow, codec, durable, errors, event, gtids, layout and start."""
    public, breaches = public_names(root), []
    for found in imports(root):
        if found.top != "shmstore" or found.file.startswith("shmstore/"):
            continue
        if found.module == "shmstore":
            private = [name for name in found.names if name not in public and name not in PUBLIC_MODULES]
        elif found.module.split(".")[1] in PUBLIC_MODULES:
            private = [name for name in found.names if name.startswith("_")]
        else:
            private = [found.module]
        if private:
            breaches.append(f"{found}: not public: {', '.join(private)}")
    return breaches


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
    return [str(found) for found in imports(root) if found.file in PURE and found.top in IMPURE]


def short_files(root: Path) -> list[str]:
    """No module of packages and scripts is longer than 450 lines, no test file than 600; generated files apart."""
    breaches = []
    for folder, longest in LONGEST.items():
        for path in sorted((root / folder).rglob("*.py")):
            lines = len(path.read_text(encoding="utf-8").splitlines())
            if lines > longest and not path.name.endswith("_pb2.py"):
                breaches.append(f"{path.relative_to(root)}: {lines} lines, {longest} at most")
    return breaches


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
    short_files,
    plain_names,
    docstrings,
]

# ---- this checkout


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_holds(rule: Callable[[Path], list[str]]) -> None:
    """The rule finds no breach in this checkout, and looks at a tree that is really there."""
    assert len(list(modules(ROOT))) > 20
    breaches = rule(ROOT)
    assert not breaches, f"{rule.__doc__}\n  " + "\n  ".join(breaches)


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
    "msgpack",
    "producer",
    "consumer",
]


def import_without(blocked: list[str], statement: str) -> subprocess.CompletedProcess[str]:
    code = f"""
        import sys
        sys.path.insert(0, {str(ROOT)!r})
        class Blocked:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {blocked!r}:
                    raise ImportError(f"blocked: {{name}}", name=name)
        sys.meta_path.insert(0, Blocked())
        {statement}
    """
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)


@pytest.mark.parametrize(
    "statement", ["import shmstore; [getattr(shmstore, name) for name in shmstore.__all__]", "import shmstore.cli"]
)
def test_store_needs_no_extra(statement: str) -> None:
    """`import shmstore`, each of its names, and its command line load without any extra and without the other two packages."""
    done = import_without(EXTRAS, statement)
    assert done.returncode == 0, done.stderr


def test_the_command_line_loads_quickly() -> None:
    """The command line explains itself without numpy, which takes longer to load than all the rest."""
    done = import_without(["numpy", "msgspec"], "from shmstore.cli import main; main(['tail', '--help'])")
    assert done.returncode == 0, done.stderr
    assert "--follow" in done.stdout


def test_blocking_blocks() -> None:
    """The hook of the test above really keeps a package out."""
    done = import_without(["numpy"], "from shmstore import EventStore")
    assert done.returncode != 0
    assert "blocked: numpy" in done.stderr


# ---- trees that break the rules

BREAKING = [
    (packages_stay_apart, "producer/a.py", "from consumer.local import Consumer"),
    (packages_stay_apart, "consumer/spark/a.py", "import producer.rows"),
    (packages_stay_apart, "consumer/a.py", "def f():\n    from producer import rows"),
    (packages_stay_apart, "shmstore/store.py", "def f():\n    import consumer"),
    (packages_stay_apart, "shmstore/cli.py", "from producer.rows import x"),
    (packages_stay_apart, "shmstore/cli.py", "if CHECKING:\n    from producer import rows"),
    (packages_stay_apart, "producer/a.py", "if TYPE_CHECKING:\n    from consumer import local"),
    (public_names_only, "producer/a.py", "from shmstore.ring import Ring"),
    (public_names_only, "consumer/a.py", "import shmstore.segment"),
    (public_names_only, "consumer/a.py", "from shmstore import ring"),
    (public_names_only, "consumer/a.py", "from shmstore import Hidden"),
    (public_names_only, "consumer/a.py", "from shmstore.codec import _pack"),
    (third_party_owners, "shmstore/store.py", "import posix_ipc"),  # nobody's
    (third_party_owners, "shmstore/store.py", "import msgspec"),
    (third_party_owners, "shmstore/store.py", "from multiprocessing import shared_memory"),
    (third_party_owners, "producer/rows.py", "import pymysql.cursors"),
    (third_party_owners, "consumer/local.py", "import msgspec"),
    (third_party_owners, "consumer/local.py", "from google.protobuf import message"),
    (third_party_owners, "consumer/local.py", "def f():\n    import pyspark"),
    (third_party_owners, "consumer/local.py", "import requests"),
    (pure_parts, "shmstore/ring.py", "import time"),
    (pure_parts, "consumer/wire/protocol.py", "from socket import socket"),
    (short_files, "tests/test_a.py", "\n" * 601),
    (short_files, "scripts/a.py", "\n" * 451),
    (short_files, "shmstore/a.py", "\n" * 451),
    (plain_names, "shmstore/a.py", "class StoreManager: ..."),
    (plain_names, "shmstore/a.py", "class HTTPBase: ..."),
    (plain_names, "shmstore/a.py", "def f():\n    class RowData: ..."),
    (plain_names, "producer/row_utils.py", ""),
    (plain_names, "producer/helpers/__init__.py", ""),
    (docstrings, "consumer/a.py", "x = 1"),
    (docstrings, "tests/test_a.py", "x = 1"),
]


@pytest.mark.parametrize(("rule", "file", "source"), BREAKING)
def test_rule_can_fail(rule: Callable[[Path], list[str]], file: str, source: str, tmp_path: Path) -> None:
    """The rule names the file that breaks it."""
    place = tmp_path / file
    place.parent.mkdir(parents=True)
    place.write_text(source)
    breaches = rule(tmp_path)
    assert len(breaches) == 1
    assert breaches[0].startswith(file)


def test_allowed_is_allowed(tmp_path: Path) -> None:
    """What the rules allow breaks none of them: relative imports, public names, the command line's late imports, Spark's words."""
    sources = {
        "shmstore/__init__.py": '"""Doc."""\nfrom .store import EventStore\n__all__ = ["EventStore"]',
        "shmstore/cli.py": '"""Doc."""\ndef f():\n    import consumer\nif TYPE_CHECKING:\n    import producer',
        "shmstore/codec.py": '"""Doc."""\nimport msgspec\nfrom . import layout',
        "producer/a.py": '"""Doc."""\nfrom shmstore import EventStore, codec\nfrom shmstore.layout import SLOT\nimport numpy as np',
        "consumer/spark/a.py": '"""Doc."""\nfrom ..local import Consumer\nfrom pyspark.sql import x\nclass ShmDataSource: ...',
        "consumer/wire/b.py": '"""Doc."""\nfrom google.protobuf import message',
        "consumer/database.py": '"""Doc."""\nimport time',
    }
    for file, source in sources.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(source)
    assert [breach for rule in RULES for breach in rule(tmp_path)] == []
