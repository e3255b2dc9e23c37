"""Readers out: Python, Spark, the Canal wire protocol.

`Consumer` is the Python one; ``shmstore.consumer.spark`` needs the extra `spark`, ``shmstore.consumer.wire`` the extra `server`.
"""

if __name__ == "consumer":  # found as a folder of the checkout, where a file of yours may have the same name
    raise ImportError("import shmstore.consumer instead of consumer")

from shmstore.consumer.consumer import Consumer

__all__ = ["Consumer"]
