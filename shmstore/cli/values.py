"""Values of options, as the command line reads them. What cannot be read is an argument error that shows a right one."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shmstore.start_position import Start


def mode(text: str) -> int:
    """Return the file mode that `text` writes in octal digits."""
    try:
        return int(text, 8)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is not a file mode in octal digits, such as 0660") from error


def valued(read: Callable[[str], float]) -> Callable[[str], float]:
    """Return `read` as the type of an option: what it raises is what the command line reports."""

    def found(text: str) -> float:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return found


def seconds(text: str) -> float:
    """Return the seconds above 0 that `text` says."""
    with suppress(ValueError):
        if 0 < (value := float(text)) < float("inf"):
            return value
    raise argparse.ArgumentTypeError(f"{text} is not a number of seconds above 0")


def whole(text: str) -> int:
    """Return the number from 1 up that `text` says."""
    with suppress(ValueError):
        if (value := int(text)) > 0:
            return value
    raise argparse.ArgumentTypeError(f"{text} is not a number from 1 up")


def sequence(text: str) -> int:
    """Return the sequence that `text` says."""
    if text.isascii() and text.isdigit():
        return int(text)
    raise argparse.ArgumentTypeError(f"{text} is not a sequence: give the number of an event, such as 4711")


def port(text: str) -> int:
    """Return the number of a port that `text` says."""
    if text.isascii() and text.isdigit() and int(text) < 65536:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text} is not a port, such as 9106")


def address(text: str) -> tuple[str, int]:
    """Return the (host, port) of ``HOST:PORT``; an IPv6 host stands in brackets."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise argparse.ArgumentTypeError(f"{text} is not HOST:PORT, such as 127.0.0.1:11111")
    return host.removeprefix("[").removesuffix("]"), int(port)


def place(text: str) -> Start:
    """Return the start that `text` names, in the forms of `shmstore.start_position`."""
    from shmstore.start_position import parse_start

    try:
        return parse_start(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def toml(value: Any) -> str:
    """Return a value in TOML, whose basic strings are written as those of JSON are, but for DEL. Raises ValueError where it cannot be."""
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(toml, value)) + "]"
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{value!r} is not text in UTF-8") from error
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
