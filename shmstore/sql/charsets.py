"""Character sets as MySQL and MariaDB understand them: collation id -> name, name -> decoder of stored bytes to str.

Plan. Where Python's codec and the server agree for every code, Python's codec is used. 8-bit sets that differ get a table of
256 characters: a Python codec with the server's own characters written over it ('?' where the server has none, which is what
SELECT shows too). East Asian sets that differ get a few characters exchanged afterwards, or an error handler for codes that
Python's codec lacks. All of it was compared with CONVERT(... USING utf32) on MySQL 9.7 and MariaDB 11.8, code by code, and
the tests compare it again.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache

from shmstore.errors import UnsupportedEvent

__all__ = ["WIDTHS", "charset_of", "decoder", "lenient", "member_text", "python_codec", "statement_decoder", "stored_text"]

# information_schema.COLLATIONS of MySQL 9.7, MariaDB 10.11 and 11.8, which agree; 1024 + id is MariaDB's NOPAD variant.
_COLLATIONS = {
    "big5": "1 84",
    "latin2": "2 9 21 27 77",
    "dec8": "3 69",
    "cp850": "4 80",
    "latin1": "5 8 15 31 47-49 94",
    "hp8": "6 72",
    "koi8r": "7 74",
    "swe7": "10 82",
    "ascii": "11 65",
    "ujis": "12 91",
    "sjis": "13 88",
    "cp1251": "14 23 50-52",
    "hebrew": "16 71",
    "tis620": "18 89",
    "euckr": "19 85",
    "latin7": "20 41-42 79",
    "koi8u": "22 75",
    "gb2312": "24 86",
    "greek": "25 70",
    "cp1250": "26 34 44 66 99",
    "gbk": "28 87",
    "cp1257": "29 58-59",
    "latin5": "30 78",
    "armscii8": "32 64",
    "utf8mb3": "33 76 83 192-223 576-607",
    "ucs2": "35 90 128-159 640-671",
    "cp866": "36 68",
    "keybcs2": "37 73",
    "macce": "38 43",
    "macroman": "39 53",
    "cp852": "40 81",
    "utf8mb4": "45-46 224-247 255-323 608-639",
    "utf16": "54-55 101-124 672-703",
    "utf16le": "56 62",
    "cp1256": "57 67",
    "utf32": "60-61 160-183 736-767",
    "binary": "63",
    "geostd8": "92-93",
    "cp932": "95-96",
    "eucjpms": "97-98",
    "gb18030": "248-250",
}
# MariaDB's uca1400 collations: 2048 + 256 * set + variant.
_UCA1400 = ("utf8mb3", "utf8mb4", "ucs2", "utf16", "utf32")


def _by_id() -> dict[int, str]:
    ids: dict[int, str] = {}
    for name, ranges in _COLLATIONS.items():
        for part in ranges.split():
            first, _, last = part.partition("-")
            for number in range(int(first), int(last or first) + 1):
                ids[number] = name
    return ids


_NAMES = _by_id()


def charset_of(collation: int) -> str:
    """Return the name of the character set of a collation id, as the server names it. Raises `UnsupportedEvent`."""
    name = _NAMES.get(collation)
    if name is None and 1024 < collation < 2048:
        name = _NAMES.get(collation - 1024)
    if name is None and 2048 <= collation < 2048 + 256 * len(_UCA1400):
        name = _UCA1400[(collation - 2048) >> 8]
    if name is None:
        raise UnsupportedEvent(
            f"collation id {collation} is unknown to this version: its character set is not known; "
            "convert the column to utf8mb4, or report the id with the server's version"
        )
    return name


# ---------------------------------------------------------------- 8-bit sets that Python's codecs have not, or otherwise

# name: (Python codec to start from, bytes, the server's characters for them)
_UNDEFINED = "?"
_EIGHT_BIT: dict[str, tuple[str, bytes, str]] = {
    "latin1": ("cp1252", bytes([0x81, 0x8D, 0x8F, 0x90, 0x9D]), "\x81\x8d\x8f\x90\x9d"),
    "dec8": (
        "latin-1",
        bytes([164, 166, 168, 172, 173, 174, 175, 180, 184, 190, 208, 215, 221, 222, 240, 247, 253, 254, 255]),
        "??¤????????ŒŸ??œÿ??",
    ),
    "swe7": ("ascii", bytes([64, 91, 92, 93, 94, 96, 123, 124, 125, 126, 127]), "ÉÄÖÅÜéäöåü?"),
    "hebrew": ("iso8859_8", b"\xaf", "‾"),
    "tis620": ("tis_620", b"\xa0\xdb\xdc\xdd\xde\xfc\xfd\xfe\xff", "\ufffd" * 9),
    "koi8u": ("koi8_u", b"\x95", "•"),
    "greek": ("iso8859_7", b"\xa1\xa2\xa4\xa5\xaa", "ʽʼ???"),
    "cp866": ("cp866", b"\xfc\xfd", "ⁿ²"),
    "cp1256": ("cp1256", b"\x8a\x8f\x98\x9a\x9f\xaa\xc0\xff", "????????"),
    "armscii8": (
        "latin-1",
        bytes(range(161, 256)),
        "❁§։)(»«—.՝,-՟…՜՛՞ԱաԲբԳգԴդԵեԶզԷէԸըԹթԺժԻիԼլԽխԾծԿկՀհՁձՂղՃճՄմՅյՆնՇշՈոՉչՊպՋջՌռՍսՎվՏտՐրՑցՒւՓփՔքՕօՖֆ’'",
    ),
    "keybcs2": (
        "cp437",
        bytes([128, 131, *range(133, 142), 143, 145, 146, *range(149, 153), *range(155, 160), *range(164, 172)]),
        "ČďĎŤčěĚĹÍľĺÁžŽÓůÚýŠĽÝŘťňŇŮÔšřŕŔ",
    ),
    "geostd8": (
        "cp1252",
        bytes([129, 131, 136, 138, 140, 141, 142, 143, 144, 152, 153, 154, 156, 157, 158, 159, *range(192, 256)]),
        "????????????????აბგდევზჱთიკლმნჲოპჟრსტჳუფქღყშჩცძწჭხჴჯჰჵ???????????????????????№??",
    ),
}
# Sets for which Python's codec says the same as the server (undefined bytes aside).
_PYTHON = {
    "utf8mb4": "utf-8",
    "utf8mb3": "utf-8",
    "utf8": "utf-8",
    "ascii": "ascii",
    "ucs2": "utf-16-be",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    "latin2": "iso8859_2",
    "cp850": "cp850",
    "hp8": "hp_roman8",
    "koi8r": "koi8_r",
    "cp1251": "cp1251",
    "latin7": "iso8859_13",
    "cp1250": "cp1250",
    "cp1257": "cp1257",
    "latin5": "iso8859_9",
    "macce": "mac_latin2",
    "macroman": "mac_roman",
    "cp852": "cp852",
    "gb2312": "gb2312",
    "gbk": "gbk",
    "cp932": "cp932",
    "sjis": "shift_jis",
    "big5": "big5",
    "euckr": "cp949",
    "ujis": "euc_jp",
    "eucjpms": "euc_jp",
    "gb18030": "gb18030",
}
# Characters that Python's codec gives where the server gives another.
_EXCHANGED = {
    "sjis": {"＼": "\\"},
    "ujis": {"＼": "\\"},
    "eucjpms": {"〜": "～", "‖": "∥", "−": "－", "¢": "￠", "£": "￡", "¬": "￢", "¦": "￤"},
    "gb18030": {"\ue7c7": "ḿ", "ḿ": "\ue7c7"},
}
# Sets of Python's codecs in which a byte without a character is "?", as in SELECT.
_SINGLE_BYTE = {"ascii", "latin2", "cp850", "hp8", "koi8r", "cp1251", "latin7", "cp1250", "cp1257", "latin5", "macce"} | {
    "macroman",
    "cp852",
}
# Codes of big5 that are second ones of their characters: to the servers they are U+FFFD.
_BIG5_SECOND = tuple(bytes.fromhex(code) for code in ("a15a", "a1c3", "a1c5", "a1fe", "a240", "a2cc", "a2ce"))
_BIG5_EXTRA = dict(zip(range(0xF9D6, 0xF9DD), "碁銹裏墻恒粧嫺", strict=True))

_EUCJPMS_IBM = (
    "ⅰⅱⅲⅳⅴⅵⅶⅷⅸⅹⅠⅡⅢⅣⅤⅥⅦⅧⅨⅩ＇＂㈱№℡炻仼僴凬匇匤\ufa0e咊坙\ufa0f\ufa10增寬峵嵓\ufa11"
    "德悅愠敎昻晥\ufa12\uf929栁\ufa13\ufa14橫櫢淸淲瀨\ufa15\ufa16甁皂皞\ufa17礰\ufa18\ufa19\ufa1a\ufa1b竧\ufa1c\ufa1d綠緖\ufa1e荢\ufa1f薰\ufa20\ufa21蠇\ufa22譿賴赶\ufa23\ufa24\ufa25郞\ufa26鄕\ufa27\ufa28閒\uf9dc\ufa29霻靍靑\ufa2a\ufa2b\ufa2c馞髙魲\ufa2d黑"
)


def _lacking(codec: str) -> Callable[[UnicodeError], tuple[str, int]]:
    """Return the error handler that knows the codes of `codec` which Python's does not; it raises for real errors."""

    def handle(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeDecodeError)
        at = error.start
        character, width = _EXTRA[codec](error.object[at : at + 3])
        if character is None:
            raise error
        return character, at + width

    return handle


