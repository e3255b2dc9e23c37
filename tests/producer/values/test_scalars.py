"""Values of one column: what the server cannot be made to show, and what is compared by the hundred thousand."""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmstore.errors import UnsupportedEvent
from shmstore.producer.values import scalars
from shmstore.sql.charsets import charset_of, decoder
from tests.producer.decoding import run
from tests.servers.server import Server, start_server

# ---------------------------------------------------------------- FLOAT


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_float_is_the_shortest_decimal(value: float) -> None:
    """The double of the shortest decimal that gives the float32 back; numpy's printing is the oracle."""
    raw = struct.pack("<f", value)
    assert repr(scalars.FLOATS[raw]) == repr(float(str(np.float32(value))))


def test_a_hundred_thousand_floats_are_shortest(seed: int) -> None:
    """All exponents, seeded."""
    bits = np.random.default_rng(seed).integers(0, 2**32, 100_000, dtype=np.uint32)
    floats = bits.view(np.float32)
    for value, number in zip(floats[np.isfinite(floats)], bits[np.isfinite(floats)].tolist(), strict=True):
        assert scalars.FLOATS[struct.pack("<I", number)] == float(str(value))


def test_float_keeps_what_is_no_number() -> None:
    """NaN and infinity, which no server stores, stay what they are."""
    assert scalars.FLOATS[struct.pack("<f", float("inf"))] == float("inf")
    nan = scalars.FLOATS[struct.pack("<f", float("nan"))]
    assert nan != nan


# ---------------------------------------------------------------- DECIMAL


def encoded(value: str, precision: int, scale: int) -> bytes:
    """MySQL's binary form of a decimal, written from its description (9 digits in 4 bytes, the rest in fewer)."""
    sizes = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
    whole, _, fraction = value.lstrip("-").partition(".")
    whole, fraction = whole.rjust(precision - scale, "0"), fraction.ljust(scale, "0")
    first = len(whole) % 9
    parts = ([whole[:first]] if first else []) + [whole[i : i + 9] for i in range(first, len(whole), 9)]
    parts += [fraction[i : i + 9] for i in range(0, len(fraction), 9)]
    raw = b"".join(int(part).to_bytes(sizes[len(part)], "big") for part in parts)
    raw = bytes([raw[0] ^ 0x80]) + raw[1:]
    return bytes(byte ^ 0xFF for byte in raw) if value.startswith("-") else raw


@given(st.integers(1, 65).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, min(p, 30)))), st.data())
def test_decimals_of_every_precision(shape: tuple[int, int], data: st.DataObject) -> None:
    """Digits come out as they went in, with all zeros behind the point, for every precision and scale."""
    precision, scale = shape
    digits = data.draw(st.text("0123456789", min_size=precision, max_size=precision))
    whole, fraction = digits[: precision - scale].lstrip("0") or "0", digits[precision - scale :]
    sign = "-" if data.draw(st.booleans()) and digits.strip("0") else ""
    text = sign + whole + (f".{fraction}" if scale else "")
    raw = encoded(text if precision > scale else text.replace("0.", ".", 1), precision, scale)
    assert len(raw) == scalars.decimal_size(precision, scale)
    assert scalars.decimals(precision, scale)(raw) == text
    assert Decimal(text) == Decimal(scalars.decimals(precision, scale)(raw))


@pytest.mark.parametrize(("precision", "scale"), [(5, 2), (9, 0), (10, 2), (20, 10), (65, 30)])
def test_groups_with_too_many_digits_are_refused(precision: int, scale: int) -> None:
    """Bytes that hold more than their digits are damaged."""
    with pytest.raises(ValueError, match="DECIMAL"):
        scalars.decimals(precision, scale)(b"\xff" * scalars.decimal_size(precision, scale))


# ---------------------------------------------------------------- times


@pytest.mark.parametrize("digits", range(7))
def test_times_of_every_precision_and_sign(digits: int) -> None:
    """TIME's bytes are one number around the middle: negative fractions borrow from the seconds."""
    size = (digits + 1) // 2
    for sign in (1, -1):
        for hour, minute, second, fraction in (
            (0, 0, 0, 1),
            (838, 59, 59, 0),
            (12, 34, 56, 10**digits - 1),
            (0, 0, 1, 5 if digits else 0),
        ):
            units = fraction * 10 ** (2 * size - digits) % 100**size if digits else 0
            number = ((hour << 12 | minute << 6 | second) << 8 * size) + units
            raw = (sign * number + (0x800000 << 8 * size)).to_bytes(3 + size, "big")
            expected = (hour * 3600 + minute * 60 + second) * 10**6 + units * 10 ** (6 - 2 * size)
            assert scalars.times(digits)[raw] == sign * expected


@pytest.mark.parametrize(
    ("moment", "raw"),
    [
        (scalars.DATES.__getitem__, b"\xff\xff\xff"),
        (scalars.DATES.__getitem__, b"\xa0\xff\x01"),  # month 13
        (scalars.datetimes(0), b"\xff\xff\xff\0\0"),
        (scalars.datetimes(0), b"\0\0\0\0\0"),
        (scalars.datetimes(0), b"\x99\xb0\x00\x0f\xff"),
        (scalars.datetimes(0), b"\x99\xb0\x01\x80\x00"),  # 24 o'clock
        (scalars.datetimes(0), b"\x80\x00\x01\x80\x00"),  # of a day that is none
        (scalars.times(0).__getitem__, b"\x80\x0f\xff"),
        (scalars.times(2).__getitem__, b"\x80\0\0\xff"),
        (scalars.old_datetimes(0)[1].__getitem__, b"\xff" * 8),
        (scalars.old_times(0)[1].__getitem__, b"\xff\xff\x7f"),
    ],
)
def test_moments_that_cannot_be_are_refused(moment: Callable[[bytes], Any], raw: bytes) -> None:
    """No server writes 24 o'clock, minute 63 or month 13: the bytes are damaged."""
    with pytest.raises(ValueError, match=r"DATE|TIME"):
        moment(raw)


