"""What SELECT's text means: the types of DESIGN section 5, written independently of the decoder."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np


def value_of(type_: str, text: Any, scale: int) -> Any:
    """What SELECT's text means, written independently of the decoder."""
    if text is None:
        return None
    if type_ in ("tinyint", "smallint", "mediumint", "int", "bigint", "year"):
        return int(text)
    if type_ == "decimal":
        return Decimal(text)
    if type_ == "double":
        return float(text)
    if type_ == "float":
        return float(str(np.float32(text)))
    if type_ == "bit":
        return int.from_bytes(text if isinstance(text, bytes) else text.encode("latin-1"), "big")
    if type_ == "time":
        sign, hours, minutes, seconds, fraction = re.fullmatch(r"(-?)(\d+):(\d\d):(\d\d)(?:\.(\d+))?", text).groups()
        value = timedelta(
            hours=int(hours), minutes=int(minutes), seconds=int(seconds), microseconds=int((fraction or "").ljust(6, "0"))
        )
        return -value if sign else value
    if type_ in ("date", "datetime", "timestamp"):
        try:
            value = date.fromisoformat(text) if type_ == "date" else datetime.fromisoformat(text)
        except ValueError:
            return text
        return value.replace(tzinfo=UTC) if type_ == "timestamp" else value
    return text