def _big5(code: bytes) -> tuple[str | None, int]:
    return _BIG5_EXTRA.get(int.from_bytes(code[:2], "big")), 2


def _ujis(code: bytes) -> tuple[str | None, int]:
    """User-defined rows 85 to 94 of both planes are in the private use area."""
    if len(code) >= 2 and code[0] >= 0xF5 and 0xA1 <= code[1] < 0xFF and code[0] < 0xFF:
        return chr(0xE000 + (code[0] - 0xF5) * 94 + code[1] - 0xA1), 2
    if len(code) >= 3 and code[0] == 0x8F and 0xF5 <= code[1] < 0xFF and 0xA1 <= code[2] < 0xFF:
        return chr(0xE3AC + (code[1] - 0xF5) * 94 + code[2] - 0xA1), 3
    return None, 1


def _eucjpms(code: bytes) -> tuple[str | None, int]:
    """NEC's row 13 is that of cp932, moved; IBM's characters end the plane of JIS X 0212, from 8F F3 F3."""
    if len(code) >= 3 and b"\x8f\xf3\xf3" <= code < b"\x8f\xf4\xff" and 0xA1 <= code[2] < 0xFF:
        return _EUCJPMS_IBM[(code[1] - 0xF3) * 94 + code[2] - 0xF3], 3
    if len(code) >= 2 and code[0] == 0xAD and 0xA1 <= code[1] < 0xFF:
        low = code[1] - 0xA1
        return bytes([0x87, 0x40 + low + (low >= 0x3F)]).decode("cp932"), 2
    return _ujis(code)


