"""IcebergTarget: copies of tables in Iceberg, written by Spark with Iceberg's own runtime, in a catalog as Spark is configured.

Every snapshot carries the copy's marks in its summary, all of them: how far each query is, and the state of the copy. So a replayed batch
finds the steps that are done. What others commit meanwhile, such as a compaction, has no marks: those of the newest snapshot before it hold.

Rows are merged by Spark's MERGE. What changes no row file (columns, an emptied table, marks alone) goes through Iceberg's Java API, columns and marks in
one transaction. Iceberg's columns have identities, so that renames and drops rewrite nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast, col
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from shmstore.consumer.copies import schema_evolution
from shmstore.consumer.copies.change_reduction import (
    CURRENT,
    HISTORY,
    OURS,
    VALID_TO,
    Alter,
    CannotCopy,
    CannotFollow,
    Columns,
    CopyDamaged,
    CopyDiffers,
    CopyRefuses,
    Empty,
    Merge,
    Replace,
    RowsElsewhere,
    Step,
    Versions,
    keeps_history,
)
from shmstore.consumer.copies.changed_rows import target_fields
from shmstore.consumer.copies.target import TargetFailed
from shmstore.consumer.copies.targets.folders import AT_ONCE
from shmstore.consumer.copies.targets.names import NamedCopies
from shmstore.consumer.spark.decode.arrow_frame import whole
from shmstore.consumer.spark.replicate.java_errors import BAD_REQUEST, JAVA_ERRORS, first_line, is_refusal, of_one_copy
from shmstore.consumer.spark.replicate.merge_sql import Rows, new_rows, quoted, source_of, viewed, without_rows
from shmstore.consumer.spark.replicate.sessions import Sessions
from shmstore.consumer.spark.spark_version import version
from shmstore.event import Column, TableSchema
from shmstore.sql.names import folded

MARKS = "shmstore.marks"
_COPY = "shmstore.copy"  # a table's property: its snapshots have marks
_PROPERTY = f"spark.sql.iceberg.snapshot-property.{MARKS}"
_JARS = {(4, 0): "4.0", (4, 1): "4.1"}
_RELEASE = "1.11.0"
_LEFT = TableSchema("", "", (Column("n", "int", nullable=False),), (0,))
_SPACES = threading.Lock()  # catalogs fail where two tables of a batch create their namespace at the same time
_ABSENT = re.compile("SCHEMA_NOT_FOUND|NoSuchNamespace|NoSuchDatabase|FileNotFound|Failed to list namespace")


def require_runtime(session: SparkSession, target: str) -> None:
    """Raise ValueError where the session has no Iceberg, or not the catalog that `target` begins with; the message says how to get it."""
    found = ".".join(map(str, version()))
    jar = _JARS.get(version())
    loader = session._jsparkSession.sharedState().jarClassLoader()
    try:
        loader.loadClass("org.apache.iceberg.spark.SparkCatalog")
    except Py4JJavaError as error:
        if jar is None:
            raise ValueError(
                f"format='iceberg' needs Iceberg's runtime for Spark, and there is none for Spark {found}: use Spark {' or '.join(_JARS.values())} "
                f"(pip install 'pyspark=={max(_JARS.values())}.*'), or format='delta'"
            ) from error
        raise ValueError(
            f"format='iceberg' needs Iceberg's runtime for Spark {found}, which this session does not have: start Spark with "
            f"--packages org.apache.iceberg:iceberg-spark-runtime-{jar}_2.13:{_RELEASE}"
        ) from error
    catalog = target.split(".")[0]
    if "{" in catalog or session.conf.get(f"spark.sql.catalog.{catalog}", "") == "":
        raise ValueError(
            f"target {target!r} must begin with the name of a catalog, as in lake.{{database}}.{{table}}, that Spark is configured with: "
            "spark.sql.catalog.lake=org.apache.iceberg.spark.SparkCatalog, spark.sql.catalog.lake.type=hadoop, rest or jdbc, and what that needs"
        )


class IcebergTarget(NamedCopies):
    """The copies in the catalogs of a session (`Target`)."""

    at_once = AT_ONCE

    def __init__(self, session: SparkSession) -> None:
        self._session, self._sessions = session, Sessions(session)

    def table(self, path: str, name: str) -> IcebergTable:
        """`Target.table`."""
        return IcebergTable(self._session, self._sessions, path, name)

    def paths(self, template: str) -> list[str]:
        """`Target.paths`."""
        if "{database}" in template:
            return _all_tables(self._session, template.split(".")[0])
        head, _, tail = template.partition("{table}")
        return [f"{head}{name}{tail}" for name in _tables_like(self._session, head, tail)]

    def transaction(self) -> AbstractContextManager[None]:
        """Each step is a commit of its own."""
        return nullcontext()

    def close(self) -> None:
        """The session is the caller's."""


