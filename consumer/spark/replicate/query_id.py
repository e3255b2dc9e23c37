"""The id of the query that calls a function of `foreachBatch`: the same in each run from its checkpoint."""

from __future__ import annotations

import json

from pyspark.sql import SparkSession

from shmstore.consumer.spark.spark_version import is_connect


class QueryId:
    """Finds the id of one query, whose checkpoint may be None but under Spark Connect; `caller` is what the checkpoint is given to, for messages."""

    def __init__(self, checkpoint: str | None, caller: str) -> None:
        self._checkpoint, self._caller = checkpoint, caller
        self._kept = ""

    def of(self, session: SparkSession) -> str:
        """Return the id: a property of the query's session, or, under Spark Connect, in its checkpoint. Raises ValueError."""
        if not is_connect(session):
            return session.sparkContext.getLocalProperty("sql.streaming.queryId") or "shmstore"
        if not self._kept:
            if self._checkpoint is None:
                raise ValueError(
                    f"under Spark Connect {self._caller} needs the query's checkpoint: {self._caller}(..., checkpoint='/path')"
                )
            (line,) = session.read.text(f"{self._checkpoint}/metadata").collect()
            self._kept = str(json.loads(line.value)["id"])
        return self._kept
