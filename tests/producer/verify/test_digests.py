"""shmstore.producer.verify.digests: the compiled numbers of rows are those of hashlib, whatever the rows are."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
import pytest

from shmstore.encoding.codec import Packed, pack
from shmstore.producer.native_code import COMPILED
from shmstore.producer.verify.digests import row_numbers

SIZES = (0, 1, 5, 31, 32, 63, 64, 127, 128, 129, 255, 256, 257, 384, 70_000)  # around MessagePack's heads and BLAKE2b's blocks


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


@pytest.mark.parametrize("packed", [False, True])
def test_numbers_are_those_of_hashlib(seed: int, packed: bool) -> None:
    """Each row has BLAKE2b of its key's values and of the whole row, cut to 64 bits; given as values or as MessagePack."""
    chance = random.Random(seed)
    for _ in range(100):
        width = chance.randrange(1, 20)
        key = tuple(chance.sample(range(width), chance.randrange(1, min(width, 4) + 1)))
        rows = [[value(chance) for _ in range(width)] for _ in range(chance.choice((0, 1, 7, 20)))]
        texts = [(b"".join([pack(row[i]) for i in key]), pack(row)) for row in rows]
        wanted = [[int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") for text in pair] for pair in texts]
        found = row_numbers(Packed(pack(rows)) if packed else rows, key)
        assert found.astype("<u8").tolist() == wanted
        assert found.dtype == np.uint64


@pytest.mark.skipif(not COMPILED, reason="of the compiled code")
def test_what_is_no_rows_is_refused() -> None:
    """Rows that end early, have something behind them, or lack a value of the key are an error, and nothing behind their memory is looked at."""
    whole = pack([[1, "some text", b"bytes", None, 2.5], [2, "x" * 300, b"", None, -1]])
    for size in range(len(whole)):
        with pytest.raises(ValueError, match=r"rows|a row"):
            row_numbers(Packed(whole[:size]), (0,))
    for wrong, key in (
        (whole + b"\0", (0,)),
        (whole, (5,)),
        (pack([1]), (0,)),
        (b"\xdd\xff\xff\xff\xff\x91\x01", (0,)),
        (b"\xc0", (0,)),
    ):
        with pytest.raises(ValueError, match=r"rows|a row"):
            row_numbers(Packed(wrong), key)
