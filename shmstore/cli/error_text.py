"""An error of a command as the one line that is printed on stderr."""

from __future__ import annotations

import errno
import os

from shmstore.errors import ShmStoreError, install

# module: its package, and the extra that installs it
EXTRAS = {
    "pymysqlreplication": ("mysql-replication", "mysql"),
    "pymysql": ("PyMySQL", "mysql"),
    "cryptography": ("cryptography", "mysql"),
    "zstandard": ("zstandard", "mysql"),
    "pyspark": ("pyspark", "spark"),
    "py4j": ("py4j", "spark"),
    "pyarrow": ("pyarrow", "arrow"),
    "pandas": ("pandas", "spark"),
    "google": ("protobuf", "server"),
    "kazoo": ("kazoo", "zookeeper"),
    "deltalake": ("deltalake", "delta"),
    "textual": ("textual", "top"),
    "rich": ("rich", "top"),
}


def missing(error: ImportError) -> str | None:
    """Return the message for a module that cannot be imported; None where no extra of this project installs it."""
    if isinstance(error.__cause__, ImportError):  # a function's own error, which says what to install
        return line_of(error)
    found = EXTRAS.get((error.name or "").partition(".")[0])
    return found and f"{found[0]} is not installed: {install(found[1])}"


def line_of(error: Exception) -> str:
    """Return the message of `error` as one line; of a system's error with the file, or which ones it may be."""
    message = str(error) or type(error).__name__
    if isinstance(error, OSError) and not isinstance(error, ShmStoreError):
        if error.filename and error.strerror:
            message = f"{os.fspath(error.filename)}: {error.strerror}"
        elif error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = (
                f"{os.strerror(error.errno)}: free some space where the output, the state folder ($SHMSTORE_STATE or --state) "
                "and the files of this command are"
            )
    return "; ".join(line.strip() for line in message.splitlines() if line.strip())