_EXTRA: dict[str, Callable[[bytes], tuple[str | None, int]]] = {"big5": _big5, "ujis": _ujis, "eucjpms": _eucjpms}
codecs.register_error("shmstore-undefined", lambda error: (_UNDEFINED * (error.end - error.start), error.end))  # type: ignore[attr-defined]
for _name in _EXTRA:
    codecs.register_error(f"shmstore-{_name}", _lacking(_name))


def python_codec(charset: str) -> str | None:
    """Return the Python codec that decodes `charset` exactly as the server does, or None where it takes `decoder`."""
    if charset in _EIGHT_BIT or charset in _EXTRA or charset in _EXCHANGED or charset in _SINGLE_BYTE:
        return None
    return _PYTHON.get(charset)


_CHARACTERS = re.compile(rb"[\x80-\xff].|.", re.DOTALL)


def _decode_big5(raw: bytes) -> str:
    text = raw.decode("big5", "shmstore-big5")
    if not any(code in raw for code in _BIG5_SECOND):
        return text
    # the two bytes may be the end of one character and the beginning of another
    return "".join(["\ufffd" if c in _BIG5_SECOND else c.decode("big5", "shmstore-big5") for c in _CHARACTERS.findall(raw)])


@lru_cache(maxsize=64)
def decoder(charset: str) -> Callable[[bytes], str]:
    """Return the function that turns stored bytes of `charset` into str, as the server would.

    It raises UnicodeDecodeError on bytes that are no text of the set. Raises `UnsupportedEvent` for an unknown set.
    """
    if charset in _EIGHT_BIT:
        codec, where, characters = _EIGHT_BIT[charset]
        own = dict(zip(where, characters, strict=True))
        table = "".join(own.get(i) or bytes([i]).decode(codec, "replace").replace("\ufffd", _UNDEFINED) for i in range(256))
        return lambda raw: codecs.charmap_decode(raw, "strict", table)[0]
    codec = _PYTHON.get(charset, "")
    if not codec:
        raise UnsupportedEvent(f"character set {charset!r} is unknown to this version; convert the column to utf8mb4")
    errors = f"shmstore-{charset}" if charset in _EXTRA else "shmstore-undefined" if charset in _SINGLE_BYTE else "strict"
    if charset == "big5":
        return _decode_big5
    if charset in _EXCHANGED:
        exchanged = str.maketrans(_EXCHANGED[charset])
        if charset == "eucjpms":  # JIS X 0212's tilde is the full-width one of row 1; 8F begins no other character's tail
            return lambda raw: raw.replace(b"\x8f\xa2\xb7", b"\xa1\xc1").decode(codec, errors).translate(exchanged)
        return lambda raw: raw.decode(codec, errors).translate(exchanged)
    return lambda raw: raw.decode(codec, errors)


