"""shmstore.problem: errors as one line."""

from __future__ import annotations

import errno

import pytest

from shmstore import StoreNotFound
from shmstore.problem import extra_of, line_of


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
    told = line_of(OSError(number, "Error writing bytes to file. Detail: [errno 28] No space left on device"))
    assert "make room" in told
    assert "SHMSTORE_STATE" in told
    assert "\n" not in told


def test_missing_packages_have_an_extra() -> None:
    """A package that an extra brings is known by its module, and others are not."""
    assert [extra_of(name) for name in ("pyspark.sql", "google.protobuf", "pymysql", "somebody", None)] == [
        *("spark", "server", "mysql", None, None)
    ]
