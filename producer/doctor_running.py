"""Whether a producer that runs still reads its server, and what would stop it next: findings as those of `doctor`, for `doctor --running`."""

from __future__ import annotations

import logging
import os
from contextlib import suppress

from shmstore import StoreView
from shmstore.clock import calendar_ms
from shmstore.producer.connection.server import read_server
from shmstore.producer.connection.session import ServerSession, connect
from shmstore.producer.doctor import Finding
from shmstore.producer.pipeline.client_filters import ClientFilters
from shmstore.producer.settings import FILTERS, Settings
from shmstore.producer.start.in_force import FiltersFile, filters_of
from shmstore.producer.start.origin import OriginFile, differs
from shmstore.units import moment, quantity, span

__all__ = ["check_running"]

SILENCE_MS = 60_000  # without a word of producer or server that is no pause any more
SOON_MS = 24 * 3600 * 1000


def check_running(settings: Settings) -> list[Finding]:
    """Return the findings for the producer of `settings.store`. Raises `StoreNotFound`, and `SourceError` when the server cannot be asked."""
    with StoreView.attach(settings.store, path=settings.store_path or None, state=settings.state or None) as store:
        stat, source = store.stat(), settings.name if store.of_group else ""
        findings = [_producer(stat.producer_alive, stat.producer_pid, settings.store)]
        now, stream = calendar_ms(), stat.stream
        if stream.paused_ms:
            findings.append(_paused(settings.store, stream.paused_ms, stream.purge_ms))
        elif stat.producer_alive:
            findings.append(_link(stream.connected, now - stream.heard_ms))
        session = connect(settings, settings.endpoints()[0])
        try:
            findings.append(_same_server(store, source, session))
        finally:
            session.close()
        findings += _filters(store, source, settings)
        if stat.producer_alive and stat.space_wanted is not None:
            found = f"the producer waits for free space: {stat.holdup}"
            findings.append(
                Finding("free space", "fail", found, "free space", "do what that says; the server keeps the binlog so long")
            )
        elif stat.log is not None and stat.log.trouble:
            findings.append(Finding("log", "fail", stat.log.trouble, "a log that is written", "do what that says"))
        else:
            findings.append(Finding("free space", "ok", f"{stat.free_events} events"))
        findings += _disk(stat.log.home, stat.log.size - stat.log.bytes) if stat.log is not None else []
        if stream.purge_ms and stream.purge_ms - now < SOON_MS:
            left = span(max(0, stream.purge_ms - now) / 1000)
            fix = "let the readers catch up, or have the server keep its binlog for longer: `shmstore doctor` has the statement"
            findings.append(Finding("purge", "warn", f"the server may remove what is read next in {left}", "a day or more", fix))
        if stream.skipped:
            fix = "take a snapshot of the tables that the producer's log names, and see why with on_error = stop"
            findings.append(Finding("skipped events", "warn", str(stream.skipped), "0", fix))
    return findings


def _producer(alive: bool, pid: int, store: str) -> Finding:
    if alive:
        return Finding("producer", "ok", f"pid {pid}")
    return Finding(
        "producer", "fail", f"no producer of store {store!r} runs", "a producer", "start it: shmstore run, or shmstore produce"
    )


def _link(connected: bool, silent_ms: int) -> Finding:
    if not connected:
        return Finding(
            "link", "fail", "the producer has no link to the server", "a link", "its log says why: see that it may log in there"
        )
    if silent_ms > SILENCE_MS:
        return Finding(
            "link",
            "warn",
            f"the server has has been silent for {span(silent_ms / 1000)}",
            "a heartbeat each second",
            "see its network",
        )
    return Finding("link", "ok", f"last heard from {max(0, silent_ms) / 1000:.1f} s ago")


def _paused(store: str, since_ms: int, purge_ms: int) -> Finding:
    keeps = f"; the server may remove what comes next from {moment(purge_ms)} on" if purge_ms else ""
    found = f"the producer is paused since {moment(since_ms)}, and reads nothing{keeps}"
    return Finding("link", "warn", found, "a producer that reads", f"shmstore resume {store}")


def _same_server(store: StoreView, source: str, session: ServerSession) -> Finding:
    name, server = "same server", read_server(session)
    origin = OriginFile(store.home, source).load()
    if origin is None:
        return Finding(
            name, "warn", "which server the store was read from is not kept", "", "let the producer read, and ask again"
        )
    other = f"; it is {server.identity}, the store was read from {origin.identity} ({origin.server})" * (
        server.identity != origin.identity
    )
    found = differs(origin, session)
    if found == "" and not other:
        return Finding(name, "ok", f"{server.identity}, whose {origin.file} is the one that was read")
    if found:
        fix = "name the server that the store was read from, or start again with a new store"
        return Finding(name, "fail", f"{found}{other}", "the binlog that was read", fix)
    if found == "":
        return Finding(name, "warn", f"the same binlog{other}", origin.identity, "see that host names the server that you mean")
    text = f"its binlog cannot be compared{other}"
    return Finding(name, "warn", text, "", "the producer looks for the last transaction of the store there when it starts")


def _filters(store: StoreView, source: str, settings: Settings) -> list[Finding]:
    kept = FiltersFile(store.home, source).load(store.epoch, store.newest, again=True)
    if kept is None:
        return []
    clients = ClientFilters(store.home, logging.getLogger("producer"), on=settings.client_filters == "replace")
    ours = filters_of(clients.joined(settings))
    other = [name for name in FILTERS if kept.filters.get(name) != ours[name]]
    if not other:
        return [Finding("filters", "ok", f"as given here, since event {kept.since}")]
    fix = f"shmstore reload {settings.store}, where its file has these; else give here the options that it runs with"
    return [Finding("filters", "warn", f"others are in force: {', '.join(other)}", "those given here", fix)]


def _disk(home: str, may_grow: int) -> list[Finding]:
    with suppress(OSError):
        disk = os.statvfs(home)
        free = disk.f_bavail * disk.f_frsize
        if free < may_grow:
            found = f"the log may grow by {quantity(may_grow)}, and the disk of {home} has {quantity(free)} free"
            return [Finding("disk", "warn", found, quantity(may_grow), "give a smaller log_size, or make space there")]
        return [Finding("disk", "ok", f"{quantity(free)} free, the log may grow by {quantity(may_grow)}")]
    return []