def _tables_like(session: SparkSession, head: str, tail: str) -> list[str]:
    """Return the source tables that have a copy: what is between `head` (``catalog.database.prefix``) and `tail` in their names."""
    space, _, prefix = head.rpartition(".")
    rows = _shown(session, f"SHOW TABLES IN {_path(space)}")
    names = [row.tableName for row in rows if not row.tableName.startswith(OURS)]
    return [name[len(prefix) : len(name) - len(tail)] for name in names if name.startswith(prefix) and name.endswith(tail)]


def _all_tables(session: SparkSession, catalog: str) -> list[str]:
    """Return every copy in a catalog, as ``catalog.database.table``."""
    spaces = [row.namespace for row in _shown(session, f"SHOW NAMESPACES IN {_path(catalog)}")]
    names = [f"{catalog}.{space}.{name}" for space in spaces for name in _tables_like(session, f"{catalog}.{space}.", "")]
    return [name for name in names if _is_copy(session, name)]


def _is_copy(session: SparkSession, name: str) -> bool:
    try:
        with of_one_copy(name, name):
            return bool(session.sql(f"SHOW TBLPROPERTIES {_path(name)}").where(f"key = '{_COPY}'").count())
    except (CopyDamaged, CopyRefuses):
        return False


def _shown(session: SparkSession, sql: str) -> list[Any]:
    """The rows of a SHOW; none where the catalog has no such namespace yet, nor a folder for any: the first copy makes it. Nor can it have one of
    a name that it refuses."""
    try:
        return session.sql(sql).collect()
    except JAVA_ERRORS as error:
        if _ABSENT.search(str(error)) or BAD_REQUEST.search(str(error)):
            return []
        raise


def _path(path: str) -> str:
    return ".".join(map(quoted, path.split(".")))


def _stored(table: pa.Table) -> pa.Table:
    """The rows with Iceberg's types, which have no integers of less than 32 bits."""
    return table.cast(_fields(table.schema))


def _frame(session: SparkSession, rows: pa.Table) -> DataFrame:
    rows = whole(_stored(rows))
    return session.createDataFrame(rows, from_arrow_schema(rows.schema, prefer_timestamp_ntz=True))


def _fresh(session: SparkSession, table: str) -> DataFrame:
    session.catalog.refreshTable(table)
    return session.table(table)


def _fields(schema: pa.Schema) -> pa.Schema:
    return pa.schema(
        [field.with_type(pa.int32()) if field.type in (pa.int8(), pa.int16()) else field.with_nullable(True) for field in schema]
    )


