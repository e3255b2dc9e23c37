"""The parts of pages that are made from the code, and written into the Markdown, so that a page is whole wherever it is read.

    python -m scripts.documentation.generated            write them into the pages
    python -m scripts.documentation.generated --check    change nothing; exit code 1 where a page is out of date

A part is what lies between ``<!-- generated: NAME -->``, or ``<!-- generated: NAME ARGUMENT -->``, and ``<!-- end -->``. The parts:

    producer-options     the options of `shmstore produce`, in groups        producer/settings.py
    spark-options        the options of the Spark source                     consumer/spark/options.py
    metrics              every metric with its HELP text                     consumer/monitoring/metrics.py
    serve-metrics        those of `shmstore serve`                           consumer/wire/server/metrics.py, consumer/flight/metrics.py
    canal-properties     what becomes of each of Canal's properties          shmstore/cli/canal/mapping.py
    messages CLASS       the messages of an error class                      wherever it is raised
    refusals             what the command line and the store refuse          cli/, memory/ and consumer.py
    example FORMAT       the same events as each format's documents          scripts/documentation/samples.py
    file PATH            a file of the checkout, as a block of code          the file
    names MODULE         the public names of a module, a line each           the docstrings
    api MODULE           the same, for mkdocstrings to show in full          the docstrings
    bench TABLE          recorded figures                                    scripts/documentation/measured.py, docs/bench.json
    machine              the machine that they were recorded on              docs/bench.json
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from shmstore.home.home import Home

ROOT = Path(__file__).resolve().parents[2]

MARKED = re.compile(r"^(<!-- generated: ([\w-]+)(?: (\S+))? -->)$.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    """The pages that may have generated parts."""
    return sorted((ROOT / "docs").rglob("*.md"))


def filled(markdown: str) -> str:
    """Return a page with its generated parts as they are now."""

    def part(match: re.Match[str]) -> str:
        return f"{match[1]}\n\n{PARTS[match[2]](*filter(None, [match[3]]))}\n\n<!-- end -->"

    return MARKED.sub(part, markdown)


def stale() -> list[Path]:
    """The pages whose generated parts are not as they would be made now."""
    return [path for path in pages() if filled(text := path.read_text(encoding="utf-8")) != text]


def table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines)


# ---------------------------------------------------------------- options, metrics


def producer_options() -> str:
    """The options of `shmstore produce`, a table for each group."""
    from shmstore.producer.settings import GROUPS, Settings

    options = {option.name: option for option in fields(Settings)}
    parts = []
    for title, names in GROUPS.items():
        rows = (_option_row(options[name]) for name in names.split())
        parts.append(f"### {title}\n\n{table(['option', 'default', 'what it is'], rows)}")
    return "\n\n".join(parts)


def _option_row(option: Any) -> tuple[str, str, str]:
    shown = ", ".join(option.default) if isinstance(option.default, tuple) else option.default
    default = "" if shown == "" else f"`{str(shown).lower() if isinstance(shown, bool) else shown}`"
    choices = option.metadata["choices"]
    allowed = f" one of {', '.join(f'`{choice}`' for choice in choices)}" if choices else ""
    name = f"`--{option.name.replace('_', '-')}`" if option.metadata["flag"] else f"`SHMSTORE_{option.name.upper()}`"
    return name, default, _escaped(option.metadata["help"]) + (f";{allowed}" if allowed else "")


def _escaped(text: str) -> str:
    return text.replace("*", r"\*")


def spark_options() -> str:
    """The options of the Spark source; what stands in brackets at a text's end is the default."""
    from shmstore.consumer.spark.options import HELP

    rows = []
    for name, text in HELP.items():
        about, _, default = text.rpartition(" (")
        rows.append((f"`{name}`", f"`{default.removesuffix(')')}`" if about else "", _escaped(about or text)))
    return table(["option", "default", "what it is"], iter(rows))


def canal_properties() -> str:
    """What `shmstore init --from-canal` makes of each of Canal's properties."""
    from shmstore.cli.canal.mapping import RULES

    rows = ((f"`{rule.name}`", f"`{rule.here}`" if rule.here else "left out", _escaped(rule.about)) for rule in RULES)
    return table(["Canal's property", "here", "how it differs, or what to do instead"], rows)


def metrics() -> str:
    """Every metric of `shmstore metrics` with its kind and HELP text."""
    from shmstore.consumer.monitoring.metrics import prometheus
    from shmstore.consumer.monitoring.table_counts import TableCounts
    from shmstore.event import Position
    from shmstore.home.reader_state import keep_aside
    from shmstore.ring.cursors import Cursor
    from shmstore.store.stats import LogStat, StoreStat, StreamStat, SubscriptionStat

    def made(kind: Any, **values: Any) -> Any:
        return kind(**{name: values.get(name, kind._field_defaults.get(name, 0)) for name in kind._fields})

    cursor = Cursor(*[0] * len(Cursor._fields))
    reader = made(SubscriptionStat, name="s", get=cursor, ack=cursor, state="active")
    stream = made(StreamStat, heard_ms=1, purge_ms=1)
    position = Position("binlog.000001", 4)
    texts = {"name": "s", "source": "s", "batch_mode": "MEMSIZE", "lag": "block"}
    with tempfile.TemporaryDirectory() as folder:
        keep_aside(Home.of("s", folder), "s", [])
        log = made(LogStat, home=f"{folder}/s")
        stat = made(StoreStat, **texts, put=cursor, subscriptions=(reader,), stream=stream, source_position=position, log=log)
        counts = TableCounts(0, 0)
        counts.rows["d", "t", "insert"] = counts.bytes["d", "t"] = counts.last_ms["d", "t"] = 1
        text = prometheus([stat], counts={"s": counts})
    return _metrics_in(text)


