"""What `shmstore ls` and `shmstore stat` print of a store."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from shmstore.errors import LayoutMismatch, StoreNotFound
from shmstore.event import Position
from shmstore.memory.segment import has_users, where_is
from shmstore.ring.cursors import Cursor
from shmstore.store.stats import StoreStat, StreamStat, SubscriptionStat
from shmstore.store.view import StoreView

HEAD = f"{'STORE':<24} {'EVENTS':>10} {'BYTES':>10} {'FREE':>5} {'PRODUCER':>14} {'READERS':>8} {'MOST LAG':>10}"


def line(stat: StoreStat) -> str:
    """Return one line about a store, below `HEAD`: what it holds, who uses it, how far behind the slowest reader is."""
    held = stat.newest - stat.oldest + 1
    size = quantity(stat.limit_bytes - stat.free_bytes)
    producer = owner(stat.producer_pid, stat.producer_alive)
    readers = f"{sum(each.alive for each in stat.subscriptions)}/{len(stat.subscriptions)}"
    lag = max((each.lag_events for each in stat.subscriptions), default=0)
    return f"{stat.name:<24} {held:>10,} {size:>10} {free(stat):>4.0f}% {producer:>14} {readers:>8} {lag:>10,}"


def page(stat: StoreStat, before: StoreStat | None = None, seconds: float = 0.0) -> str:
    """Return a store's figures as text, with the rates since an earlier `stat` of `seconds` ago."""
    rate = ""
    if before is not None and before.epoch == stat.epoch and seconds > 0:
        events, rows = (now - then for now, then in ((stat.put.sequence, before.put.sequence), (stat.put.rows, before.put.rows)))
        rate = f"; {events / seconds:,.0f} events/s, {rows / seconds:,.0f} rows/s"
    options = [stat.batch_mode, f"lag={stat.lag}" + (f" ({stat.evictions:,} evicted so far)" if stat.evictions else "")]
    options += ["ddl isolation"] * stat.ddl_isolation + ["checksum"] * stat.checksum
    read = f", read up to {place(stat.source_position)}" if stat.source_position else ""
    life = f", last seen {ago(stat.heartbeat_ms)}" if stat.heartbeat_ms else ""
    newest = f", event time {moment(stat.put.time_ms)}" if stat.put.time_ms else ""
    count = stat.newest - stat.oldest + 1
    held = f"{count:,} events, {stat.oldest:,} to {stat.newest:,}" if count > 0 else "no events: every subscription has acked all"
    size = f"{quantity(stat.free_bytes)} of {quantity(stat.limit_bytes)} ({free(stat):.0f} %)"
    waits = f"; the producer waits for free space: {stat.holdup}" if stat.room_wanted is not None else ""
    lines = [
        f"store      {stat.name}  ({stat.path or 'shared memory'}, {quantity(stat.segment_bytes)})",
        f"created    {moment(stat.created_ms)}, epoch {stat.epoch:x}, {', '.join(options)}",
        f"source     {stat.source or 'none yet'}{read}",
        f"producer   {owner(stat.producer_pid, stat.producer_alive)}{life}",
        *_stream(stat),
        f"put        {stat.put.sequence + 1:,} events, {stat.put.rows:,} rows, {quantity(stat.put.bytes)}{newest}{rate}",
        f"held       {held}",
        f"free       {stat.free_events:,} of {stat.capacity:,} events, {size}{waits}",
        "",
    ]
    if not stat.subscriptions:
        return "\n".join([*lines, "no subscriptions: the producer will stop when the ring is full"])
    table: list[tuple[str, ...]] = [("SUBSCRIPTION", "STATE", "OWNER", "GET", "ACK", "LAG EVENTS", "ROWS", "BYTES", "SECONDS")]
    table += [_row(each) for each in stat.subscriptions]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = (
            cell.ljust(width) if i < 3 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _stream(stat: StoreStat) -> list[str]:
    """What the producer reports of its stream; nothing where it reported none."""
    stream, lines = stat.stream, []
    if stream.heard_ms and stat.producer_alive:
        link = "connected" if stream.connected else "not connected"
        lines = [
            f"link       {link}, last data from the source {ago(stream.heard_ms)}; {stream.behind_ms / 1000:,.3f} s behind",
            f"this run   {stream.transactions:,} transactions, {stream.reconnects:,} reconnects, {stream.skipped:,} events skipped, "
            f"{stream.blocked_ms / 1000:,.1f} s waiting for free space",
        ]
    if stream.snapshot_open:
        left = f"{stream.snapshot_open:,} of {stream.snapshot_tables:,} tables left"
        lines.append(f"snapshot   {left}, {stream.snapshot_rows:,} rows so far")
    if stream.purge_ms:
        lines.append(f"purge      the source may delete the binlog that comes next, from {moment(stream.purge_ms)} on")
    if stat.put_position is not None:
        lines.append(f"complete   all transactions up to {place(stat.put_position)}")
    return lines


def _row(stat: SubscriptionStat) -> tuple[str, ...]:
    return (
        stat.name,
        stat.state,
        owner(stat.owner_pid, stat.alive),
        f"{stat.get.sequence:,}",
        f"{stat.ack.sequence:,}",
        f"{stat.lag_events:,}",
        f"{stat.lag_rows:,}",
        quantity(stat.lag_bytes),
        f"{stat.lag_ms / 1000:,.1f}",
    )


def document(stat: StoreStat) -> dict[str, Any]:
    """Return a store's figures as what JSON can hold; the field names are those of `StoreStat`."""
    found = _plain(stat)
    assert isinstance(found, dict)
    return found


def _plain(value: object) -> object:
    if isinstance(value, StoreStat | StreamStat | SubscriptionStat | Cursor | Position):
        return {name: _plain(each) for name, each in value._asdict().items()}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def users(stat: StoreStat) -> list[str]:
    """Return the living processes that use a store, for a message: producer first."""
    found = [f"its producer (pid {stat.producer_pid})"] if stat.producer_alive else []
    return found + [f"reader {each.name!r} (pid {each.owner_pid})" for each in stat.subscriptions if each.alive]


def users_of(name: str, path: str | None) -> list[str]:
    """`users` of a store by name; none where there is no such store.

    Of a segment that cannot be read (another layout, damage) only whether there are any: roles are locks on the file itself.
    """
    try:
        with StoreView.attach(name, path=path) as store:
            return users(store.stat())
    except StoreNotFound:
        return []
    except LayoutMismatch:
        where = where_is(name, path)
        return [f"a process of another version of shmstore (`fuser {where}` shows which)"] if has_users(where) else []


# ---------------------------------------------------------------- figures as text


def owner(pid: int, alive: bool) -> str:
    """Return the owner of a role: none, a living process, or one that died."""
    return f"pid {pid}" if alive else f"pid {pid} died" if pid else "none"


def free(stat: StoreStat) -> float:
    """Percent of the ring that is free, by events or by bytes, whichever is scarcer."""
    return 100 * min(stat.free_events / stat.capacity, stat.free_bytes / stat.limit_bytes)


def quantity(size: int) -> str:
    """Return a number of bytes with a unit that suits it."""
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(value) >= 1024 and len(units) > 1:
        value /= 1024
        del units[0]
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:,.1f} {units[0]}"


def moment(time_ms: int) -> str:
    """Return milliseconds since 1970 as date and time, UTC."""
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def ago(time_ms: int) -> str:
    """Return how long ago a time in milliseconds since 1970 was."""
    return f"{max(0.0, time.time() - time_ms / 1000):,.1f} s ago"


def place(position: Position) -> str:
    """Return a binlog position as FILE:OFFSET, with its GTID set where there is one."""
    return f"{position.file}:{position.offset}" + (f" ({position.gtids})" if position.gtids else "")
