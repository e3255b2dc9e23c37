"""MySQL's packed integer: one byte below 251, or a byte that says how many bytes follow."""

from __future__ import annotations

__all__ = ["packed"]

_WIDTHS = {252: 2, 253: 3, 254: 8}


def packed(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Read the packed integer at `at`. Returns (value, where it ended); IndexError or ValueError where there is none."""
    first = data[at]
    if first < 251:
        return first, at + 1
    if first not in _WIDTHS:  # 251 is NULL, 255 an error packet
        raise ValueError(f"byte {first} begins no packed integer")
    end = at + 1 + _WIDTHS[first]
    if end > len(data):
        raise IndexError("a packed integer runs past the end")
    return int.from_bytes(data[at + 1 : end], "little"), end
