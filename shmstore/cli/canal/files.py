"""The files that a conversion is written into: ``OUT/STORE/shmstore.toml``, and next to it those with secrets, and the report."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shmstore.cli.canal.configuration import CanalDestination, read_folder
from shmstore.cli.canal.conversion import KINDS, Conversion
from shmstore.cli.canal.mapping import convert
from shmstore.cli.config_file import CONFIG
from shmstore.cli.values import toml
from shmstore.errors import did_you_mean
from shmstore.units import printable


def conversions(folder: str, out: Path, given: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> list[Conversion]:
    """Return every destination in Canal's folder `folder`, converted; `given` are options of the producer that win. Nothing is written.

    Raises ValueError and `SettingsError`, which name the destination.
    """
    found: dict[str, Conversion] = {}
    for source in read_folder(folder, environ):
        try:
            made = _converted(source, out, given)
        except ValueError as error:
            raise ValueError(f"destination {source.name!r}: {error}") from error
        if made.store in found:
            raise ValueError(
                f"destinations {found[made.store].source.name!r} and {source.name!r} would both be store {made.store!r}"
            )
        found[made.store] = made
    served = {each.source.name: each.store for each in found.values() if each.serves}
    for made in found.values():
        if made.serves:  # Canal has one server for all
            made.put("serve", "stores", [name if name == store else f"{name}={store}" for name, store in served.items()])
    return list(found.values())


def _converted(source: CanalDestination, out: Path, given: Mapping[str, Any]) -> Conversion:
    from shmstore import producer

    made = Conversion(source, (out / Conversion(source, out).store).resolve())
    convert(made)
    options = made.sections["source"] | {name: value for name, value in given.items() if value is not None}
    options.pop("store", None)
    made.sections["source"] = options
    producer.Settings(store=made.store, name=made.store, **{name: _fixed(value) for name, value in options.items()})
    return made


def _fixed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def text_of_file(made: Conversion, several: bool) -> str:
    """Return the configuration file of one destination."""
    lines = [
        f"# Canal's destination {made.source.name}, from {made.source.folder}: `shmstore run --config` reads this file, and",
        "# `shmstore config check` looks for mistakes in it. Every option of `shmstore produce --help` may be a key.",
        "",
        f"[source.{toml(made.store)}]",
    ]
    for option, value in made.sections["source"].items():
        lines += [f"# {made.remarks[option]}"] if option in made.remarks else []
        lines.append(f"{option} = {toml(value)}")
    for section in ("serve", "queue"):
        if made.sections[section]:
            shared = "  # the same in the file of each destination: start one server, with any of them"
            lines += ["", f"[{section}]{shared if section == 'serve' and several else ''}"]
            lines += [f"{option} = {toml(value)}" for option, value in made.sections[section].items()]
    return "\n".join(lines) + "\n"


def write(every: Iterable[Conversion]) -> list[Path]:
    """Write all files, none over one that is there; return those of the configuration. Raises ValueError, OSError."""
    every = list(every)
    texts = {made.folder / CONFIG: (text_of_file(made, len(every) > 1), 0o640) for made in every}
    for made in every:
        texts |= {made.folder / name: (text + "\n", 0o600) for name, text in made.secrets.items()}
    for path in texts:
        if os.path.lexists(path):
            raise ValueError(f"{path} exists already: name another folder with --output, or remove it")
    for path, (text, mode) in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
            file.write(text)
    return [made.folder / CONFIG for made in every]


def report(made: Conversion) -> str:
    """Return what became of every property of a destination, without any value."""
    from shmstore.cli.canal.mapping import RULES

    lines = [f"destination {made.source.name}: {made.folder / CONFIG}"]
    for kind, title in KINDS.items():
        names: dict[str, list[str]] = {}
        for outcome in made.outcomes:
            if outcome.kind == kind:
                likely = did_you_mean(outcome.name, [rule.name for rule in RULES]) if kind == "unknown" else ""
                names.setdefault(outcome.text + likely, []).append(outcome.name)
        lines += [f"  {title}:"] * bool(names)
        lines += [f"    {', '.join(each)}" + (f": {text}" if text else "") for text, each in names.items()]
    lines += [f"  {remark}" for remark in made.remarks.values()]
    return "\n".join(map(printable, lines))
