"""With which definitions of the tables readers find a store, when its producer has chosen where to begin."""

from __future__ import annotations

from shmstore import Position
from shmstore.producer.schema.history import SchemaHistory
from shmstore.producer.schema.published import PublishedTables
from shmstore.producer.start.beginning import Beginning
from shmstore.producer.start.resume import Resume


def publish(published: PublishedTables, chosen: Beginning) -> None:
    """Write down the tables as they are where the stream begins; where that is not known, as the server has them now, from there on."""
    history = chosen.schemas
    if history is None or history.first is None:  # nobody is asked, or may: rows say how their table is defined
        published.end()
    else:
        published.begin(history, history.first if history.waiting else chosen.start.position, own=False)


def publish_files(published: PublishedTables, resume: Resume | None, position: Position) -> None:
    """The same of local binlog files, which tell of the tables that they create."""
    history = SchemaHistory()
    history.begin(position, published.written(resume.position) if resume is not None else {})
    published.begin(history, position, own=True)
