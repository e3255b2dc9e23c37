"""shmstore.cli.error_text: errors as one line."""

from __future__ import annotations

import errno
import tomllib
from pathlib import Path

import pytest

from shmstore import StoreNotFound
from shmstore.cli.error_text import EXTRAS, line_of, missing
from shmstore.errors import install


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("one\n  two \n\nthree"), "one; two; three"),
        (ValueError(), "ValueError"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/x/y"), "/x/y: No such file or directory"),
        (StoreNotFound("no store 'a'"), "no store 'a'"),
        (ConnectionResetError(errno.ECONNRESET, "reset"), f"[Errno {errno.ECONNRESET}] reset"),
    ],
)
def test_one_line(error: Exception, line: str) -> None:
    """What an error says is one line; a system's error names its file."""
    assert line_of(error) == line


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_says_where_to_look(number: int) -> None:
    """A full disk that names no file (a stream's flush, Arrow's writer) names the places that it may be."""
    line = line_of(OSError(number, "Error writing bytes to file. Detail: [errno 28] No space left on device"))
    assert "free some space" in line
    assert "SHMSTORE_STATE" in line
    assert "\n" not in line


def test_missing_packages_have_an_extra() -> None:
    """A package that an extra brings is known by its module, called by its own name, and others are not known."""

    def said(module: str) -> str | None:
        return missing(ModuleNotFoundError(f"No module named {module!r}", name=module))

    assert said("google.protobuf") == f"protobuf is not installed: {install('server')}"
    assert said("pyspark.sql") == f"pyspark is not installed: {install('spark')}"
    assert said("pymysqlreplication") == f"mysql-replication is not installed: {install('mysql')}"
    assert said("a_package") is missing(ImportError("no name")) is None


def test_what_is_missing_can_be_installed() -> None:
    """Each package that a message calls missing is one that the extra named brings, in a checkout: no index has the project."""
    extras = tomllib.loads((Path(__file__).resolve().parents[3] / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for package, extra in EXTRAS.values():
        # PyMySQL comes with mysql-replication
        assert package == "PyMySQL" or any(wanted.startswith(package) for wanted in extras[extra])
        assert "pip install '." in install(extra)
