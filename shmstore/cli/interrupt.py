"""Ctrl-C while Python imports, which `main` imports before anything else: it ends the process there and then.

An exception that is raised inside an import may land in a callback of the import's own, where Python prints it and continues; the
command would run on. What a command imports is not used yet, so that nothing has to be undone.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def interrupt(number: int, frame: object) -> None:
    """End the process where something is being imported; else raise KeyboardInterrupt, as Python does."""
    at: FrameType | None = sys._getframe()
    while at is not None:
        if at.f_code.co_filename.startswith("<frozen importlib"):
            os._exit(130)
        at = at.f_back
    raise KeyboardInterrupt


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, interrupt)