def serve_metrics() -> str:
    """Every metric of `shmstore serve`, by Canal's protocol and by Arrow Flight."""
    from shmstore.consumer.flight.metrics import FlightMetrics
    from shmstore.consumer.serving.audit import Audit
    from shmstore.consumer.wire.server.metrics import CanalMetrics

    canal, flight = CanalMetrics(), FlightMetrics(Audit())
    canal.active["s"] = True
    client = canal.client("s", "1")
    client.packets["GET"] = client.errors[1] = 1
    with flight.stream("s", ""):
        flight.action("ack")
        flight.failed("ValueError")
    return _metrics_in(canal.exposition() + flight.exposition(["s"]))


def _metrics_in(text: str) -> str:
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    found = re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE)
    return table(["metric", "kind", "what it is"], ((f"`{name}`", kinds[name], about) for name, about in found))


# ---------------------------------------------------------------- messages


def messages(name: str) -> str:
    """The messages of an error class as a list, with … where a value stands."""
    found = sorted({message for _, error, message in _raised() if error == name})
    return "\n".join(f"- `{message}`" for message in found)


@lru_cache(maxsize=1)
def _raised() -> list[tuple[str, str, str]]:
    """(file, what is called, its first argument as text) of each call with a text: those of error classes are messages."""
    found = []
    for folder in ("shmstore", "producer", "consumer"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.relative_to(ROOT).parts[:2] in (("shmstore", "producer"), ("shmstore", "consumer")):
                continue  # a link to the folder of that name
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute) and node.args:
                    name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
                    text = re.sub(r"(… ?)+(?=…)", "", _text(node.args[0])).replace("`", "'").strip()
                    if len(text.replace("…", "").strip()) > 3:
                        found.append((path.relative_to(ROOT).as_posix(), name, " ".join(text.split())))
    return found


_REFUSE = ("shmstore/cli", "shmstore/memory/create_options.py", "shmstore/memory/segment.py", "consumer/consumer.py")


def refusals() -> str:
    """The messages of ValueErrors that a user's input may raise."""
    found = {
        message for path, name, message in _raised() if name in ("ValueError", "ArgumentTypeError") and path.startswith(_REFUSE)
    }
    return "\n".join(f"- `{message}`" for message in sorted(found))


def _text(node: ast.expr) -> str:
    """The text of a literal or an f-string; … for whatever is computed."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(value) if isinstance(value, ast.Constant) else "…" for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return "…"


def example(format: str) -> str:
    """The documents of `samples` in one format."""
    from scripts.documentation.samples import shown

    return shown(format)


def file(path: str) -> str:
    """A file of the checkout as a block of Python."""
    return f'```python title="{path}"\n{(ROOT / path).read_text(encoding="utf-8").rstrip()}\n```'


def names(module: str) -> str:
    """The public names of a module, each with the first sentence of its docstring and a link to its source."""
    found = importlib.import_module(module)
    rows = []
    for name in sorted(found.__all__, key=str.lower):
        value = getattr(found, name)
        documented = value if inspect.isclass(value) or callable(value) else type(value)
        about = (inspect.getdoc(documented) or "") if documented.__module__.startswith("shmstore") else ""
        rows.append((f"`{name}`", " ".join(re.split(r"\n\n|(?<=\.)\s", about.strip())[0].split())))
    return table(["name", "what it is"], iter(rows))


def api(module: str) -> str:
    """What mkdocstrings puts on the built site: each public name where it is defined."""
    found = importlib.import_module(module)
    places = ((name, getattr(getattr(found, name), "__module__", None)) for name in sorted(found.__all__, key=str.lower))
    return "\n".join(f"::: {place}.{name}" for name, place in places if place and place.startswith("shmstore."))


def bench(name: str) -> str:
    """A table of recorded figures."""
    from scripts.documentation.measured import bench

    return bench(name)


def machine() -> str:
    """The machine of the recorded figures, as a sentence."""
    from scripts.documentation.measured import machine

    return f"Recorded on {machine()}."


def main() -> int:
    """Write the parts, or with --check name the pages that are out of date."""
    arguments = argparse.ArgumentParser(description="Writes the generated parts of the pages.")
    arguments.add_argument("--check", action="store_true", help="change nothing; exit code 1 where a page is out of date")
    check = arguments.parse_args().check
    for path in (found := stale()):
        if not check:
            path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: " + ("out of date: run scripts/check --fix" if check else "written"))
    return 1 if check and found else 0


PARTS: dict[str, Callable[..., str]] = {
    "producer-options": producer_options,
    "spark-options": spark_options,
    "canal-properties": canal_properties,
    "metrics": metrics,
    "serve-metrics": serve_metrics,
    "messages": messages,
    "refusals": refusals,
    "example": example,
    "file": file,
    "names": names,
    "api": api,
    "bench": bench,
    "machine": machine,
}

if __name__ == "__main__":
    sys.exit(main())
