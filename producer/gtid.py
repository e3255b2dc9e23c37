"""GTID sets: MySQL's intervals by server and tag, MariaDB's last number by domain.

Both are an `ExecutedSet`: what a reader at a position of the binlog has seen. It is changed at commit only. Sets of the two
kinds may be compared: they have nothing in common, and what is empty is part of either.
MySQL's binary form is that of COM_BINLOG_DUMP_GTID and of the PREVIOUS_GTIDS event (sql/rpl_gtid_set.cc); a set with a
tag anywhere (8.3 and later) is written in the tagged form.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Protocol

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_INTERVAL = re.compile(r"([0-9]{1,19})(?:-([0-9]{1,19}))?")
_MARIADB = re.compile(r"([0-9]{1,10})-([0-9]{1,10})-([0-9]{1,20})")
_LAST = 2**63 - 1

Interval = tuple[int, int]  # first, last; both included
TaggedUuid = tuple[str, str]  # uuid, tag


class ExecutedSet(Protocol):
    """What MySQL's and MariaDB's sets have in common."""

    @property
    def tagged(self) -> bool:
        """Whether only a server that knows tags can read it."""

    def add(self, gtid: str) -> None:
        """Add one transaction. Raises ValueError."""

    def add_run(self, source: str, first: int, last: int) -> None:
        """Add the transactions `first` to `last` of a source that `single` named."""

    def covers(self, other: ExecutedSet) -> bool:
        """Whether everything in `other` is in this set."""

    def shared(self, other: ExecutedSet) -> ExecutedSet:
        """Return what is in both sets."""

    def __sub__(self, other: ExecutedSet) -> ExecutedSet:
        """Return what is in this set alone."""

    def copy(self) -> ExecutedSet:
        """Return an independent copy."""

    def encode(self) -> bytes:
        """Return the set as a server takes it that is asked for what comes after it."""

    def single(self) -> tuple[str, str, int] | None:
        """(source, text, last number), where the next transaction of the one source makes the set's text: text + its number."""


