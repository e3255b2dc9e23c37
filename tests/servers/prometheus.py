"""A Prometheus of its own, out of the system's package archive: started with a folder of rules and what to scrape, and asked."""

from __future__ import annotations

import json
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.servers.packages import unpacked
from tests.servers.ports import free_port
from tests.servers.process import serving

_CONFIG = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}}


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run promtool."""
    program = unpacked("prometheus") / "usr/bin/promtool"
    return subprocess.run([program, *arguments], capture_output=True, text=True)


class Prometheus:
    """One that runs, at `port`."""

    def __init__(self, port: int) -> None:
        self.port = port

    def get(self, path: str, **parameters: str) -> Any:
        """What the API answers."""
        url = f"http://127.0.0.1:{self.port}{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series that an expression has now. Raises `ValueError` where it is none."""
        try:
            found = self.get("/api/v1/query", query=expression)["result"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{expression}: {error.read().decode()}") from error
        return [(series["metric"], float(series["value"][1])) for series in found]


@contextmanager
def prometheus(targets: Sequence[str], rules: Path) -> Iterator[Prometheus]:
    """A Prometheus that looks at `targets` (HOST:PORT) and evaluates `rules` every second. Raises `ServerUnavailable`."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="shmstore-prometheus-") as folder:
        jobs = [{"job_name": "shmstore", "static_configs": [{"targets": list(targets)}]}]
        config = Path(folder, "prometheus.yml")  # JSON is YAML
        config.write_text(json.dumps(_CONFIG | {"rule_files": [str(rules)], "scrape_configs": jobs}))
        command = [
            *(
                str(unpacked("prometheus") / "usr/bin/prometheus"),
                f"--config.file={config}",
                f"--storage.tsdb.path={folder}/data",
            ),
            *(f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"),
        ]
        server = Prometheus(port)
        with serving("Prometheus", command, Path(folder, "log"), lambda: server.get("/api/v1/status/runtimeinfo")):
            yield server
