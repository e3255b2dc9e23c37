"""Where the producer's options come from: flags, environment variables and the TOML file.

An option `read_timeout` is the flag ``--read-timeout``, the variable ``SHMSTORE_READ_TIMEOUT`` and the TOML key
``read_timeout`` in ``[producer]`` (for every source) or ``[source.NAME]`` (for one). A flag wins over a variable, a
variable over the file, the file over the default. Unknown keys are refused. The password has no flag: a process list
shows flags.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import stat
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from shmstore.arguments import LOG, SECTIONS
from shmstore.errors import did_you_mean
from shmstore.producer.errors import SettingsError
from shmstore.producer.settings import GROUPS, SECRETS, Settings

PREFIX = "SHMSTORE_"

_HINTS = typing.get_type_hints(Settings)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add every option as a flag, in `GROUPS`, and ``--config FILE`` and ``--source NAME``. What is not given is None."""
    for title, names in GROUPS.items():
        options = [Settings.__dataclass_fields__[name] for name in names.split()]
        secrets = [f"{PREFIX}{option.name.upper()}: {option.metadata['help']}" for option in options if option.name in SECRETS]
        group = parser.add_argument_group(title, "\n".join(secrets) or None)
        for option in options:
            if option.metadata["flag"]:
                _add_flag(group, option)
    group = parser.add_argument_group("Configuration file")
    group.add_argument("--config", metavar="FILE", help="TOML file of options")
    group.add_argument("--source", metavar="NAME", help="which [source.NAME] of the file; needed if it has several")


_METAVARS = {
    "binlog": "PATH",
    "row_filter": "TABLE:CONDITION",
    "rename": "'PATTERN -> TABLE'",
    "rename_origin": "COLUMN",
    "start": "WHERE",
    "operations": "KINDS",
    "state": "DIR",
    "password_command": "CMD",
    "on_problem": "CMD",
} | dict.fromkeys(("tls_ca", "tls_cert", "tls_key", "store_path"), "FILE")


def _add_flag(group: argparse._ArgumentGroup, option: dataclasses.Field[Any]) -> None:
    flag, kind, choices = "--" + option.name.replace("_", "-"), _HINTS[option.name], option.metadata["choices"] or None
    shown = ",".join(option.default) if isinstance(option.default, tuple) else option.default
    if type(shown) is float:
        shown = f"{shown:g}"
    help_ = option.metadata["help"].replace("%", "%%") + (f" (default: {shown})" if shown not in ("", False) else "")
    if kind is bool:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=help_)
    elif kind in (int, float):
        group.add_argument(flag, type=kind, metavar="SECONDS" if kind is float else "N", help=help_)
    elif kind is str:
        metavar = None if choices else _METAVARS.get(option.name, option.name.rpartition("_")[2].upper())
        group.add_argument(flag, choices=choices, metavar=metavar, help=help_)
    else:
        group.add_argument(flag, action="append", metavar=_METAVARS.get(option.name, "PATTERN"), help=help_)


