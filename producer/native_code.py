"""The compiled decoder, where it was built and is not switched off."""

from __future__ import annotations

import os

__all__ = ["COMPILED", "compiled"]

try:
    from shmstore.producer.native import compiled
except ImportError:  # built without a compiler
    compiled = None  # type: ignore[assignment]

#: True where rows are decoded by compiled code; SHMSTORE_PURE=1 in the environment keeps it from that.
COMPILED: bool = compiled is not None and os.environ.get("SHMSTORE_PURE", "") in ("", "0")
