"""With which definitions of the tables readers find a store, when its producer has chosen where to begin."""

from __future__ import annotations

from shmstore import Position, SchemaUnknown
from shmstore.producer.connection.server import log_end
from shmstore.producer.errors import PrivilegeMissing
from shmstore.producer.schema.history import SchemaHistory
from shmstore.producer.schema.published import PublishedTables
from shmstore.producer.settings import Settings
from shmstore.producer.start.beginning import Beginning, Found
from shmstore.producer.start.resume import Resume
from shmstore.producer.start.schema_history import take_snapshot


def publish(published: PublishedTables, found: Found, chosen: Beginning, settings: Settings) -> None:
    """Write down the tables as they are where the stream begins; where that is not known, as the server has them now, from there on."""
    start = chosen.start
    if isinstance(chosen.schemas, SchemaHistory):
        published.begin(chosen.schemas, start.position, own=False)
        return
    if settings.schema_history == "off":  # nobody is asked
        published.end()
        return
    history, known = SchemaHistory(), not found.fresh and start.lost is None
    if known and (tables := published.written(found.resume.position if found.resume is not None else start.position)):
        fold = found.server.variables.get("lower_case_table_names", "0") != "0"
        history.begin(start.position, tables, mariadb=found.server.mariadb, fold_case=fold)
        published.begin(history, start.position, own=True)
        return
    try:
        position = take_snapshot(history, found.session, found.server, log_end)
    except (PrivilegeMissing, SchemaUnknown):
        published.end()  # rows say how their table is defined
    else:
        published.begin(history, position, own=True)


def publish_files(published: PublishedTables, resume: Resume | None, position: Position) -> None:
    """The same of local binlog files, which tell of the tables that they create."""
    history = SchemaHistory()
    history.begin(position, published.written(resume.position) if resume is not None else {})
    published.begin(history, position, own=True)