# Single bytes that are characters to Python's codec and none to the servers: MySQL cuts a name there.
_CP932_NONE = str.maketrans(dict.fromkeys("\x80\uf8f0\uf8f1\uf8f2\uf8f3", "\ufffd"))


@lru_cache(maxsize=64)
def statement_decoder(charset: str) -> tuple[Callable[[bytes], str], dict[str, str]]:
    """Return how to read a statement that a client sent in `charset`: its decoder, and what characters mean inside of names and strings.

    Each byte of ASCII stays what it is, since it may be syntax, and no other becomes ASCII. The decoder raises UnicodeDecodeError.
    """
    decode = decoder(charset)
    if charset in _EIGHT_BIT or charset in _SINGLE_BYTE:
        meant = decode(bytes(range(256)))
        shown = [chr(i) if i < 128 else chr(0xF700 + i) if c.isascii() and c != _UNDEFINED else c for i, c in enumerate(meant)]
        table = "".join(shown)
        differing = {seen: character for seen, character in zip(shown, meant, strict=True) if seen != character}
        return lambda raw: codecs.charmap_decode(raw, "strict", table)[0], differing
    codec, errors = _PYTHON[charset], f"shmstore-{charset}" if charset in _EXTRA else "strict"
    if charset in ("sjis", "ujis"):
        return lambda raw: raw.decode(codec, errors), _EXCHANGED[charset]
    if charset == "cp932":
        return lambda raw: raw.decode(codec).translate(_CP932_NONE), {}
    return decode, {}


def _pair(error: UnicodeError) -> tuple[str, int]:
    """U+FFFD for a character that is none, both of its bytes: the second may be a backslash or a backtick, which the server does not see."""
    assert isinstance(error, UnicodeDecodeError)
    tail = error.object[error.start + 1 : error.start + 2]
    return "\ufffd", error.start + 1 + (tail >= b"@" and tail != b"\x7f")


codecs.register_error("shmstore-pair", _pair)


def lenient(raw: bytes, charset: str) -> str:
    """Return the text of bytes that are no text of `charset`, an East Asian set: U+FFFD where there is no character."""
    return raw.decode(_PYTHON[charset], "shmstore-pair")


# Sets in which no character takes one byte: how many it takes at least.
WIDTHS = {"ucs2": 2, "utf16": 2, "utf16le": 2, "utf32": 4}


@lru_cache(maxsize=64)
def _characters(charset: str) -> frozenset[str] | None:
    """The characters that a set has; None of Unicode's sets."""
    codec = _PYTHON.get(charset, "")
    if codec.startswith("utf") or codec == "gb18030":
        return None
    decode = decoder(charset)
    codes = [bytes([a]) for a in range(256)]
    if charset not in _EIGHT_BIT and charset not in _SINGLE_BYTE:
        codes += [bytes([a, b]) for a in range(0x81, 0xFF) for b in range(0x40, 0xFF)]
        codes += [bytes([0x8F, a, b]) for a in range(0xA1, 0xFF) for b in range(0xA1, 0xFF)] if codec == "euc_jp" else []
    found: set[str] = set()
    for code in codes:
        with suppress(UnicodeDecodeError):
            found.add(decode(code))
    return frozenset(found)


def stored_text(text: str, charset: str) -> str:
    """Return `text` as it is in a column of `charset`: a character that the set lacks is a question mark."""
    if charset == "binary" or (text.isascii() and charset != "swe7"):
        return text
    if charset in ("utf8mb3", "ucs2"):
        return "".join([c if c <= "\uffff" else "?" for c in text])
    has = _characters(charset)
    return text if has is None else "".join([c if c in has else "?" for c in text])


def member_text(member: bytes, charset: str) -> str:
    """Return the text of an ENUM's or SET's member; with CHARACTER SET binary its bytes are taken for UTF-8.

    Raises `UnsupportedEvent` for bytes that are no text, which a member gets that was given as a hexadecimal literal.
    """
    width = WIDTHS.get(charset, 1)
    try:  # the server fills the first character up from the left
        return decoder("utf8mb4" if charset == "binary" else charset)(member.rjust(-(-len(member) // width) * width, b"\0"))
    except UnicodeDecodeError as error:
        raise UnsupportedEvent(
            f"the member X'{member.hex()}' of an ENUM or SET is no text of {charset}: leave its table out with --exclude, or give "
            "the column other members and begin behind that: `shmstore rm STORE --forget`, then `shmstore produce --start latest`"
        ) from error
