"""shmstore.producer.verify.digests: a row's numbers are its polynomial at the point, in compiled code and in Python, whatever the rows are."""

from __future__ import annotations

import ctypes
import mmap
import random
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from shmstore.encoding.codec import Packed, pack
from shmstore.producer.native_code import COMPILED, compiled
from shmstore.producer.verify.digests import PRIME, Digests, any_point, differing, key_bytes, numbers_of, row_numbers

SIZES = (*range(70), 127, 128, 129, 255, 256, 257, 384, 70_000)  # around words and runs of words, and MessagePack's heads
POINTS = (1, 2, 2**32, 2**60, PRIME - 2, PRIME - 1)


def value(chance: random.Random) -> Any:
    size = chance.choice(SIZES)
    return chance.choice(
        [
            None,
            chance.randrange(-200, 200),
            chance.randrange(-(2**63), 2**64),
            chance.choice((1, -1)) * (2 ** chance.randrange(63)),
            chance.uniform(-1e9, 1e9),
            "ä" * size,
            "x" * size,
            chance.randbytes(size),
        ]
    )


def polynomial(text: bytes, point: int) -> int:
    """What a number is by its definition: the sum of the words by the powers of the point, the length before them."""
    words = [len(text), *[int.from_bytes(text[at : at + 7], "little") for at in range(0, len(text), 7)]]
    return sum(word * pow(point, power, PRIME) for power, word in enumerate(reversed(words))) % PRIME


@pytest.mark.parametrize("packed", [False, True])
def test_numbers_are_the_polynomial_at_the_point(seed: int, packed: bool) -> None:
    """Each row has that of its key's values and of the whole row, given as values or as MessagePack, at any point."""
    chance = random.Random(seed)
    for _ in range(100):
        point = chance.choice((*POINTS, chance.randrange(1, PRIME)))
        width = chance.randrange(1, 20)
        key = tuple(chance.sample(range(width), chance.randrange(1, min(width, 4) + 1)))
        rows = [[value(chance) for _ in range(width)] for _ in range(chance.choice((0, 1, 7, 20)))]
        texts = [(b"".join([pack(row[i]) for i in key]), pack(row)) for row in rows]
        found = row_numbers(Packed(pack(rows)) if packed else rows, key, point)
        assert found.tolist() == [[polynomial(text, point) for text in pair] for pair in texts]
        assert found.dtype == np.uint64
        assert numbers_of([text for text, _ in texts], point).tolist() == found[:, 0].tolist()


def test_words_of_ones_stay_within_their_bits() -> None:
    """The largest words at the largest points, in every length: what is folded never outgrows what it is kept in."""
    for point in POINTS:
        for size in range(300):
            text = pack(b"\xff" * size)
            assert row_numbers(Packed(b"\x91\x91" + text), (0,), point).tolist() == [
                [polynomial(text, point), polynomial(b"\x91" + text, point)]
            ]


def test_rows_that_meet_at_one_point_differ_at_another() -> None:
    """Who knows the point can make two rows of one number. It is drawn for each comparison, so that no client does."""
    point = any_point()
    one = b"\xc4\x0e" + bytes(range(14))  # a value of two words and two bytes
    first, second = int.from_bytes(one[:7], "little"), int.from_bytes(one[7:14], "little")
    other_first = first + (1 << 24)
    moved = (second - (other_first - first) * point) % PRIME
    while moved >> 56:  # not every number is a word
        other_first += 1 << 24
        moved = (second - (other_first - first) * point) % PRIME
    other = other_first.to_bytes(7, "little") + moved.to_bytes(7, "little") + one[14:]
    assert one != other
    assert len(set(numbers_of([one, other], point).tolist())) == 1
    assert len(set(numbers_of([one, other], any_point()).tolist())) == 2


@pytest.mark.parametrize("parts", [1, 3])
def test_what_differs_in_many_rows(tmp_path: Path, seed: int, parts: int) -> None:
    """A hundred of a hundred thousand rows that are missing, other or doubled are found, and none else."""
    chance = random.Random(seed)
    rows = [[number, f"row {number}"] for number in range(100_000)]
    odd = set(chance.sample(range(100_000), 100))
    theirs = list[list[Any]]()
    for row in rows:
        theirs += chance.choice([[], [[row[0], "other"]], [row, row]]) if row[0] in odd else [row]
    chance.shuffle(theirs)
    point = any_point()
    sides = [Digests(tmp_path / name, parts, point) for name in "ab"]
    for side, own in zip(sides, (rows, theirs), strict=True):
        side.add(own, (0,))
    wanted = sorted(numbers_of([pack(number) for number in odd], point).tolist())
    assert differing(*sides).tolist() == wanted
    for side in sides:
        side.close()


