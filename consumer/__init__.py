"""Readers out: Python, Spark, the Canal wire protocol.

`Consumer` is the Python one; ``shmstore.consumer.spark`` needs the extra `spark`, ``shmstore.consumer.wire`` the extra `server`.
"""

if __name__ == "consumer":  # found as a folder of the checkout, where a file of yours may have the same name
    raise ImportError("import shmstore.consumer instead of consumer")

import typing

if typing.TYPE_CHECKING:
    from shmstore.consumer.consumer import Consumer

__all__ = ["Consumer"]


def __getattr__(name: str) -> typing.Any:
    """Import `Consumer` when it is first asked for: where it lacks NumPy, a process of Spark's is to say more than that."""
    if name != "Consumer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shmstore.consumer.consumer import Consumer

    globals()[name] = Consumer
    return Consumer
