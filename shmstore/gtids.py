"""GTID sets: what of MySQL's and MariaDB's transactions a place in the binlog has behind it."""

from __future__ import annotations

import re
from typing import Final

from shmstore.event import Position

_GTID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}:([a-z_][a-z0-9_]*:)?\d+|\d+-\d+-\d+")
_INTERVAL: Final = re.compile(r"(\d+)(?:-(\d+))?")
_SETS: Final = (  # a part of one of MySQL's, and of MariaDB's
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(\s*:\s*([a-z_][a-z0-9_]*|[0-9]+(-[0-9]+)?))+",
    r"[0-9]+-[0-9]+-[0-9]+",
)
Gtids = dict[str, list[tuple[int, int]]]  # source -> (first, last) ..., ascending, none touching the next


def well_formed(gtids: str) -> bool:
    """True where `gtids` is written like a GTID set of MySQL or of MariaDB."""
    parts = [part.strip() for part in gtids.lower().split(",")]
    return any(all(re.fullmatch(form, part) for part in parts) for form in _SETS)


def parse(text: str) -> Gtids:
    """Return a GTID set: MySQL's intervals by server and tag; MariaDB's domains, in which a number means all up to it."""
    found: Gtids = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        source, *fields = part.split(":")
        if not fields:
            domain, _, number = part.split("-")
            found.setdefault(domain, []).append((0, int(number)))
        source = uuid = source.lower()
        for field in (field.strip() for field in fields):
            interval = _INTERVAL.fullmatch(field)
            if interval:
                found.setdefault(source, []).append((int(interval[1]), int(interval[2] or interval[1])))
            else:
                source = f"{uuid}:{field}"
    return {source: _merged(intervals) for source, intervals in found.items()}


def executed(position: Position) -> Gtids:
    """Return the transactions that a place has behind it: of all its sources, no two of which bring the same ones."""
    return parse(",".join(at.gtids for _, at in position.sources) if position.sources else position.gtids)


def _merged(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(intervals):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], last)
        else:
            merged.append((first, last))
    return merged


def single(transaction: str) -> Gtids | None:
    """Return the set of one transaction; None where its name is no GTID."""
    if not _GTID.fullmatch(transaction):
        return None
    if ":" in transaction:
        return parse(transaction)
    domain, _, number = transaction.split("-")
    return {domain: [(int(number) if int(number) > 1 else 0, int(number))]}  # nothing of its domain is before the first


def covers(have: Gtids, wanted: Gtids) -> bool:
    """True where everything in `wanted` is in `have`."""
    return all(
        any(low <= first and last <= high for low, high in have.get(source, ()))
        for source, intervals in wanted.items()
        for first, last in intervals
    )


def joined(a: Gtids, b: Gtids) -> Gtids:
    """Return what is in one of them."""
    return {source: _merged([*a.get(source, ()), *b.get(source, ())]) for source in {**a, **b}}
