"""What a producer warns of at its start: settings that are valid, and mean less than they seem to."""

from __future__ import annotations

import logging
import time
from datetime import datetime

from shmstore.producer.filters.fit import ShownTables, unfit_row_filters
from shmstore.producer.filters.unused import unused_patterns
from shmstore.producer.settings import Settings


def warn_of_start(settings: Settings, log: logging.Logger) -> None:
    """Log what `start` means where it is a time in the future."""
    start = settings.beginning
    if isinstance(start, datetime) and start.timestamp() > time.time():
        log.warning(
            "start is %r, a future time: the present binlog is skipped, and reading begins with the next event, as with start = latest",
            settings.start,
        )


def warn_of_filters(settings: Settings, tables: ShownTables, log: logging.Logger) -> None:
    """Log which row filters a row would stop the producer for, and which patterns match none of the server's tables or columns. Raises `LinkLost`."""
    for unfit in unfit_row_filters(tables, settings.table_filter()):
        log.warning("%s%s", unfit.problem, "; the first row of that table will stop this producer" * unfit.stops)
    for unused in unused_patterns(tables, settings):
        log.warning("%s", unused)
