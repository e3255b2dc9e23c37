"""What a command imports before it does what it is for: the time of a short one is that of its imports."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from shmstore import EventStore
from shmstore.cli.command_line import MODULES, commands

SHOWS = """
import atexit, json, os, sys, threading
def show():
    foreign = len(os.listdir("/proc/self/task")) - threading.active_count()
    print("\\n" + json.dumps({"modules": sorted(sys.modules), "threads": foreign}))
atexit.register(show)
from shmstore.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
NEVER = {
    "asyncio",
    "multiprocessing",
    "concurrent.futures",
    "importlib.metadata",
    "pyarrow",
    "pandas",
    "google.protobuf",
    "ssl",
    "http.client",
}
OF_SERVERS = {"pymysql", "pymysqlreplication", "shmstore.producer.connection", "shmstore.producer.transactions"}
TO_READ = {"numpy", "msgpack", "posix_ipc", "ctypes", "shmstore.memory", "shmstore.encoding"}
TO_RESTORE = {
    "shmstore.log.keeper",
    "shmstore.log.recovery",
    "shmstore.home.kinds",
    "shmstore.home.snapshots",
    "secrets",
    "hashlib",
}


def loaded(*words: str) -> tuple[set[str], int]:
    """The modules that `shmstore WORDS` has imported when it ends, and how many threads it has then that Python did not start."""
    done = subprocess.run([sys.executable, "-c", SHOWS, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return set(found["modules"]), found["threads"]


def of_numpy() -> set[str]:
    """What numpy itself imports, which differs between its releases."""
    done = subprocess.run(
        [sys.executable, "-c", "import numpy, sys; print(*sys.modules)"], capture_output=True, text=True, timeout=120
    )
    return set(done.stdout.split())


def own_commands(modules: set[str]) -> set[str]:
    return {name.rpartition(".")[2] for name in modules if name.startswith("shmstore.cli.commands.")}


@pytest.mark.parametrize("words", ["stat", "check", "ls"])
def test_looking_at_a_store_loads_what_reads_it(name: str, words: str) -> None:
    """Neither what reads servers nor what writes or restores a log, no other command, and no thread of numpy's is there."""
    with EventStore.create(name):
        modules, threads = loaded(words, *[name] * (words != "ls"))
    assert "numpy" in modules
    assert not modules & (NEVER | OF_SERVERS | TO_RESTORE) - of_numpy()
    assert not [each for each in modules if each.startswith(("shmstore.producer", "shmstore.consumer"))]
    assert own_commands(modules) == {"stores"}
    assert threads == 0


@pytest.mark.parametrize("words", ["--version", "--help", "stat --help", "tail --help", "serve --help", "log --help"])
def test_help_loads_no_store(words: str) -> None:
    """A command explains itself without what reads a store or a server."""
    modules, _ = loaded(*words.split())
    assert not modules & (NEVER | OF_SERVERS | TO_READ)
    first = words.split()[0]
    assert (
        own_commands(modules) == set(MODULES)
        if first.startswith("-")
        else {name for name, has in MODULES.items() if first in has}
    )


@pytest.mark.parametrize("words", ["produce", "run", "doctor", "verify", "init"])
def test_the_options_of_a_producer_load_no_producer(words: str) -> None:
    """Options that follow from the producer's settings are shown without numpy, and without what reads a server."""
    modules, _ = loaded(words, "--help")
    assert not modules & (NEVER | OF_SERVERS | TO_READ)
    assert "shmstore.producer.settings" in modules


def test_every_command_is_in_the_table() -> None:
    """The table by which a command's module is found names the commands that the module adds, in their order."""
    every = commands().by_name
    assert list(dict.fromkeys(name.split()[0] for name in every)) == [name for has in MODULES.values() for name in has]
    for has in MODULES.values():
        for name in has:
            alone = commands([name]).by_name
            assert {each.split()[0] for each in alone} == set(has)
            for each, sub in alone.items():
                assert sub.get_default("run") is every[each].get_default("run")