def load_settings(
    *,
    flags: Mapping[str, Any] | None = None,
    config: str | os.PathLike[str] | None = None,
    source: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Return the settings of one source. Raises `SettingsError`."""
    flags = flags or {}
    return _choose(_read(config or flags.get("config")), source or flags.get("source"), flags, environ)


def load_all(
    *,
    flags: Mapping[str, Any] | None = None,
    config: str | os.PathLike[str] | None = None,
    source: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> list[Settings]:
    """Return the settings of `source`, or of every ``[source.NAME]`` of the file, or of the one that a file without any
    describes. Raises `SettingsError`.

    Sources of one store are a group: the options of the store must be the same for each.
    """
    flags = flags or {}
    tables, source = _read(config or flags.get("config")), source or flags.get("source")
    names = [source] if source is not None else list(tables.get("source", {})) or [None]
    found = [_choose(tables, name, flags, environ) for name in names]
    for other in tables.get("source", {}) if source is not None else ():
        if other != source and (store := _choose(tables, other, flags, environ).store) == found[0].store:
            raise SettingsError(f"source {source!r} shares store {store!r} with {other!r}: run them together, without --source")
    for store in {settings.store for settings in found}:
        _require_alike([settings for settings in found if settings.store == store])
    return found


def _choose(
    tables: Mapping[str, Any], source: str | None, flags: Mapping[str, Any], environ: Mapping[str, str] | None
) -> Settings:
    sources = tables.get("source", {})
    if source is None and len(sources) > 1:
        raise SettingsError(f"the file has several sources: say which with --source ({', '.join(sorted(sources))})")
    if source is None and sources:
        (source,) = sources
    if source is not None and source not in sources:
        raise SettingsError(f"the file has no [source.{source}]; it has {', '.join(sorted(sources)) or 'none'}")
    return _settle(tables, source, flags, os.environ if environ is None else environ)


def _require_alike(group: list[Settings]) -> None:
    first, seen = group[0], set()
    for one in group:
        if one.name in seen:
            raise SettingsError(
                f"store {one.store!r} has two sources named {one.name!r}: leave name out, or give each its own, by which a restarted producer finds it"
            )
        seen.add(one.name)
        for option in _OF_STORE:
            ours, other = getattr(first, option), getattr(one, option)
            if ours != other:
                raise SettingsError(
                    f"{option} is {ours!r} in source {first.name!r} and {other!r} in {one.name!r}, which share store {one.store!r}: give both the same, "
                    "best in [producer]"
                )


_OF_STORE = (
    *("state", "merge_wait", "store_path", "store_group", "store_checksum", "capacity", "memory_unit"),
    *("batch_mode", "ddl_isolation", "log", "log_keep", "log_size", "lag", "evict_after"),
)


_SECTIONS = ("producer", "source", *SECTIONS, LOG)  # the first two are read here, the others by their commands


def _read(config: str | os.PathLike[str] | None) -> dict[str, Any]:
    if config is None:
        return {}
    try:
        with open(config, "rb") as file:
            tables = tomllib.load(file)
            mode = os.fstat(file.fileno()).st_mode
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"config {os.fspath(config)!r} cannot be read: {error}") from error
    for key in tables:
        if key not in _SECTIONS:
            raise SettingsError(f"config: [{key}] is unknown{did_you_mean(key, _SECTIONS)}")
    if not isinstance(tables.get("producer", {}), dict):
        raise SettingsError("config: write the options for every source under [producer]")
    sources = tables.get("source", {})
    if not isinstance(sources, dict) or not all(isinstance(table, dict) for table in sources.values()):
        raise SettingsError("config: write each source as [source.NAME]")
    given = {key for table in (tables.get("producer", {}), *sources.values()) for key in table}
    if mode & stat.S_IROTH and (secrets := [name for name in SECRETS if name in given]):
        where = os.fspath(config)
        logging.getLogger("producer").warning(
            "config %r holds %s and every user of this host may read it: chmod o-r %s, or set %s instead",
            *(where, " and ".join(secrets), where, " and ".join(PREFIX + name.upper() for name in secrets)),
        )
    return tables


def _settle(tables: Mapping[str, Any], source: str | None, flags: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    names = [option.name for option in fields(Settings)]
    values: dict[str, Any] = {} if source is None else {"store": source, "name": source}
    for where, table in (
        ("producer", tables.get("producer", {})),
        (f"source.{source}", tables.get("source", {}).get(source, {})),
    ):
        for key, value in table.items():
            if key not in names:
                raise SettingsError(f"config: {key!r} in [{where}] is unknown{did_you_mean(key, names)}")
            values[key] = _typed(key, value, f"config [{where}]")
    for name in names:
        variable = PREFIX + name.upper()
        if name != "state" and environ.get(variable):
            values[name] = _typed(name, environ[variable], variable)
        if flags.get(name) is not None:
            values[name] = _typed(name, flags[name], "--" + name.replace("_", "-"))
    return Settings(**values)


def _typed(name: str, value: Any, where: str) -> Any:
    """Return `value` as the type of option `name`; text is read, other types must fit."""
    kind = _HINTS[name]
    try:
        if isinstance(kind, types.GenericAlias):
            parts = [value] if isinstance(value, str) else list(value)
            if not all(isinstance(part, str) for part in parts):
                raise ValueError
            return tuple(p.strip() for part in parts for p in part.split(",")) if name == "operations" else tuple(parts)
        if kind is bool and isinstance(value, str):
            return {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}[
                value.lower()
            ]
        if kind is float and type(value) in (int, float, str):
            return float(value)
        if kind is int and type(value) in (int, str):
            return int(value)
        if type(value) is kind:
            return value
    except (ValueError, TypeError, KeyError):
        pass
    wanted = (
        "a list of strings"
        if isinstance(kind, types.GenericAlias)
        else {bool: "true or false", str: "text"}.get(kind, "a number")
    )
    shown = "the value" if not Settings.__dataclass_fields__[name].metadata["flag"] else repr(value)
    raise SettingsError(f"{where}: {name} is {shown}; it must be {wanted}")