class GtidSet:
    """A MySQL GTID set. `str()` gives it as ``@@gtid_executed`` does, without line breaks."""

    __slots__ = ("_intervals", "_texts")

    def __init__(self, text: str = "") -> None:
        """Parse `text`: ``uuid[:tag]:first[-last][:...][, ...]``. Raises ValueError."""
        self._intervals: dict[TaggedUuid, list[Interval]] = {}
        self._texts: dict[TaggedUuid, str] = {}
        for part in text.replace("\n", "").split(","):
            if part.strip():
                self._parse_source(part.strip())

    def _parse_source(self, part: str) -> None:
        uuid, *fields = [field.strip() for field in part.lower().split(":")]
        if not _UUID.fullmatch(uuid):
            raise ValueError(f"GTID set: {part!r} does not begin with a server UUID")
        tag, seen = "", 0
        for field in fields:
            if match := _INTERVAL.fullmatch(field):
                first = int(match[1])
                last = int(match[2] or first)
                if not 1 <= first <= _LAST or last > _LAST:
                    raise ValueError(f"GTID set: the interval {field!r} of {part!r} is out of range")
                seen += 1
                if first <= last:
                    self.add_interval(uuid, tag, first, last)
            elif _TAG.fullmatch(field):
                tag = field
            else:
                raise ValueError(f"GTID set: {field!r} in {part!r} is neither an interval nor a tag")
        if not seen:
            raise ValueError(f"GTID set: {part!r} has no interval")

    def add(self, gtid: str) -> None:
        """Add one transaction, ``uuid[:tag]:number``."""
        source, _, number = gtid.rpartition(":")
        uuid, _, tag = source.partition(":")
        self.add_interval(uuid, tag, int(number), int(number))

    def add_run(self, source: str, first: int, last: int) -> None:
        """Add the transactions `first` to `last` of server `source`."""
        self.add_interval(source, "", first, last)

    def add_interval(self, uuid: str, tag: str, first: int, last: int) -> None:
        """Add the transactions `first` to `last`, both included."""
        key = (uuid, tag)
        intervals = self._intervals.setdefault(key, [])
        self._texts.pop(key, None)
        if intervals and intervals[-1][0] <= first <= intervals[-1][1] + 1:  # the usual case: the next number
            intervals[-1] = (intervals[-1][0], max(last, intervals[-1][1]))
            return
        merged: list[Interval] = []
        for interval in sorted([*intervals, (first, last)]):
            if merged and interval[0] <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(merged[-1][1], interval[1]))
            else:
                merged.append(interval)
        self._intervals[key] = merged

    def update(self, other: GtidSet) -> None:
        """Add everything in `other`."""
        for (uuid, tag), first, last in other._each():
            self.add_interval(uuid, tag, first, last)

    def covers(self, other: ExecutedSet) -> bool:
        """Whether everything in `other` is in this set."""
        return not other - self

    def shared(self, other: ExecutedSet) -> GtidSet:
        """Return what is in both sets."""
        return self - (self - other)

    def copy(self) -> GtidSet:
        """Return an independent copy."""
        twin = GtidSet()
        twin._intervals = {key: list(intervals) for key, intervals in self._intervals.items()}
        twin._texts = dict(self._texts)
        return twin

    def __sub__(self, other: ExecutedSet) -> GtidSet:
        rest, theirs = GtidSet(), other._intervals if isinstance(other, GtidSet) else {}
        for key, first, last in self._each():
            for low, high in theirs.get(key, ()):
                if high < first or low > last:
                    continue
                if low > first:
                    rest.add_interval(*key, first, low - 1)
                first = high + 1
            if first <= last:
                rest.add_interval(*key, first, last)
        return rest

    def __contains__(self, gtid: str) -> bool:
        return self.covers(GtidSet(gtid))

    def __bool__(self) -> bool:
        return any(self._intervals.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GtidSet) and dict(self._sorted()) == dict(other._sorted())

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        parts: list[str] = []
        previous = ""
        for key, intervals in self._sorted():
            text = self._texts.get(key)
            if text is None:
                text = ":".join(f"{first}" if first == last else f"{first}-{last}" for first, last in intervals)
                self._texts[key] = text
            uuid, tag = key
            source = f":{tag}" if uuid == previous else (f",{uuid}" if parts else uuid) + (f":{tag}" if tag else "")
            parts.append(f"{source}:{text}")
            previous = uuid
        return "".join(parts)

    def __repr__(self) -> str:
        return f"GtidSet({str(self)!r})"

    def _sorted(self) -> list[tuple[TaggedUuid, list[Interval]]]:
        if len(self._intervals) == 1:
            return [item for item in self._intervals.items() if item[1]]
        return sorted(item for item in self._intervals.items() if item[1])

    def _each(self) -> Iterator[tuple[TaggedUuid, int, int]]:
        for key, intervals in self._sorted():
            for first, last in intervals:
                yield key, first, last

    def single(self) -> tuple[str, str, int] | None:
        """(source, text, last number), where the next transaction of the one source makes the set's text: text + its number."""
        if len(self._intervals) != 1:
            return None
        ((uuid, tag), intervals) = next(iter(self._intervals.items()))
        if tag or not intervals:
            return None
        first, last = intervals[-1]
        text = str(self)
        return uuid, f"{text}-" if first == last else text.removesuffix(str(last)), last

    @property
    def tagged(self) -> bool:
        """Whether any source has a tag: such a set needs MySQL 8.3."""
        return any(tag and intervals for (_, tag), intervals in self._intervals.items())

    def encode(self) -> bytes:
        """Return the binary form, tagged where a tag is in the set."""
        sources, tagged = self._sorted(), self.tagged
        count = len(sources)
        out = [struct.pack("<Q", 1 << 56 | count << 8 | 1 if tagged else count)]
        for (uuid, tag), intervals in sources:
            out.append(bytes.fromhex(uuid.replace("-", "")))
            if tagged:
                out.append(bytes([len(tag) << 1]) + tag.encode())
            out.append(struct.pack("<Q", len(intervals)))
            out += [struct.pack("<QQ", first, last + 1) for first, last in intervals]
        return b"".join(out)

    @classmethod
    def decode(cls, body: bytes) -> GtidSet:
        """Return the set in `body`, the content of a PREVIOUS_GTIDS event. Raises ValueError."""
        result = cls()
        try:
            (head,) = struct.unpack_from("<Q", body, 0)
            form = head >> 56
            if form not in (0, 1):
                raise ValueError(f"GTID set: binary format {form} is unknown")
            count = head & (1 << 56) - 1 if form == 0 else head >> 8 & (1 << 48) - 1
            at = 8
            for _ in range(count):
                uuid, tag = format_uuid(body[at : at + 16]), ""
                at += 16
                if form:
                    size = body[at] >> 1
                    tag = body[at + 1 : at + 1 + size].decode("ascii")
                    at += 1 + size
                (intervals,) = struct.unpack_from("<Q", body, at)
                at += 8
                if intervals * 16 > len(body) - at:
                    raise ValueError(f"GTID set: {intervals} intervals do not fit into {len(body)} bytes")
                for first, end in struct.iter_unpack("<QQ", body[at : at + 16 * intervals]):
                    result.add_interval(uuid, tag, first, end - 1)
                at += 16 * intervals
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise ValueError(f"GTID set: {len(body)} bytes are not one: {error}") from error
        return result


