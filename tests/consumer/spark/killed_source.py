"""The source, in a process that kills itself in one of Spark's calls: for the tests of what a kill there leaves."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType

from shmstore.consumer.spark.source.source import ShmStoreSource

_NAMES = ("initialOffset", "latestOffset", "partitions", "commit")  # the first is called in batch 0 alone
CALLS = [f"{name} {when}" for name in _NAMES for when in ("before", "after")]


class KilledSource(ShmStoreSource):
    """``format("killed")``: option `kill` is a file that names the call to be killed in, such as ``commit before``; it is removed then."""

    def __init__(self, options: dict[str, str]) -> None:
        self._kill = Path(options["kill"])
        super().__init__({name: value for name, value in options.items() if name != "kill"})

    @classmethod
    def name(cls) -> str:
        return "killed"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        reader: Any = super().streamReader(schema)
        for name in _NAMES:
            setattr(reader, name, self._killing(name, getattr(reader, name)))
        return reader  # type: ignore[no-any-return]

    def _killing(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        import functools

        @functools.wraps(call)
        def killing(*arguments: Any) -> Any:
            wanted = self._kill.read_text() if self._kill.exists() else ""
            if wanted == f"{name} before":
                self._end()
            found = call(*arguments)
            if wanted == f"{name} after":
                self._end()
            return found

        return killing

    def _end(self) -> None:
        self._kill.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