class IcebergTable:
    """One table's copy, the Iceberg table `path`, ``catalog.database.table``."""

    def __init__(self, session: SparkSession, sessions: Sessions, path: str, name: str) -> None:
        self._session, self._sessions, self._path, self._name = session, sessions, path, name
        self._table = _path(path)
        self._jvm: Any = session.sparkContext._jvm
        self._found: Any = None  # the Java table
        self._marks: dict[str, int] = {}
        self._unasked = False  # there is none, and Spark, which asks for it before it creates it, gets an error
        with of_one_copy(path, name):
            if self._is_there():
                try:
                    self._look()
                except JAVA_ERRORS:
                    if self._is_there():  # Spark forgets a table that others removed when it looks for its newest snapshot
                        raise
        if self._found is None and not path.rpartition(".")[2].startswith(OURS):
            self._marks = self._left()._marks

    def _left(self) -> IcebergTable:
        """What a removed copy leaves: a table without rows, which has its marks."""
        space, _, bare = self._path.rpartition(".")
        name = f"{OURS}removed_{hashlib.sha256(bare.encode()).hexdigest()[:16]}"  # whatever the catalog takes in a name
        return IcebergTable(self._session, self._sessions, f"{space}.{name}", self._name)

    def _is_there(self) -> bool:
        try:
            return bool(self._session.catalog.tableExists(self._table))
        except JAVA_ERRORS as error:
            if BAD_REQUEST.search(str(error)):
                # where there is no table `shop.history`, Iceberg asks for the history of a table `shop`, which a catalog may have no place for
                if getattr(self._jvm.org.apache.iceberg.MetadataTableType, "from")(self._path.rpartition(".")[2]) is not None:
                    self._unasked = True
                    return False
                raise CannotCopy(
                    f"the catalog refuses the name of the copy {self._path} of {self._name}: {first_line(error)}"
                ) from error
            if _ABSENT.search(str(error)):
                return False
            raise

    def _look(self) -> None:
        """Read the table as it is now, with its newest marks."""
        self._session.catalog.refreshTable(self._table)
        self._found = self._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(self._session._jsparkSession, self._table)
        self._found.refresh()
        snapshot = self._found.currentSnapshot()
        while snapshot is not None:
            text = snapshot.summary().get(MARKS)
            if text is not None:
                self._marks = {str(name): int(number) for name, number in json.loads(text).items()}
                return
            parent = snapshot.parentId()
            snapshot = None if parent is None else self._found.snapshot(parent)
        if self._found.properties().get(_COPY) is not None:
            raise CopyDamaged(
                f"the copy {self._path} of {self._name} has no snapshot left that says how far it is: they were expired. Remove it, and it begins "
                "again; keep the newest snapshot of replicate when others are expired (retain_last)"
            )
        self._marks = {}

    # ---------------------------------------------------------------- state

    @property
    def exists(self) -> bool:
        """Whether there is such a table."""
        return self._found is not None

    @property
    def keeps_history(self) -> bool:
        """Whether it keeps every version of a row."""
        return self._found is not None and keeps_history(self.mark(HISTORY), self._names())

    @property
    def columns(self) -> Columns:
        """`TargetTable.columns`."""
        if self._found is None:
            return {}
        with of_one_copy(self._path, self._name):
            return schema_evolution.columns_in(to_arrow_schema(self._session.table(self._table).schema))

    @property
    def names(self) -> list[str]:
        """`SearchableTable.names`."""
        return [] if self._found is None else self._names()

    def rows_of(self, keys: pa.Table | None, columns: pa.Schema) -> pa.Table:
        """`SearchableTable.rows_of`."""
        with of_one_copy(self._path, self._name):
            there = self._session.table(self._table)
            if keys is not None:
                over = [there[quoted(name)].eqNullSafe(col(f"_s.{quoted(name)}")) for name in keys.column_names]
                there = there.join(broadcast(_frame(self._session, keys).alias("_s")), reduce(and_, over), "left_semi")
            return there.select([there[quoted(name)] for name in columns.names]).toArrow().cast(columns)

    def mark(self, name: str) -> int:
        """The number that was committed last under `name`; -1 where there is none."""
        return self._marks.get(name, -1)

    def _names(self) -> list[str]:
        return [field.name() for field in self._found.schema().columns()]

    def create(self, schema: TableSchema, keys: Sequence[str], marks: Mapping[str, int]) -> None:
        """Create the table without rows, in one commit. Raises `CannotCopy`, `CopyRefuses`."""
        with of_one_copy(self._path, self._name):
            self._write(pa.schema(target_fields(schema)).empty_table(), marks)

    def commit(self, step: Step | None, marks: Mapping[str, int]) -> None:
        """Do a step, or none, and keep `marks`, in one commit. Raises `CopyDiffers`, `CopyDamaged`, `CannotFollow`; then nothing was changed."""
        with of_one_copy(self._path, self._name):
            self._commit(step, marks)

    def _commit(self, step: Step | None, marks: Mapping[str, int]) -> None:
        if self._found is None:
            if isinstance(step, Merge | Versions):
                self._write(new_rows(step), marks)
                return
            if not isinstance(step, RowsElsewhere):
                return
            self._write(new_rows(without_rows(step)), {name: number for name, number in marks.items() if name == HISTORY})
        if isinstance(step, Merge | Versions | RowsElsewhere):
            self._fit(step)
            self._merge(step, marks)
        elif isinstance(step, Replace):
            self._take_over(step, marks)
        elif isinstance(step, Alter):
            self._alter(step, marks)
        elif isinstance(step, Empty) and self.keeps_history:
            moment = f"timestamp_micros({step.time_ms * 1000})"
            with self._marked(marks) as session:
                session.sql(f"UPDATE {self._table} SET {VALID_TO} = {moment}, {CURRENT} = false WHERE {CURRENT}")
        elif isinstance(step, Empty):
            everything = self._jvm.org.apache.iceberg.expressions.Expressions.alwaysTrue()
            self._set(self._found.newDelete().deleteFromRowFilter(everything), marks)
        else:
            self._set(self._found.newAppend(), marks)  # of no files
        self._look()
        if any(self._marks.get(name) != number for name, number in marks.items()):
            self._set(self._found.newAppend(), marks)  # the statement changed nothing, so that Spark committed none
            self._look()

    def remove(self, marks: Mapping[str, int]) -> None:
        """Drop the table with its files, behind a commit that keeps `marks`: a process that is killed between them does this again."""
        if self._found is None:
            return
        with of_one_copy(self._path, self._name):
            known = self._marks
            there = self._is_there()
            if there:
                self._look()
            if not there or self._marks != known:
                raise TargetFailed(f"another process changed the copy {self._path} of {self._name}")
            if marks and (left := self._left()).exists:
                left.commit(None, marks)
            elif marks:
                left.create(_LEFT, ("n",), marks)
            self._session.sql(f"DROP TABLE IF EXISTS {self._table} PURGE")
        self._found, self._marks = None, left._marks if marks else {}

    # ---------------------------------------------------------------- commits

    def _text(self, marks: Mapping[str, int]) -> str:
        return json.dumps({**self._marks, **marks})

    def _set(self, update: Any, marks: Mapping[str, int]) -> None:
        """Commit an update of the Java API with the marks in its snapshot."""
        update.set(MARKS, self._text(marks)).commit()

    @contextmanager
    def _marked(self, marks: Mapping[str, int]) -> Iterator[SparkSession]:
        """A session in which what is committed has the marks in its snapshot. Other threads, with other tables, have others."""
        with self._sessions.with_settings({_PROPERTY: self._text(marks)}) as session:
            if self._found is not None:
                session.catalog.refreshTable(self._table)  # each session keeps what it has seen of a catalog
            yield session

    def _write(self, table: pa.Table, marks: Mapping[str, int]) -> None:
        """Make the table, or another in its place, with these rows: one commit."""
        self._replace(lambda session: _frame(session, table), marks)

    def _replace(self, frame: Callable[[SparkSession], DataFrame], marks: Mapping[str, int]) -> None:
        space, _, bare = self._path.rpartition(".")
        if self._found is None:
            if not bare.startswith(OURS) and self._left()._marks != self._marks:
                raise TargetFailed(f"another process removed the copy {self._path} of {self._name}")
            self._make_space(space)
        with self._marked(marks) as session:
            if self._unasked:
                self._create_empty(frame(session))
            writer = frame(session).writeTo(self._table).using("iceberg")
            writer.tableProperty("format-version", "2").tableProperty(_COPY, "1").createOrReplace()
        self._look()

    def _create_empty(self, frame: DataFrame) -> None:
        """Create the table without Spark, and without marks, which the commit brings that takes its place."""
        catalog, _, name = self._path.partition(".")
        schema = self._jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert(
            self._jvm.org.apache.spark.sql.types.DataType.fromJson(frame.schema.json())
        )
        made = self._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergCatalog(self._session._jsparkSession, catalog)
        made.createTable(self._jvm.org.apache.iceberg.catalog.TableIdentifier.parse(name), schema)
        self._unasked = False

    def _make_space(self, space: str) -> None:
        """Create the namespace, with those that it is in. Raises `CannotCopy` where there can be none of this name, `CannotFollow` where we may not."""
        parts = space.split(".")
        for count in range(2, len(parts) + 1):
            statement = f"CREATE NAMESPACE IF NOT EXISTS {_path('.'.join(parts[:count]))}"
            try:
                with _SPACES, suppress(*JAVA_ERRORS):
                    self._session.sql(statement)
                    continue
                self._session.sql(statement)  # another query may have created it at the same time
            except JAVA_ERRORS as error:
                why = f"the catalog has no namespace {'.'.join(parts[1:])}, for the copy of {self._name}, and refuses to create it: {first_line(error)}"
                raise (CannotCopy if is_refusal(error) else CannotFollow)(why) from error

    # ---------------------------------------------------------------- steps

    def _fit(self, step: Rows) -> None:
        """Check that the columns are those of the rows; a copy without rows takes theirs. Raises `CopyDiffers`, `CannotFollow`."""
        own = without_rows(step)
        rows = new_rows(schema_evolution.spelled(own, self._names()))
        history = isinstance(own, Versions)
        schema_evolution.require_kind(self._path, self._name, keeps=self.keeps_history, wanted=history)
        there = self._session.table(self._table)
        wanted = from_arrow_schema(_fields(rows.schema), prefer_timestamp_ntz=True)
        have, want = ({field.name: field.dataType for field in schema} for schema in (there.schema, wanted))
        if have == want:
            return
        if there.limit(1).count():
            different = [f"{name} ({type_.simpleString()})" for name, type_ in want.items() if have.get(name) != type_]
            different += [f"no {name}" for name in have if name not in want]
            raise CopyDiffers(schema_evolution.no_ddl_explains(self._name, different))
        self._write(new_rows(own), {})

    def _merge(self, step: Rows, marks: Mapping[str, int]) -> None:
        """One commit, of rows and marks."""
        source = source_of(step, self._names(), lambda rows: _frame(self._session, rows))
        with viewed(source.frame) as rows, self._marked(marks) as session:
            session.sql(source.statement(self._table, rows))

    def _take_over(self, step: Replace, marks: Mapping[str, int]) -> None:
        other = IcebergTable(self._session, self._sessions, step.path, self._name)
        if other.exists:
            self._replace(lambda session: _fresh(session, other._table), marks)
        else:
            self._write(pa.schema(target_fields(step.schema)).empty_table(), marks)

    def _alter(self, step: Alter, marks: Mapping[str, int]) -> None:
        """All changes and the marks in one transaction. Raises `CopyDiffers`."""
        if any(change.default is not None for change in step.changes):
            raise CopyDiffers(
                f"a column of {self._name} came with a value, which tables of Iceberg's version 2 have no place for"
            )
        there = {folded(name): name for name in self._names()}
        transaction = self._found.newTransaction()
        update = transaction.updateSchema()
        types = self._jvm.org.apache.iceberg.spark.SparkSchemaUtil
        try:
            for change in step.changes:
                name = there.get(folded(change.name))
                kind = None
                if change.column is not None:
                    (field,) = target_fields(TableSchema("", "", (change.column._replace(name=change.to),)))
                    struct = from_arrow_schema(_fields(pa.schema([field])), prefer_timestamp_ntz=True)
                    json_type = self._jvm.org.apache.spark.sql.types.DataType.fromJson(struct[0].dataType.json())
                    kind = types.convert(json_type)
                if not change.name:
                    if folded(change.to) not in there and kind is not None:
                        update.addColumn(None, change.to, kind)
                elif name is not None and not change.to:
                    update.deleteColumn(name)
                elif name is not None:
                    if kind is not None and self._found.schema().findType(name) != kind:
                        update.updateColumn(name, kind)
                    if name != change.to:
                        update.renameColumn(name, change.to)
            update.commit()
            self._set(transaction.newAppend(), marks)
        except JAVA_ERRORS as error:
            raise CopyDiffers(f"Iceberg refuses what became of the columns of {self._name}: {first_line(error)}") from error
        except Py4JError as error:
            raise CannotFollow(f"Iceberg's Java API is not as expected: {error}") from error
        transaction.commitTransaction()
