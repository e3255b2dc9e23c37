"""Readers out: Python, Spark, the Canal wire protocol.

`Consumer` is the Python one; ``shmstore.consumer.spark`` needs the extra `spark`, ``shmstore.consumer.wire`` the extra `server`.
"""

if __name__ == "consumer":  # found as a folder of the checkout, where a file of yours may have the same name
    raise ImportError("import shmstore.consumer instead of consumer")

import typing

from shmstore import lazy_names

if typing.TYPE_CHECKING:
    from shmstore.consumer.consumer import Consumer

__all__ = ["Consumer"]


# Imported when it is first asked for: where it lacks NumPy, a process of Spark's is to say more than that.
__getattr__, __dir__ = lazy_names.of(__name__, {"shmstore.consumer.consumer": "Consumer"})
