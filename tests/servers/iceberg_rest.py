"""A real REST catalog of Iceberg's tables: Apache's own server of the protocol (its test fixture), from its jar on Maven Central, in a JVM of its own."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.maven import jars
from tests.servers.packages import ServerUnavailable
from tests.servers.ports import free_port

RELEASE = "1.11.0"
_JETTY = "12.1.2"
_JARS = (
    f"org.apache.iceberg:iceberg-open-api:{RELEASE}:test-fixtures",
    f"org.apache.iceberg:iceberg-core:{RELEASE}:tests",
    f"org.apache.iceberg:iceberg-core:{RELEASE}",
    "org.apache.hadoop:hadoop-client-runtime:3.4.2",
    f"org.eclipse.jetty.ee10:jetty-ee10-servlet:{_JETTY}",
    f"org.eclipse.jetty.compression:jetty-compression-server:{_JETTY}",
    f"org.eclipse.jetty.compression:jetty-compression-gzip:{_JETTY}",
    "org.xerial:sqlite-jdbc:3.50.3.0",
)


@contextmanager
def iceberg_rest(folder: Path) -> Iterator[str]:
    """The URL of a catalog whose tables, its own list of them and its log are in `folder`. Raises `ServerUnavailable` where it cannot be had."""
    classes = jars(f"iceberg-rest-{RELEASE}", *_JARS)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    settings = {
        "REST_PORT": str(port),
        "WAREHOUSE": str(folder / "warehouse"),
        "URI": f"jdbc:sqlite:{folder}/catalog.db",
    }
    environment = {**os.environ, **{f"CATALOG_{name}": value for name, value in settings.items()}}
    with open(folder / "log", "w+") as log:
        process = subprocess.Popen(
            ["java", "-Xmx300m", "-cp", f"{classes}/*", "org.apache.iceberg.rest.RESTCatalogServer"],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        try:
            until = time.monotonic() + 120
            while not _answers(url):
                if process.poll() is not None or time.monotonic() > until:
                    log.seek(0)
                    raise ServerUnavailable(f"Iceberg's REST catalog does not start here: {log.read()[-1000:]}")
                time.sleep(0.1)
            yield url
        finally:
            process.kill()
            process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/v1/config", timeout=10):
            return True
    except OSError:
        return False
