"""A location for a query's checkpoint that is cheap to write: on this host's disks, without a process for each file.

Hadoop's local file system sets the mode of each file it makes, and without Hadoop's native library it starts `chmod` for that:
twice a micro-batch, a quarter of what an empty one costs. Here is the same file system with the call that Java has for it, under a
scheme of its own, so that nothing else in the session is touched. The files are the same, and a query may go from a path to
its location and back.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from shmstore.consumer.spark.replicate.java_errors import JAVA_ERRORS

SCHEME = "shmstore-local"
_PARTS = re.compile(r"(?:([A-Za-z][\w+.-]*):(?://(?=/))?)?(.*)", re.DOTALL)
_CLASS = "ShmStoreLocalFiles"
_SOURCE = f"""
public class {_CLASS} extends org.apache.hadoop.fs.RawLocalFileSystem {{
    public String getScheme() {{ return "{SCHEME}"; }}
    public java.net.URI getUri() {{ return java.net.URI.create("{SCHEME}:///"); }}
    public void setPermission(org.apache.hadoop.fs.Path path, org.apache.hadoop.fs.permission.FsPermission mode)
            throws java.io.IOException {{
        java.nio.file.Files.setPosixFilePermissions(
            pathToFile(path).toPath(),
            java.nio.file.attribute.PosixFilePermissions.fromString(mode.toString().substring(0, 9)));
    }}
}}
"""


def checkpoint_location(spark: SparkSession, folder: str | os.PathLike[str]) -> str:
    """Return what to give to ``option("checkpointLocation", ...)`` for a checkpoint in `folder`, a path on the driver's host.

    For queries without state (state is written by executors). Anything but a local path is returned as it is, and so is
    everything under Spark Connect, where the JVM is out of reach.
    """
    given = os.fspath(folder)
    scheme, path = _PARTS.fullmatch(given).groups()  # type: ignore[union-attr]
    try:
        context = spark.sparkContext
        if scheme not in (None, "file") or path.startswith("//") or not (scheme or _is_local(spark)):
            return given
        _install(context._jvm, spark)
    except (AttributeError, NotImplementedError, Py4JError, PySparkException):
        return given
    return f"{SCHEME}:{os.path.abspath(path)}"


def _is_local(spark: SparkSession) -> bool:
    """True where a path without a scheme is one of this host's."""
    session: Any = spark
    found = session._jsparkSession.sessionState().newHadoopConf().get("fs.defaultFS", "file:///")
    return str(found).startswith("file:")


def _install(jvm: Any, spark: SparkSession) -> None:
    """Create the file system unless it exists: its class is compiled by the compiler of Spark's own generated code.

    Hadoop keeps the instance for all who ask for the scheme later, so that no other class loader needs the class.
    """
    session: Any = spark
    conf, root = session._jsparkSession.sessionState().newHadoopConf(), jvm.java.net.URI.create(f"{SCHEME}:///")
    with suppress(*JAVA_ERRORS):
        jvm.org.apache.hadoop.fs.FileSystem.get(root, conf)
        return
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(_SOURCE)
    conf.setClassLoader(compiler.getClassLoader())
    conf.set(f"fs.{SCHEME}.impl", _CLASS)
    jvm.org.apache.hadoop.fs.FileSystem.get(root, conf)
