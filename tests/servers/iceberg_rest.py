"""A real REST catalog of Iceberg's tables: Apache's own server of the protocol (its test fixture), from its jar on Maven Central, in a JVM of its own."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.maven import jars
from tests.servers.ports import free_port
from tests.servers.process import serving

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
        "CATALOG_REST_PORT": str(port),
        "CATALOG_WAREHOUSE": str(folder / "warehouse"),
        "CATALOG_URI": f"jdbc:sqlite:{folder}/catalog.db",
    }
    command = ["java", "-Xmx300m", "-XX:TieredStopAtLevel=1", "-cp", f"{classes}/*", "org.apache.iceberg.rest.RESTCatalogServer"]
    with serving("Iceberg's REST catalog", command, folder / "log", lambda: _asked(f"{url}/v1/config"), settings):
        yield url


def _asked(url: str) -> None:
    with urllib.request.urlopen(url, timeout=10):
        pass
