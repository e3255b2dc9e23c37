"""What `shmstore ls`, `stat`, `seek` and `log` print of a store."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from shmstore.clock import calendar_ms
from shmstore.errors import LayoutMismatch, StoreError, StoreNotFound
from shmstore.event import Position
from shmstore.memory.locks import holder
from shmstore.memory.segment import has_users, where_is
from shmstore.native import pure_python
from shmstore.ring.cursors import Cursor
from shmstore.sources import place_text, sources_text
from shmstore.store.remembered import RememberedStore
from shmstore.store.stats import LogStat, StoreStat, StreamStat, SubscriptionStat
from shmstore.store.view import StoreView
from shmstore.units import moment, printable, quantity, span

if TYPE_CHECKING:
    from shmstore.consumer.live.figures import ShownStore

HEAD = f"{'STORE':<24} {'EVENTS':>12} {'RING':>10} {'FREE':>5} {'LOG':>10} {'FULL':>5} {'PRODUCER':>14} {'READERS':>8} {'MOST LAG':>12}"


def line(stat: StoreStat | RememberedStore) -> str:
    """Return one line about a store, below `HEAD`: what it holds, who uses it, how far behind the slowest reader is."""
    if isinstance(stat, RememberedStore):
        return _line_of_remembered(stat)
    held = stat.newest - stat.oldest + 1
    size = quantity(stat.limit_bytes - stat.free_bytes)
    producer = owner(stat.producer_pid, stat.producer_alive)
    readers = f"{sum(each.alive for each in stat.subscriptions)}/{len(stat.subscriptions)}"
    lag = max((each.lag_events for each in stat.subscriptions), default=0)
    log, full = (
        (quantity(stat.log.bytes), f"{100 * stat.log.bytes / stat.log.size:.0f}%") if stat.log is not None else ("off", "")
    )
    row = f"{stat.name:<24} {held:>12,} {size:>10} {free(stat):>4.0f}% {log:>10} {full:>5} {producer:>14} {readers:>8} {lag:>12,}"
    return printable(row + (f"  {stat.log.trouble}" if stat.log is not None and stat.log.trouble else ""))


def _line_of_remembered(store: RememberedStore) -> str:
    held, full = store.newest - store.oldest + 1, f"{100 * store.bytes / store.size:.0f}%"
    lag = max(store.lags.values(), default=0)
    row = f"{store.name:<24} {held:>12,} {'none':>10} {'':>5} {quantity(store.bytes):>10} {full:>5} {'none':>14} {f'0/{len(store.acks)}':>8} {lag:>12,}"
    return printable(f"{row}  " + (f"in the file {store.path}" if store.path else f"remembered in {store.home}"))


def in_log(store: RememberedStore) -> str:
    """Return what the log of a home holds: its events, and the files that they are in."""
    count = store.newest - store.oldest + 1
    held = f"{count:,} events, {store.oldest:,} to {store.newest:,}" if count > 0 else "no events"
    return held + (f", {quantity(store.bytes)} in {store.files:,} files" if store.files else "")


def page(stat: StoreStat, live: ShownStore | None = None) -> str:
    """Return a store's figures as text, with the rates and trends that `live` has of it."""
    passes = live.store.rate if live is not None else None
    rate = f"; {passes.events:,.0f} events/s, {passes.rows:,.0f} rows/s" if passes is not None else ""
    options = [stat.batch_mode, f"lag={stat.lag}" + (f" ({stat.evictions:,} evicted so far)" if stat.evictions else "")]
    options += ["ddl isolation"] * stat.ddl_isolation + ["checksum"] * stat.checksum
    read = f", read up to {place_text(stat.source_position)}" if stat.source_position else ""
    life = f", last seen {ago(stat.heartbeat_ms)}" if stat.heartbeat_ms else ""
    newest = f", event time {moment(stat.put.time_ms)}" if stat.put.time_ms else ""
    count = stat.newest - stat.oldest + 1
    nothing = "every subscription has acked all" if stat.log is None else "none was put, or all were removed"
    held = f"{count:,} events, {stat.oldest:,} to {stat.newest:,}" if count > 0 else f"no events: {nothing}"
    size = f"{quantity(stat.free_bytes)} of {quantity(stat.limit_bytes)} ({free(stat):.0f} %)"
    waits = f"; the producer waits for free space: {stat.holdup}" if stat.space_wanted is not None else ""
    lines = [
        f"store      {stat.name}  ({stat.path or 'shared memory'}, {quantity(stat.segment_bytes)})",
        f"created    {moment(stat.created_ms)}, epoch {stat.epoch:x}, {', '.join(options)}",
        f"source     {stat.source or 'none yet'}{read}",
        f"producer   {owner(stat.producer_pid, stat.producer_alive)}{life}",
        *_stream(stat),
        f"put        {stat.put.sequence + 1:,} events, {stat.put.rows:,} rows, {quantity(stat.put.bytes)}{newest}{rate}",
        f"held       {held}",
        f"free       {stat.free_events:,} of {stat.capacity:,} events, {size}{waits}",
        *_log(stat, live),
        *(f"code       {slow}" for slow in [pure_python()] if slow),
        "",
    ]
    if not stat.subscriptions:
        follows = (
            "the producer will stop when the ring is full" if stat.log is None else "a new reader gets all that the log keeps"
        )
        return "\n".join(map(printable, [*lines, f"no subscriptions: {follows}"]))
    table: list[tuple[str, ...]] = [("SUBSCRIPTION", "STATE", "OWNER", "GET", "ACK", "BEHIND", "ROWS", "BYTES", "WAITS")]
    now = calendar_ms()
    table += [_row(each, now) for each in stat.subscriptions]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = (
            cell.ljust(width) if i < 3 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(map(printable, lines))


def _log(stat: StoreStat, live: ShownStore | None) -> list[str]:
    """What the log holds, what keeps it from shrinking, and what becomes of it; of a store without one, that."""
    log = stat.log
    if log is None:
        return ["log        off: after a reboot nothing of the store is there"]
    oldest = f", oldest event {moment(log.oldest_ms)}" if log.oldest_ms else ""
    lines = [
        f"home       {log.home}",
        f"log        {quantity(log.bytes)} of {quantity(log.size)} ({100 * log.bytes / log.size:.0f} %) in {log.files:,} files{oldest}; "
        f"what all have acked stays for {span(log.keep_ms / 1000)}",
        f"written    {_up_to(log.written)}, on disk {_up_to(log.synced)}",
    ]
    slowest = stat.slowest
    if slowest is not None and slowest.lag_events:
        late = f"{slowest.lag_events:,} events, {quantity(slowest.lag_bytes)}"
        lines.append(f"keeps for  {slowest.standing} of {stat.newest:,}: {late} behind")
    if live is not None:
        lines += _forecast(stat, live)
    if log.trouble:
        lines.append(f"trouble    {log.trouble}")
    return lines


def _up_to(sequence: int) -> str:
    return f"up to {sequence:,}" if sequence >= 0 else "nothing"


def _forecast(stat: StoreStat, live: ShownStore) -> list[str]:
    """When the log will be full of what a reader has not acked, or else how far it reaches back."""
    slowest, log = stat.slowest, live.log
    if log is not None and log.full_in is not None and slowest is not None:
        slower = f"{slowest.name!r} is {quantity(round(log.growth))} a second slower than the producer"
        return [f"full       in {span(log.full_in)} at the rate of the last minutes: {slower}"]
    if log is not None and log.reaches is not None:
        back = span(log.reaches)
        return [f"reaches    {back} back when it is full, at the rate of the last minutes: it is too small for {span(log.keep)}"]
    return []


def _stream(stat: StoreStat) -> list[str]:
    """What the producer reports of its stream; nothing where it reported none."""
    stream, lines = stat.stream, []
    if stream.paused_ms:
        lines.append(f"paused     since {moment(stream.paused_ms)}: nothing is read until `shmstore resume {stat.name}`")
    if stream.heard_ms and stat.producer_alive:
        link = "connected" if stream.connected else "not connected"
        lines += [
            f"link       {link}, last data from the source {ago(stream.heard_ms)}; {stream.behind_ms / 1000:,.3f} s behind",
            f"this run   {stream.transactions:,} transactions, {stream.reconnects:,} reconnects, {stream.skipped:,} events skipped, "
            f"{stream.blocked_ms / 1000:,.1f} s waiting for free space",
        ]
        if stream.filtered_events or stream.filtered_rows:
            rows = f"{stream.filtered_rows:,} rows by row filters and operations"
            lines.append(f"left out   {stream.filtered_events:,} events of the binlog by the filters, {rows}")
    if stream.snapshot_open:
        left = f"{stream.snapshot_open:,} of {stream.snapshot_tables:,} tables left"
        lines.append(f"snapshot   {left}, {stream.snapshot_rows:,} rows so far")
    if stream.purge_ms:
        lines.append(f"purge      the source may delete the next binlog from {moment(stream.purge_ms)} on")
    if stat.put_position is not None:
        lines.append(f"complete   all transactions up to {place_text(stat.put_position)}")
    return lines


def _row(stat: SubscriptionStat, now_ms: int) -> tuple[str, ...]:
    """A subscription; ``-`` for a get or an ack that has not come yet. The last cell is how long its oldest event has waited."""
    return (
        stat.name,
        stat.presence,
        owner(stat.owner_pid, stat.alive),
        *(f"{each.sequence:,}" if each.sequence >= 0 else "-" for each in (stat.get, stat.ack)),
        f"{stat.lag_events:,}",
        f"{stat.lag_rows:,}",
        quantity(stat.lag_bytes),
        span(round(max(0, now_ms - stat.oldest_ms) / 1000, 1)) if stat.oldest_ms else "-",
    )


def document(stat: StoreStat | RememberedStore) -> dict[str, Any]:
    """Return a store's figures as what JSON can hold; the field names are those of `StoreStat`, or of `RememberedStore`."""
    if isinstance(stat, RememberedStore):
        return {**stat._asdict(), "remembered": True}
    found = _plain(stat)
    assert isinstance(found, dict)
    return found


def _plain(value: object) -> object:
    if isinstance(value, Position):
        found = value._asdict()
        del found["sources"]
        return found | ({"sources": sources_text(value.sources)} if value.sources else {})
    if isinstance(value, StoreStat | StreamStat | LogStat | SubscriptionStat | Cursor):
        return {name: _plain(each) for name, each in value._asdict().items()}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def users(stat: StoreStat) -> list[str]:
    """Return the living processes that use a store, for a message: producer first."""
    found = [f"its producer ({holder(stat.producer_pid)})"] if stat.producer_alive else []
    return found + [f"reader {each.name!r} ({holder(each.owner_pid)})" for each in stat.subscriptions if each.alive]


def users_of(name: str, path: str | None) -> list[str]:
    """`users` of a store by name; none where there is no such store.

    Of a segment that cannot be read (another layout, damage) only whether there are any: roles are locks on the file itself.
    """
    try:
        with StoreView.attach(name, path=path, restore=False) as store:
            return users(store.stat())
    except StoreNotFound:
        return []
    except LayoutMismatch:
        where = where_is(name, path)
        return [f"a process of another version of shmstore (`fuser {where}` shows which)"] if has_users(where) else []
    except StoreError:
        if os.path.lexists(where_is(name, path)):
            raise
        return []  # it is in its home alone, whose identity cannot be read


# ---------------------------------------------------------------- figures as text


def owner(pid: int, alive: bool) -> str:
    """Return the owner of a role: none, a living process, whose pid is 0 while it begins or ends, or one that died."""
    if not pid:
        return "begins or ends" if alive else "none"
    return f"pid {pid}" if alive else f"pid {pid} died"


def free(stat: StoreStat) -> float:
    """Percent of the ring that is free, by events or by bytes, whichever is scarcer."""
    return 100 * min(stat.free_events / stat.capacity, stat.free_bytes / stat.limit_bytes)


def ago(time_ms: int) -> str:
    """Return how long ago a time in milliseconds since 1970 was."""
    return f"{max(0.0, time.time() - time_ms / 1000):,.1f} s ago"
