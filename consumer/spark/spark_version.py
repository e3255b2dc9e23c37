"""The pyspark that is installed, and what it, a session or a process of Spark's lacks: the source runs on 4.0 and later.

since    what of the Python data source API
4.0      DataSource, DataSourceStreamReader, RecordBatches out of `read`
4.1      Unix sockets between Spark and its Python processes
4.2      `latestOffset(start, limit)`, read limits, `reportLatestOffset`, `prepareForTriggerAvailableNow`
"""

from __future__ import annotations

import importlib.metadata
import re
import socket
import sys
from functools import cache


class SparkTooOld(ImportError):
    """The pyspark that is installed has no Python data sources. The message says which one is needed, and what to do instead."""


@cache
def version() -> tuple[int, int]:
    """Return the major and minor version of pyspark. Raises `ModuleNotFoundError` where there is none."""
    import pyspark

    return _numbers(pyspark.__version__)


def installed() -> str | None:
    """Return the version of the package pyspark without loading it; None where it is not installed as a package."""
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, int]:
    major, minor = re.findall(r"\d+", text)[:2]
    return int(major), int(minor)


def too_old(text: str) -> str:
    """Return the one line that says what is wrong with version `text` of pyspark and what to do; empty for one that is new enough."""
    if _numbers(text) >= (4, 0):
        return ""
    return (
        f"pyspark {text} is installed, and shmstore needs 4.0 or later, whose Python data sources it is made of: install a later one "
        "(pip install 'pyspark>=4.0'), or let another Spark keep copies that this one can read (shmstore spark replicate STORE --format parquet)"
    )


def check() -> None:
    """Raise `SparkTooOld` where the pyspark that is installed is, and `ModuleNotFoundError` where there is none."""
    import pyspark

    if text := too_old(pyspark.__version__):
        raise SparkTooOld(text)


def runs_for_spark() -> bool:
    """Whether Spark has started this process, for its planner or in an executor: its program is then one of pyspark's own modules."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


def lacks(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return what to say where a process of Spark's has no module that shmstore needs."""
    return ModuleNotFoundError(
        f"{sys.executable} on host {socket.gethostname()} has no {error.name}, which shmstore needs wherever Spark plans and runs tasks: install "
        "'shmstore[arrow]' in the Python of the driver and of the executors (PYSPARK_PYTHON), or send a packed environment with spark-submit "
        "--archives (docs/how-to/spark-cluster.md, Executors on other hosts); a zip file of Python files is not enough",
        name=error.name,
    )


def has_read_limits() -> bool:
    """Whether Spark gives a Python source the start and the limit of a micro-batch, and prepares it for Trigger.AvailableNow."""
    return version() >= (4, 2)


def is_connect(session: object) -> bool:
    """Whether a session is one of Spark Connect, which has no JVM of its own."""
    return type(session).__module__.startswith("pyspark.sql.connect.")