@pytest.mark.skipif(not COMPILED, reason="of the compiled code")
def test_what_is_no_rows_is_refused() -> None:
    """Rows that end early, have something behind them, or lack a value of the key are an error, and nothing behind their memory is looked at."""
    whole = pack([[1, "some text", b"bytes", None, 2.5], [2, "x" * 300, b"", None, -1]])
    for size in range(len(whole)):
        with pytest.raises(ValueError, match=r"rows|a row"):
            row_numbers(Packed(whole[:size]), (0,), 3)
    for wrong, key in (
        (whole + b"\0", (0,)),
        (whole, (5,)),
        (pack([1]), (0,)),
        (b"\xdd\xff\xff\xff\xff\x91\x01", (0,)),
        (b"\xc0", (0,)),
    ):
        with pytest.raises(ValueError, match=r"rows|a row"):
            row_numbers(Packed(wrong), key, 3)


@pytest.mark.skipif(not COMPILED, reason="of the compiled code")
def test_damaged_rows_end_within_their_memory(seed: int) -> None:
    """Rows that are cut off, or damaged, behind which no memory is: an error or numbers, and never a look at what is behind. Python takes them for the
    same."""
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * page)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(begin + page), page, 0) == 0
    chance = random.Random(seed)
    heads = [b"\x91\xdd\x80\0\0\0", b"\x91\x91\xdb", b"\x91\x91\xc4", b"\x91\x91\xc6", b"\x91\x92\xc6\xff\xff\xff\xff\x01"]
    whole = pack([[1, "some text", b"bytes" * 60, None, 2.5], [2, "x" * 300, b"", None, -1]])
    damaged = [whole[: chance.randrange(1, len(whole))] for _ in range(300)]
    for _ in range(1_000):
        one = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            one[chance.randrange(len(one))] = chance.randrange(256)
        damaged.append(bytes(one))
    for text in [*heads, *damaged]:
        memory[page - len(text) : page] = text
        at = (ctypes.c_char * len(text)).from_address(begin + page - len(text))
        for key in ((0,), (500,), (1, 3)):
            try:
                found = compiled.row_numbers(memoryview(at).cast("B"), key, 5)
            except ValueError:
                continue
            assert np.frombuffer(found, np.uint64).reshape(-1, 2).tolist() == compare(text, key)


def compare(text: bytes, key: tuple[int, ...]) -> list[list[int]]:
    """The numbers of rows whose values are not read, as their definition gives them."""
    rows, at = list[list[int]](), 1 if text[0] < 0xDC else 3 if text[0] == 0xDC else 5
    while at < len(text):
        unpacker = msgpack.Unpacker(strict_map_key=False)
        unpacker.feed(text[at:])
        width, values = unpacker.read_array_header(), list[bytes]()
        for _ in range(width):
            before = unpacker.tell()
            unpacker.skip()
            values.append(text[at + before : at + unpacker.tell()])
        rows.append([polynomial(b"".join([values[i] for i in key]), 5), polynomial(text[at : at + unpacker.tell()], 5)])
        at += unpacker.tell()
    return rows


def test_numbers_find_what_differs(tmp_path: Path, seed: int) -> None:
    """Sets of rows in several parts: exactly the keys of rows that are missing, other or doubled on one side, against a dictionary."""
    chance = random.Random(seed)
    point = any_point()
    for number in range(50):
        ours = [(k, chance.randrange(3)) for k in range(chance.randrange(60))]
        theirs = [(k, chance.choice((v, v, v, 9))) for k, v in ours if chance.random() < 0.9] + [
            (k, 1) for k in range(90, 90 + chance.randrange(3))
        ]
        if theirs and chance.random() < 0.3:
            theirs.append(theirs[0])
        chance.shuffle(theirs)
        sides = []
        for name, rows in (("a", ours), ("b", theirs)):
            side = Digests(tmp_path / f"{number}{name}", 3, point)
            for at in range(0, len(rows), 7):
                side.add(rows[at : at + 7], (0,))
            sides.append(side)
        keys = {k for k, _ in [*ours, *theirs] if sorted(r for r in ours if r[0] == k) != sorted(r for r in theirs if r[0] == k)}
        expected = sorted(numbers_of([key_bytes((k,), (0,)) for k in keys], point).tolist())
        assert differing(*sides).tolist() == expected
        for side in sides:
            side.close()
