"""What an installed shmstore brings: command, extras, names, types, version."""

from __future__ import annotations

import ast
import importlib
import os
import re
import runpy
import subprocess
import sys
import tomllib
import warnings
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from setuptools import find_packages

from shmstore import Batch, Consumer, EventStore, Subscription
from shmstore.native import MODULES

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def requirement(text: str) -> str:
    return re.match(r"[A-Za-z0-9._-]+", text)[0].lower().replace("_", "-")  # type: ignore[index]


def test_command() -> None:
    """The console command is installed and explains itself; a wrong call is one line and exit code 2, not a traceback."""
    command = Path(sys.executable).parent / "shmstore"
    done = subprocess.run([command, "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "usage: shmstore" in done.stdout
    for verb in ("produce", "tail", "ls", "stat", "rm"):
        assert re.search(rf"\b{verb}\b", done.stdout), f"--help does not name {verb}"
    wrong = subprocess.run([command, "no-such-command"], capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr


def test_version_is_the_same_everywhere() -> None:
    """pyproject.toml, the installed package, the command line and the top of CHANGELOG.md agree."""
    changes = re.findall(r"^## \[?(\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert changes, "CHANGELOG.md has no heading like '## 0.1.0'"
    assert changes[0] == PROJECT["version"]
    assert metadata.version("shmstore") == PROJECT["version"]
    command = Path(sys.executable).parent / "shmstore"
    said = subprocess.run([command, "--version"], capture_output=True, text=True)
    assert said.returncode == 0
    assert PROJECT["version"] in said.stdout


def test_extras() -> None:
    """The extras exist, and `all` is every one that a user needs, but for ducklake, which keeps DuckDB at an older release."""
    extras = PROJECT["optional-dependencies"]
    assert {"mysql", "spark", "server", "all", "dev"} <= set(extras)
    named = re.fullmatch(r"shmstore\[([a-z,]+)\]", extras["all"][0])
    assert named
    assert set(named[1].split(",")) == set(extras) - {"all", "dev", "ducklake"}
    assert set(metadata.metadata("shmstore").get_all("Provides-Extra") or []) == set(extras)


def test_pyspark_does_not_warn_of_the_pandas_that_comes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra `spark` leaves out the releases of pandas of which the installed pyspark says at each start that it cannot use them."""
    import pandas
    from pyspark.sql.pandas.utils import require_minimum_pandas_version

    (wanted,) = [one for one in map(Requirement, PROJECT["optional-dependencies"]["spark"]) if one.name == "pandas"]
    warned = []
    for release in ("2.2.0", "2.3.3", "3.0.0", "3.1.1"):
        monkeypatch.setattr(pandas, "__version__", release)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            require_minimum_pandas_version()
        warned += [release] * bool(caught)
    assert not [release for release in warned if wanted.specifier.contains(release)]
    assert wanted.specifier.contains("2.2.0")


@pytest.mark.parametrize("version", ["4.0.0", "4.0.2", "4.1.4", "4.2.1", "4.3.0"])
def test_a_pyspark_that_is_there_stays(version: str) -> None:
    """Installing with the extra `spark` replaces no pyspark that the source runs on, nor the py4j that it wants."""
    wanted = [Requirement(text) for text in PROJECT["optional-dependencies"]["spark"]]
    assert [one.specifier.contains(version) for one in wanted if one.name == "pyspark"] == [True]
    assert [one.specifier.contains("0.10.9.7") for one in wanted if one.name == "py4j"] == [True]


# import name -> distribution, where they differ
DISTRIBUTIONS = {
    "google": "protobuf",
    "posix_ipc": "posix-ipc",
    "pymysqlreplication": "mysql-replication",
    "pymysql": "mysql-replication",
}


@pytest.mark.parametrize(
    ("folder", "extras"),
    [
        ("shmstore", ("arrow",)),
        ("producer", ("mysql",)),
        ("consumer/spark", ("spark", "delta")),
        ("consumer/wire", ("server", "zookeeper")),
        ("consumer/live", ("top",)),
    ],
)
def test_every_import_is_declared(folder: str, extras: tuple[str, ...]) -> None:
    """What a package imports is among the dependencies, or in the extras that are for it."""
    declared = {requirement(text) for text in PROJECT["dependencies"]}
    for extra in extras:
        declared |= {requirement(text) for text in PROJECT["optional-dependencies"].get(extra, [])}
    imported = set()
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                imported.add(node.module.partition(".")[0])
    foreign = {name for name in imported if name not in sys.stdlib_module_names} - {"shmstore", "producer", "consumer"}
    wanted = {DISTRIBUTIONS.get(name, name) for name in foreign}
    assert wanted, f"{folder} imports nothing foreign: is it there?"
    assert wanted <= declared, f"{folder} imports {sorted(wanted - declared)}, declared nowhere"


@pytest.mark.parametrize("package", ["shmstore", "shmstore.producer", "shmstore.consumer", "shmstore.consumer.spark"])
def test_public_names(package: str) -> None:
    """`__all__` is a written-out, sorted list of names that are there; the package is typed and documented."""
    source = (ROOT / package.replace(".", "/") / "__init__.py").read_text()
    lists = [
        ast.literal_eval(node.value)
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)
    ]
    assert len(lists) == 1, f"{package} has no __all__ of its own"
    names = lists[0]
    # Constants, classes, functions: the order of `ruff check --select RUF022`.
    assert names == sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    module = importlib.import_module(package)
    assert [name for name in names if not hasattr(module, name)] == []
    visible = {
        name for name in vars(module) if not name.startswith("_") and getattr(vars(module)[name], "__module__", "") != "typing"
    }
    modules = {name for name in visible if type(vars(module)[name]).__name__ == "module"}
    assert visible - modules - set(names) == set(), "imported, but neither in __all__ nor private"
    assert (ROOT / "shmstore" / "py.typed").exists()
    assert module.__doc__


@pytest.mark.parametrize("name", ["producer", "consumer"])
def test_the_folders_are_no_packages_of_their_own(name: str) -> None:
    """`producer` and `consumer` are imported as shmstore.producer and shmstore.consumer: the checkout's folders say so."""
    done = subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1
    assert done.stderr.endswith(f"ImportError: import shmstore.{name} instead of {name}\n")


def test_an_installation_without_a_compiler_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What cannot be compiled is left out, and named on a line that says what it costs and what to do."""
    from setuptools import Distribution, Extension

    found = runpy.run_path(str(ROOT / "setup.py"))
    (tmp_path / "broken.c").write_text("this is not C\n")
    broken = Extension("shmstore.native.hot", [str(tmp_path / "broken.c")], optional=True)
    command = found["BuildAndWarn"](Distribution({"ext_modules": [broken]}))
    command.build_temp = command.build_lib = str(tmp_path)
    command.ensure_finalized()
    command.run()
    assert "warning: shmstore: shmstore.native.hot could not be compiled, so pure Python runs" in capfd.readouterr().err


def test_what_is_installed() -> None:
    """Two names come into site-packages, and every folder with an `__init__.py` is found, so that a wheel is whole."""
    find = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    found = find_packages(str(ROOT), include=find["include"])
    assert {package.partition(".")[0] for package in found} == {"shmstore", "pyspark_shmstore"}
    there = {
        path.parent.relative_to(ROOT).as_posix().replace("/", ".")
        for name in ("shmstore", "producer", "consumer", "pyspark_shmstore")
        for path in (ROOT / name).rglob("__init__.py")
    }
    assert {f"shmstore.{name}" if name.startswith(("producer", "consumer")) else name for name in there} == set(found)


def test_what_is_compiled() -> None:
    """Every Cython module is named where wheels and `pure Python runs` look, is compiled by an installation, and is in the source distribution."""
    built = {
        path.with_suffix("").relative_to(ROOT).as_posix()
        for path in ROOT.glob("[!.]*/**/*.pyx")
        if "build" not in path.parts[:-1] and path.relative_to(ROOT).parts[0] != "scripts"  # what a bench builds for itself
    }
    there = {name.removeprefix("shmstore/") for name in built}
    assert there == set(MODULES)
    sources = set(re.findall(r'"([\w/]+)\.pyx"', (ROOT / "setup.py").read_text()))
    assert {name.removeprefix("shmstore/") for name in sources} == there
    included = re.findall(r"recursive-include (\S+) \*\.pyx", (ROOT / "MANIFEST.in").read_text())
    assert {name.rpartition("/")[0] for name in sources} == set(included)


def test_the_clone_hides_nothing_from_a_program_next_to_it(tmp_path: Path) -> None:
    """A user's program that runs in the folder into which shmstore was cloned imports the package, and not the clone's own folder."""
    (tmp_path / "shmstore").symlink_to(ROOT)
    program = tmp_path / "program.py"
    program.write_text("from shmstore import Consumer, EventStore\nfrom shmstore.producer import Settings\n")
    done = subprocess.run(
        [sys.executable, program], cwd=tmp_path, env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


STORE = (
    "ack_point_until attach attach_again batch_mode behind_ring capacity check claim clear close create cursor_at ddl_isolation epoch find "
    "first_position has_log heartbeat home home_of in_use is_own last_ack_point latest_event latest_position limit_bytes lost may_produce "
    "memory_unit name names newest of_group oldest open_transaction pause peek put put_cursor put_encoded read removed resize resume seek slots source "
    "start_position stat subscribe subscriptions sync trim undo_create unlink unsubscribe"
)
SUBSCRIPTION = "ack ack_cursor advance close get get_cursor interrupt lag_events may_write paused rollback save_checkpoint seek"
BATCH = (
    "ack_point copy ends ends_transaction events first generation id last of oversized payloads position position_of raw rows select sequences slots "
    "to_arrow verify"
)
CONSUMER = "ack attach_again close events resume rollback seek stop sync"


@pytest.mark.parametrize(
    ("kind", "names"), [(EventStore, STORE), (Subscription, SUBSCRIPTION), (Batch, BATCH), (Consumer, CONSUMER)]
)
def test_what_is_public_is_meant_to_be(kind: type, names: str) -> None:
    """The names without an underscore are the API; what only the parts of a store call of each other is none of it."""
    assert sorted(name for name in dir(kind) if not name.startswith("_")) == names.split()
