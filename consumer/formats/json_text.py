"""Documents -> JSON in UTF-8: the one printer of events, of Spark's images and of messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

import orjson

_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def dump(document: Any) -> bytes:
    """Return a document, or a value, as JSON in UTF-8."""
    try:
        return orjson.dumps(document)
    except TypeError:
        # An integer of more than 64 bits, or text that is not valid Unicode: that becomes an escape, which JSON reads back.
        return _encode(document).encode("utf-8", "backslashreplace")


def dump_rows(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[bytes]:
    """Return each row as a JSON object in UTF-8: its values by `names`."""
    return [dump(dict(zip(names, row, strict=True))) for row in rows]