class MariadbGtids:
    """A MariaDB GTID position: the last (server, number) of each domain. `str()` gives it as ``@@gtid_binlog_pos`` does."""

    __slots__ = ("_domains",)

    def __init__(self, text: str = "") -> None:
        """Parse `text`: ``domain-server-number[, ...]``. Raises ValueError."""
        self._domains: dict[int, tuple[int, int]] = {}
        for part in text.split(","):
            if part.strip():
                self.add(part.strip())

    def add(self, gtid: str) -> None:
        """Move the domain of `gtid` there. Raises ValueError."""
        match = _MARIADB.fullmatch(gtid)
        if not match:
            raise ValueError(f"GTID: {gtid!r} is not domain-server-number")
        self._domains[int(match[1])] = (int(match[2]), int(match[3]))

    def add_run(self, source: str, first: int, last: int) -> None:
        """Move the domain of `source`, DOMAIN-SERVER, to the number `last`."""
        self.add(f"{source}-{last}")

    def set(self, domain: int, server: int, number: int) -> None:
        """Move `domain` to `number`, written by `server`."""
        self._domains[domain] = (server, number)

    def covers(self, other: ExecutedSet) -> bool:
        """Whether each domain of `other` is here, as far or further."""
        return not other - self

    def shared(self, other: ExecutedSet) -> MariadbGtids:
        """Return the domains that both have, each as far as the one has it that is less far."""
        both, theirs = MariadbGtids(), _domains(other)
        both._domains = {
            domain: min(mine, theirs[domain], key=lambda last: last[1])
            for domain, mine in self._domains.items()
            if domain in theirs
        }
        return both

    def __sub__(self, other: ExecutedSet) -> MariadbGtids:
        rest, theirs = MariadbGtids(), _domains(other)
        rest._domains = {
            domain: mine for domain, mine in self._domains.items() if domain not in theirs or mine[1] > theirs[domain][1]
        }
        return rest

    @property
    def tagged(self) -> bool:
        """Tags are MySQL's."""
        return False

    def encode(self) -> bytes:
        """Return the text, which MariaDB takes as ``@slave_connect_state``."""
        return str(self).encode()

    def single(self) -> tuple[str, str, int] | None:
        """(source, text, last number), where the next transaction of the one source makes the set's text: text + its number."""
        if len(self._domains) != 1:
            return None
        ((domain, (server, number)),) = self._domains.items()
        return f"{domain}-{server}", f"{domain}-{server}-", number

    def copy(self) -> MariadbGtids:
        """Return an independent copy."""
        twin = MariadbGtids()
        twin._domains = dict(self._domains)
        return twin

    def __bool__(self) -> bool:
        return bool(self._domains)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MariadbGtids) and self._domains == other._domains

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        if len(self._domains) == 1:
            ((domain, (server, number)),) = self._domains.items()
            return f"{domain}-{server}-{number}"
        return ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in sorted(self._domains.items()))

    def __repr__(self) -> str:
        return f"MariadbGtids({str(self)!r})"


def _domains(other: ExecutedSet) -> dict[int, tuple[int, int]]:
    return other._domains if isinstance(other, MariadbGtids) else {}


def parse(text: str) -> ExecutedSet:
    """Return the set of either server that `text` is: MariaDB's where its first GTID has that form. Raises ValueError."""
    first = text.split(",")[0].strip()
    return MariadbGtids(text) if _MARIADB.fullmatch(first) else GtidSet(text)


def format_uuid(raw: bytes) -> str:
    """Return 16 bytes as a UUID in lower case."""
    if len(raw) != 16:
        raise ValueError(f"UUID: {len(raw)} bytes, not 16")
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
