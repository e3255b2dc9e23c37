"""A table's rows as pairs of numbers on disk: what tells a row, and what it holds; two such sets compared.

A row is 16 bytes here, however wide: a number of its key, and one of the whole row. They are kept in parts by the key's
number, of about `PART_ROWS` each, so that two parts are in memory and never a table. Two keys with one number are no
danger: their rows' numbers differ, so that both are looked at by value.

The number of some bytes is a polynomial modulo 2**61 - 1, at a point that is drawn at random for each comparison (Carter and Wegman's
universal hashing): its first coefficient is how many bytes there are, the others are they, 7 at a time. Two different rows of n words
have one number at n points at most, so with a probability of n / 2**61, also where a client who does not know the point chose the rows.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from shmstore.encoding.codec import Packed, pack, unpack_rows
from shmstore.producer.native_code import COMPILED, compiled

PART_ROWS: Final = 4 << 20
MOST_PARTS: Final = 64
PRIME: Final = 2**61 - 1
_WORD: Final = 7  # bytes, below PRIME whatever they are
Numbers = NDArray[np.uint64]


def parts_for(rows: int) -> int:
    """Return in how many parts so many rows are kept."""
    return min(MOST_PARTS, rows // PART_ROWS + 1)


def key_bytes(row: Sequence[Any], key: Sequence[int]) -> bytes:
    """Return what tells a row, in stored form: the values of its key as MessagePack, one behind the other."""
    return b"".join([pack(row[i]) for i in key])


def any_point() -> int:
    """Return where the numbers of a comparison are taken."""
    return secrets.randbelow(PRIME - 1) + 1


def numbers_of(texts: Iterable[bytes], point: int) -> Numbers:
    """Return the number of each."""
    return np.array([_number(text, point) for text in texts], np.uint64)


def _number(text: bytes, point: int) -> int:
    number = len(text)
    for at in range(0, len(text), _WORD):
        number = (number * point + int.from_bytes(text[at : at + _WORD], "little")) % PRIME
    return number


def row_numbers(rows: Sequence[Sequence[Any]] | Packed, key: Sequence[int], point: int) -> Numbers:
    """Return the pair of each row in stored form: the number of its key, that of the row; `key`: where the values of the key are."""
    if COMPILED:
        data = rows.data if isinstance(rows, Packed) else pack(list(rows))
        return np.frombuffer(compiled.row_numbers(data, tuple(key), point), np.uint64).reshape(-1, 2)
    values = unpack_rows(rows)
    return np.stack([numbers_of([key_bytes(row, key) for row in values], point), numbers_of(map(pack, values), point)], axis=1)


class Digests:
    """The pairs of one side, in a folder. What came after `kept` was noted is forgotten when it is opened again."""

    def __init__(self, folder: Path, parts: int, point: int, kept: Sequence[int] = ()) -> None:
        """`point`: that of both sides. `kept`: how many rows each part had, of a side that is gone on with."""
        folder.mkdir(parents=True, exist_ok=True)
        self.point = point
        self._paths = [folder / f"{number:02}.pairs" for number in range(parts)]
        self.counts = list(kept) or [0] * parts
        with ExitStack() as opened:
            self._files: list[IO[bytes]] = []
            for path, count in zip(self._paths, self.counts, strict=True):
                file = opened.enter_context(open(path, "r+b" if kept else "w+b"))
                file.truncate(16 * count)
                file.seek(0, os.SEEK_END)
                self._files.append(file)
            self._opened = opened.pop_all()

    def add(self, rows: Sequence[Sequence[Any]] | Packed, key: Sequence[int]) -> None:
        """Take in rows in stored form; `key`: where the values of their key are."""
        pairs = row_numbers(rows, key, self.point)
        parts = len(self._files)
        where = (pairs[:, 0] >> np.uint64(32)) % np.uint64(parts) if parts > 1 else None
        for number, file in enumerate(self._files):
            own = pairs if where is None else pairs[where == number]
            file.write(own.data)
            self.counts[number] += len(own)

    def flush(self) -> None:
        """Hand all that came to the system: a process that is killed loses none of it."""
        for file in self._files:
            file.flush()

    @property
    def rows(self) -> int:
        """How many rows came."""
        return sum(self.counts)

    def part(self, number: int) -> Numbers:
        """Return the pairs of a part."""
        self._files[number].flush()
        return np.fromfile(self._paths[number], np.uint64).reshape(-1, 2)

    def close(self) -> None:
        """Close the files; they stay. Idempotent."""
        self._opened.close()

    def __len__(self) -> int:
        return len(self._files)


def differing(one: Digests, other: Digests) -> Numbers:
    """Return the numbers of the keys that have no row, another row or more rows on one of the two sides, in order."""
    found = [_differing(one.part(number), other.part(number)) for number in range(len(one))]
    return np.unique(np.concatenate(found))


def _differing(one: Numbers, other: Numbers) -> Numbers:
    if np.array_equal(one, other):  # read in one order, as sides on servers are that have one key: no need to sort
        return np.empty(0, np.uint64)
    first, second = (np.sort(side[:, 1]) for side in (one, other))
    if np.array_equal(first, second):
        return np.empty(0, np.uint64)
    odd = []
    for pairs, own, theirs in ((one, first, second), (other, second, first)):
        # how often a row is here and there: a row that is doubled on one side differs, too
        here = np.searchsorted(own, own, "right") - np.searchsorted(own, own, "left")
        there = np.searchsorted(theirs, own, "right") - np.searchsorted(theirs, own, "left")
        odd.append(pairs[np.isin(pairs[:, 1], own[here != there]), 0])
    return np.concatenate(odd)
