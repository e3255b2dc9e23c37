"""Questions to the user at a terminal: an answer, or Enter for what stands in brackets. Ctrl-C and Ctrl-D end it all."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable

from shmstore.units import printable


def ask(question: str, default: str, refuse: Callable[[str], object] = str) -> str:
    """Return the answer; ask again while `refuse` raises ValueError. The questions are on stderr. Raises KeyboardInterrupt."""
    while True:
        print(f"{question} [{default}]: ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            print(file=sys.stderr)
            raise KeyboardInterrupt
        answer = line.strip() or default
        try:
            refuse(answer)
            return answer
        except ValueError as error:
            print(printable(f"  {error}"), file=sys.stderr)


def ask_secretly(question: str) -> str:
    """Return what is typed without being shown. Raises KeyboardInterrupt."""
    try:
        return getpass.getpass(f"{question}: ")
    except EOFError:
        raise KeyboardInterrupt from None
