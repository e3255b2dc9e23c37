"""The compiled hot paths of ring and encoding. Without a compiler they are missing, and pure Python does the same."""

from __future__ import annotations

import os
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

_PACKAGE = Path(__file__).parent.parent
MODULES = (
    "native/hot",
    "native/columns",
    "producer/native/compiled",
    "consumer/wire/native/entries",
    "consumer/queues/native/rows",
)
_COSTS = "6 to 23 times the CPU for each row decoded"
_FIX = "install a C compiler and Python's headers (Debian: gcc, python3-dev), then shmstore again; or install a wheel"


def pure_python() -> str:
    """Say that pure Python runs in place of compiled code, why, what it costs and what to do; empty where compiled code runs."""
    if os.environ.get("SHMSTORE_PURE", "") not in ("", "0"):
        return f"pure Python runs, {_COSTS}: SHMSTORE_PURE is set; unset it"
    built = {name for name in MODULES for suffix in EXTENSION_SUFFIXES if Path(_PACKAGE, name + suffix).exists()}
    missing = [name for name in MODULES if name not in built]
    if not missing:
        return ""
    was = "no module was compiled" if len(missing) == len(MODULES) else f"not compiled: {', '.join(missing)}"
    cost = _COSTS if "producer/native/compiled" in missing else "more CPU"
    return f"pure Python runs, {cost}: {was}; {_FIX}"
