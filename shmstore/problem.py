"""What went wrong in a command, as the one line that is printed of it."""

from __future__ import annotations

import errno
import os

from shmstore.errors import ShmStoreError

EXTRAS = {
    "pymysqlreplication": "mysql",
    "pymysql": "mysql",
    "cryptography": "mysql",
    "zstandard": "mysql",
    "pyspark": "spark",
    "pyarrow": "spark",
    "pandas": "spark",
    "google": "server",
    "deltalake": "delta",
}


def extra_of(module: str | None) -> str | None:
    """Return the extra of this package that brings the missing `module`; None where that is none of ours."""
    return EXTRAS.get((module or "").partition(".")[0])


def line_of(error: Exception) -> str:
    """Return what `error` says as one line; of a system's error the file, and where none is told what it may be."""
    message = str(error) or type(error).__name__
    if isinstance(error, OSError) and not isinstance(error, ShmStoreError):
        if error.filename and error.strerror:
            message = f"{os.fspath(error.filename)}: {error.strerror}"
        elif error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = (
                f"{os.strerror(error.errno)}: make room where the output, the state folder ($SHMSTORE_STATE or --state) and the "
                "files of this command are"
            )
    return "; ".join(line.strip() for line in message.splitlines() if line.strip())
