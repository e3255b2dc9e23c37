"""Which filters are in force, and from which event of the store on: durable, in the store's home.

    STATE/STORE/filters.in-force     the present filters, and of the next ones the event from which they are in force

Order. Filters change between two transactions, when all before is in the store and on disk. First the next filters are written, with the
sequence that the event of the change will have; then that event is put; then what follows is read with them. A crash after the first step
leaves filters that are not in force, since the store does not have their event; a crash after the second one leaves them in force. So of
each event of the store it is known which filters it was read with, also where it is half of a transaction, which a restart has to read
again with the same ones. `hash_key` is a secret and is not here.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Final, NamedTuple

from shmstore import StoreError
from shmstore.home.home import Home, May
from shmstore.producer.settings import FILTERS, Settings
from shmstore.stored_json import read_json

NAME: Final = "filters.in-force"
VERSION: Final = 1

Filters = dict[str, Any]  # options by name


class TablesWanted(NamedTuple):
    """The request for a snapshot that is made once filters are in force."""

    id: str
    tables: tuple[str, ...]  # patterns


class InForce(NamedTuple):
    """Filters, and the sequence of the event from which they are in force."""

    since: int
    filters: Filters
    wanted: TablesWanted | None = None


class FiltersFile:
    """The file of one source of a store. `may`: see `Home.replace`."""

    def __init__(self, home: Home, source: str = "", may: May | None = None) -> None:
        self._home, self._may = home, may
        self.path = home.of_source(source) / NAME

    def load(self, epoch: int, newest: int, *, again: bool) -> InForce | None:
        """Return what is in force behind event `newest` of the store of `epoch`; None where nothing is known. `again`: of an earlier store of
        this name what was last in force there. Raises `StoreError` where the file cannot be read."""
        try:
            value = read_json(self.path)
            if value["version"] != VERSION:
                return None
            entries = [_entry(one) for one in value["entries"]]
            if value["epoch"] != epoch:
                return entries[-1] if again else None
            return next((one for one in reversed(entries) if one.since <= newest), None)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise StoreError(
                f"{self.path}, which has the filters of this store, cannot be read ({error}): let this user read it, or remove it: the "
                "filters of the options are then taken for those of before"
            ) from error

    def save(self, epoch: int, *entries: InForce) -> None:
        """Replace what is written by the present filters, and of the next ones. Raises `StoreError` where the disk refuses."""
        content = json.dumps({"version": VERSION, "epoch": epoch, "entries": entries}).encode()
        self._home.replace(self.path, content, "filters", self._may)


def filters_of(settings: Settings) -> Filters:
    """Return the filters of `settings`."""
    found = {name: getattr(settings, name) for name in FILTERS}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def with_filters(settings: Settings, filters: Filters) -> Settings:
    """Return `settings` with `filters` in place of its own; an option that they do not have stays. Raises `SettingsError`."""
    known = {name: value for name, value in filters.items() if name in FILTERS}
    chosen: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}
    return dataclasses.replace(settings, **chosen)


def _entry(value: Any) -> InForce:
    since, filters, wanted = value
    for name, option in filters.items():
        if not isinstance(option, str) and not (isinstance(option, list) and all(isinstance(one, str) for one in option)):
            raise ValueError(f"{name} is not text")
    return InForce(int(since), filters, TablesWanted(str(wanted[0]), tuple([str(one) for one in wanted[1]])) if wanted else None)