def test_tables_are_bounded() -> None:
    """A table that fills itself is emptied at its limit, and still right."""
    table = scalars.ValueTable(lambda key: key * 2, 10)
    assert [table[i] for i in range(100)] == [i * 2 for i in range(100)]
    assert len(table) <= 10


def test_sets_refuse_members_that_are_not() -> None:
    """A bit behind the last member is damage."""
    assert scalars.members_of_set(("a", "b"))[3] == "a,b"
    with pytest.raises(ValueError, match="SET value 0x4"):
        _ = scalars.members_of_set(("a", "b"))[4]


# ---------------------------------------------------------------- character sets

# fmt: off
EIGHT_BIT = [
    "latin1", "latin2", "latin5", "latin7", "cp850", "cp852", "cp866", "cp1250", "cp1251", "cp1256", "cp1257", "koi8r", "koi8u",
    "greek", "hebrew", "tis620", "armscii8", "geostd8", "keybcs2", "macce", "macroman", "dec8", "hp8", "swe7", "ascii",
]
DOUBLE_BYTE = ["big5", "gbk", "gb2312", "sjis", "cp932", "euckr", "ujis", "eucjpms", "gb18030"]
# fmt: on
# Codes for which the server has no character, and Python's codec has one.
NONE_ON_SERVER = "?"


def codes_of(charset: str) -> list[bytes]:
    single = [bytes([i]) for i in range(256)]
    if charset in EIGHT_BIT:
        return single
    double = [bytes([a, b]) for a in range(0x81, 0xFF) for b in (*range(0x40, 0x7F), *range(0x80, 0xFF))]
    triple = [bytes([0x8F, a, b]) for a in range(0xA1, 0xFF) for b in range(0xA1, 0xFF)]
    return single[:128] + double + (triple if charset in ("ujis", "eucjpms") else [])


@pytest.mark.server
@pytest.mark.parametrize("charset", [*EIGHT_BIT, *DOUBLE_BYTE])
def test_every_code_of_a_character_set_is_the_servers(mysql: Server, charset: str) -> None:
    """Byte by byte, or pair by pair: the same character as CONVERT(... USING utf32) gives."""
    codes = codes_of(charset)
    decode = decoder(charset)
    with mysql.connect() as connection:
        for start in range(0, len(codes), 3000):
            part = codes[start : start + 3000]
            row = run(
                connection, "SELECT " + ",".join(f"hex(convert(convert(x'{c.hex()}' using {charset}) using utf32))" for c in part)
            )[0]
            for code, shown in zip(part, row, strict=True):
                server = bytes.fromhex(shown or "").decode("utf-32-be")
                if len(code) > 1 and (len(server) != 1 or server == NONE_ON_SERVER):
                    continue  # not one character there
                assert decode(code) == server, code.hex()


def test_second_codes_of_big5_are_found_at_characters_only() -> None:
    """A code that is U+FFFD to the servers stays what it is where its bytes belong to two characters."""
    assert decoder("big5")(bytes.fromhex("a15a41a5a15a")) == "\ufffdA央Z"
    assert decoder("big5")(bytes.fromhex("a451a2cc")) == "十\ufffd"


@pytest.mark.server
@pytest.mark.parametrize("kind", ["mysql", "mariadb", "mariadb118"])
def test_every_collation_is_known(request: pytest.FixtureRequest, kind: str) -> None:
    """Each collation id of each server names the character set that the server says."""
    table = "collations" if kind == "mysql" else "collation_character_set_applicability"
    with start_server("mariadb118") if kind == "mariadb118" else request.getfixturevalue(kind).connect() as thing:
        connection = thing.connect() if kind == "mariadb118" else thing
        rows = run(connection, f"SELECT id, character_set_name FROM information_schema.{table} WHERE id IS NOT NULL")
        assert len(rows) > 250
        for id_, name in rows:
            assert charset_of(id_) == name.replace("utf8mb3", "utf8").replace("utf8", "utf8mb3").replace("utf8mb3mb4", "utf8mb4")


def test_unknown_collations_and_sets_are_refused() -> None:
    """A number of a future server is an error that names it, not a guess."""
    with pytest.raises(UnsupportedEvent, match="collation id 9999"):
        charset_of(9999)
    with pytest.raises(UnsupportedEvent, match="'klingon'"):
        decoder("klingon")


@pytest.mark.parametrize("charset", ["utf8mb4", "gbk", "sjis", "ucs2", "utf16", "utf32", "big5", "ujis", "gb18030"])
def test_bytes_that_are_no_text_raise(charset: str) -> None:
    """Multi-byte text that is cut off is refused, never replaced."""
    with pytest.raises(UnicodeDecodeError):
        decoder(charset)(b"\x8f\xa2"[: 1 if charset != "ujis" else 2])


@given(st.binary(min_size=16, max_size=16))
def test_uuid_text(raw: bytes) -> None:
    """32 hexadecimal digits in the groups of a UUID, trailing zeros put back."""
    import uuid

    assert scalars.uuid_text(raw.rstrip(b"\0")) == str(uuid.UUID(bytes=raw))
