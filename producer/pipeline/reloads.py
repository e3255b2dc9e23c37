"""The configuration file of a process, read again while its producers run: on SIGHUP, and where `shmstore reload STORE` asks for it.

All or nothing. A file that cannot be read, has an error, or changes what needs a restart, changes nothing of any store, and the log says
why. Else each producer takes its filters at the end of its next transaction (`live_settings`), and answers.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import NamedTuple

from shmstore import EventStore, ShmStoreError
from shmstore.home.control import RELOAD, ControlFiles, Wish
from shmstore.producer.connection.session import connect
from shmstore.producer.errors import LinkLost, LoginRefused, ServerUnreachable, SettingsError
from shmstore.producer.filters.fit import unfit_row_filters
from shmstore.producer.settings import FILTERS, Settings
from shmstore.producer.snapshot.tables import VisibleTables
from shmstore.producer.stop import Stop

__all__ = ["Reloads"]

Load = Callable[[], Sequence[Settings]]

LIVE = (*FILTERS, "new_tables")  # options that change while a producer runs


class _SourceKey(NamedTuple):
    """What a source is known by while its file changes."""

    store: str
    name: str


class Reloads:
    """What the producers of one process read again. `load` reads the file as the command line did; None: there is no file."""

    def __init__(self, settings: Sequence[Settings], load: Load | None = None, log: logging.Logger | None = None) -> None:
        self._load, self._log = load, log or logging.getLogger("producer")
        self._wanted = {_source(one): one for one in settings}
        self._lock = threading.Lock()
        self._hung_up = False
        self.version = 0  # counts the times that something changed
        self._taken: dict[str, list[Wish]] = {}  # by store: they are answered once the filters are in force
        self._said: dict[str, dict[str, str]] = {}  # by store: what those of its sources report whose filters are in force

    def hang_up(self) -> None:
        """SIGHUP came: read the file again at the next look."""
        self._hung_up = True

    def wanted(self, settings: Settings) -> Settings:
        """Return what the file says now of the source of `settings`."""
        return self._wanted.get(_source(settings), settings)

    def look(self, store: EventStore, stop: Stop) -> None:
        """Take in what was asked for. Each producer calls it about once a second. Raises `StoreError` where the answer cannot be written."""
        files = ControlFiles(store.home, store.may_produce)
        with self._lock:
            waiting = self._taken.setdefault(store.name, [])
            known = {wish.id for wish in waiting}
            asked = [wish for wish in files.asked() if wish.id not in known]
            for wish in asked:
                if wish.what != RELOAD:
                    text = wish.problem or f"this producer does not know the request {wish.what!r}: it is of another version"
                    files.answer(wish, done=False, text=text)
            asked = [wish for wish in asked if wish.what == RELOAD]
            if not asked and not self._hung_up:
                return
            self._hung_up = False
            changed, refused = self._read_again(stop)
            if refused:
                self._log.error("reload: %s; nothing was changed", refused)
            elif not changed:
                self._log.info("reload: nothing changed")
            for wish in asked:
                if refused:
                    files.answer(wish, done=False, text=f"{refused}; nothing was changed")
                else:
                    waiting.append(wish)
                    self._said.pop(store.name, None)

    def in_force(self, store: EventStore, settings: Settings, version: int, text: str) -> None:
        """The filters of a source are those that the file had at `version`. Once this is so of every source of its store, answer the requests that
        wait for it. Raises `StoreError`."""
        with self._lock:
            if version != self.version or not self._taken.get(store.name):
                return
            said = self._said.setdefault(store.name, {})
            said.setdefault(settings.name, text)  # what it says at its next looks is that nothing changed since
            names = sorted(source.name for source in self._wanted if source.store == settings.store)
            if any(name not in said for name in names):
                return
            text = "; ".join(f"{name}: {said[name]}" for name in names) if len(names) > 1 else text
            for wish in self._taken.pop(store.name):
                ControlFiles(store.home, store.may_produce).answer(wish, done=True, text=text)

    def _read_again(self, stop: Stop) -> tuple[list[_SourceKey], str]:
        """Return the sources that change, and why nothing is changed."""
        if self._load is None:
            return [], "this producer has no configuration file to read again: start it with --config FILE"
        try:
            found = {_source(one): one for one in self._load()}
        except (ShmStoreError, ValueError, OSError) as error:
            return [], str(error)
        if problem := self._needs_restart(found):
            return [], problem
        changed = [source for source, one in found.items() if one != self._wanted[source]]
        if problem := _unfit((found[source] for source in changed), stop, self._log):
            return [], problem
        self._wanted = found
        self.version += 1
        return changed, ""

    def _needs_restart(self, found: dict[_SourceKey, Settings]) -> str:
        """What of the file cannot change while the producer runs."""
        if other := sorted(found.keys() ^ self._wanted.keys()):
            names = ", ".join(source.name or source.store for source in other)
            return f"a source that comes or goes ({names}) needs a restart"
        for source, one in found.items():
            before = self._wanted[source]
            differing = [option.name for option in fields(Settings) if getattr(one, option.name) != getattr(before, option.name)]
            if held := [name for name in differing if name not in LIVE]:
                of = f" of source {source.name}" if len(found) > 1 else ""
                return f"{', '.join(held)}{of} needs a restart"
        return ""


def _source(settings: Settings) -> _SourceKey:
    return _SourceKey(settings.store, settings.name)


def _unfit(changed: Iterable[Settings], stop: Stop, log: logging.Logger) -> str:
    """Why a row of a table would stop a producer with these settings; "" where none would, or that cannot be seen now."""
    for settings in changed:
        if not settings.row_filter or settings.binlog:
            continue
        try:
            session = connect(settings, settings.endpoints()[0], stop)
        except (LinkLost, ServerUnreachable, LoginRefused, SettingsError) as error:
            log.warning("reload: whether the row filters fit the tables cannot be seen: %s", error)
            continue
        try:
            unfit = [each.problem for each in unfit_row_filters(VisibleTables(session), settings.table_filter()) if each.stops]
        except LinkLost:
            continue
        finally:
            session.close()
        if unfit:
            return unfit[0]
    return ""


def live_names(one: Settings, other: Settings) -> list[str]:
    """The options in which the filters of two settings differ."""
    return [name for name in FILTERS if getattr(one, name) != getattr(other, name)]


def with_live(settings: Settings, wanted: Settings) -> Settings:
    """Return `settings` with the options of `wanted` that change while a producer runs."""
    return dataclasses.replace(settings, **{name: getattr(wanted, name) for name in LIVE})
