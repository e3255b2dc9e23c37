"""Readers out: Python, Spark, the Canal wire protocol.

`Consumer` is the Python one; ``consumer.spark`` needs the extra `spark`, ``consumer.wire`` the extra `server`.
"""

from consumer.local import Consumer

__all__ = ["Consumer"]
