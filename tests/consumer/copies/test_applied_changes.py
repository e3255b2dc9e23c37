"""Changes of a stream of one's own, applied to a table of each kind of target: however they come, the table is what their sequences say."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shmstore import Column, TableSchema
from shmstore.consumer.copies.applied_changes import DELETED, SEQUENCE, AppliedChanges
from shmstore.consumer.copies.change_reduction import CannotFollow, Step
from shmstore.consumer.copies.databases.target import database_target
from shmstore.consumer.copies.target import SearchableTable, Target
from tests.consumer.copies.lakes import target_in

KINDS = ["parquet", "delta", "duckdb", "sqlite"]
Opener = Callable[[], tuple[Target, str]]


class Changed(NamedTuple):
    """One change: `value` is None where it is a delete."""

    key: tuple[int, str]
    seq: int
    value: str | None


def open_in(folder: Path, kind: str) -> tuple[Target, str]:
    """A target, as a new process has it, and the path of a table in it."""
    if kind == "sqlite":
        folder.mkdir(parents=True, exist_ok=True)
        return database_target(f"sqlite:{folder}/copies.db"), "orders"
    target, template = target_in(folder, kind)
    return target, template.replace("{database}", "shop").replace("{table}", "orders")


def table(changes: list[Changed]) -> pa.Table:
    return pa.table(
        {
            "a": pa.array([change.key[0] for change in changes], pa.int32()),
            "b": pa.array([change.key[1] for change in changes], pa.string()),
            "value": pa.array([change.value for change in changes], pa.string()),
            SEQUENCE: pa.array([change.seq for change in changes], pa.int64()),
            DELETED: pa.array([change.value is None for change in changes], pa.bool_()),
        }
    )


def held(target: Target, path: str, *columns: str, schema: pa.Schema | None = None) -> list[tuple[Any, ...]]:
    """The rows of a table, sorted by all columns."""
    fields = {"a": pa.int32(), "b": pa.string(), "value": pa.string(), "_current": pa.bool_()}
    wanted = schema or pa.schema([(name, fields.get(name, pa.int64())) for name in columns])
    with target.transaction():
        found = target.table(path, path)
        assert isinstance(found, SearchableTable)
        rows = found.rows_of(None, wanted).to_pylist() if found.exists else []
    return sorted([tuple(row.values()) for row in rows], key=repr)


def latest(changes: list[Changed]) -> list[tuple[Any, ...]]:
    """The rows that the changes leave, in the order of their sequences."""
    last = {change.key: change for change in sorted(changes, key=lambda change: change.seq)}
    return sorted([(*key, one.value, one.seq) for key, one in last.items() if one.value is not None], key=repr)


def versions(changes: list[Changed]) -> list[tuple[Any, ...]]:
    """The versions of all rows."""
    found = []
    for key, some in itertools.groupby(sorted(set(changes), key=lambda one: (one.key, one.seq)), key=lambda one: one.key):
        of_key = list(some)
        for one, after in itertools.zip_longest(of_key, of_key[1:]):
            if one.value is not None:
                found.append((*key, one.value, one.seq, after and after.seq, after is None))
    return sorted(found, key=repr)


ROWS, VERSIONS = ("a", "b", "value", "_seq"), ("a", "b", "value", "_valid_from", "_valid_to", "_current")


class Killed(Exception):
    """The process ended here."""


class Stops:
    """A target whose process ends after so many commits: each commit of a table counts, what is in a transaction is lost."""

    def __init__(self, target: Target, commits: int) -> None:
        self._target, self.left = target, commits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def table(self, path: str, name: str) -> Any:
        found, stops = self._target.table(path, name), self
        real = found.commit

        def commit(step: Step | None, marks: Any) -> None:
            if not stops.left:
                raise Killed
            stops.left -= 1
            real(step, marks)

        found.commit = commit  # type: ignore[method-assign]
        return found


def check(open: Opener, choose: random.Random, history: bool, changes: list[Changed]) -> None:
    """Apply the changes in batches of any order, some of them again, with replays and kills; compare with what the sequences say."""
    choose.shuffle(changes)
    target, path = open()
    applied = AppliedChanges(target, path, ["a", "b"], history=history)
    sent, batch = list[Changed](), 0
    while len(sent) < len(changes):
        some = changes[len(sent) : len(sent) + choose.randint(1, 8)]
        sent += some
        some = [*some, *choose.sample(sent, min(len(sent), choose.choice([0, 0, 3])))]
        if choose.random() < 0.3:
            stopped = Stops(open()[0], choose.randint(0, 2))
            with suppress(Killed):
                AppliedChanges(stopped, path, ["a", "b"], history=history).apply(table(some), "q", batch)  # type: ignore[arg-type]
            stopped.close()
            target, path = open()
            applied = AppliedChanges(target, path, ["a", "b"], history=history)
        applied.apply(table(some), "q", batch)
        if choose.random() < 0.2:
            applied.apply(table(some), "q", batch)
        if choose.random() < 0.3 or len(sent) == len(changes):
            columns, model = (VERSIONS, versions) if history else (ROWS, latest)
            assert held(target, path, *columns) == model(sent)
        applied.close()
        batch += 1


def check_first_batch(open: Opener, history: bool, commits: int) -> None:
    """A process is killed in its first batch, where a database has the table already, and what is in it not yet: the next one begins again."""
    changes = [Changed((1, "p"), 5, "x"), Changed((2, "p"), 6, None), Changed((1, "q"), 7, "y")]
    stopped = Stops(open()[0], commits)
    with suppress(Killed):
        AppliedChanges(stopped, open()[1], ["a", "b"], history=history).apply(table(changes), "q", 0)  # type: ignore[arg-type]
    stopped.close()
    target, path = open()
    applied = AppliedChanges(target, path, ["a", "b"], history=history)
    applied.apply(table(changes), "q", 0)
    columns, model = (VERSIONS, versions) if history else (ROWS, latest)
    assert held(target, path, *columns) == model(changes)
    applied.close()


def random_changes(choose: random.Random, count: int) -> list[Changed]:
    """Changes of few keys, with sequences that are each there once."""
    seqs = choose.sample(range(1000), count)
    values = ["x", "y", "", "ö'\\\n", None, None]
    return [Changed((choose.randint(0, 2), choose.choice(["p", "P"])), seq, choose.choice(values)) for seq in seqs]


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_any_order_any_batches(tmp_path: Path, kind: str, history: bool, seed: int) -> None:
    """Out of order inside of batches and across them, twice, replayed, killed between the commits: the same in the end."""
    choose = random.Random(seed)
    for number in range(4 if kind in ("parquet", "sqlite") else 1):
        check(lambda n=number: open_in(tmp_path / str(n), kind), choose, history, random_changes(choose, 40))  # type: ignore[misc]


@pytest.mark.parametrize("commits", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_in_the_first_batch(tmp_path: Path, kind: str, commits: int) -> None:
    """The next process begins again."""
    check_first_batch(lambda: open_in(tmp_path, kind), False, commits)


@pytest.mark.long
@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_any_order_any_batches_long(tmp_path: Path, kind: str, history: bool, seed: int) -> None:
    """The same with many fresh seeds."""
    choose = random.Random(seed)
    for number in range(20 if kind == "delta" else 100):
        check(lambda n=number: open_in(tmp_path / str(n), kind), choose, history, random_changes(choose, 60))  # type: ignore[misc]


_CHANGES = st.lists(
    st.builds(
        Changed, st.tuples(st.integers(0, 1), st.sampled_from(["p", "q"])), st.integers(0, 30), st.sampled_from(["x", "y", None])
    ),
    min_size=1,
    max_size=25,
    unique_by=lambda change: (change.key, change.seq),
)


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Path]:
    return (tmp_path / str(number) for number in itertools.count())


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=_CHANGES, history=st.booleans(), seed=st.integers(0, 1 << 30))
def test_changes_of_any_kind(folders: Iterator[Path], changes: list[Changed], history: bool, seed: int) -> None:
    """Hypothesis chooses the changes; sequences may be the same for different keys."""
    folder = next(folders)
    check(lambda: open_in(folder, "parquet"), random.Random(seed), history, changes)


# ---------------------------------------------------------------- what cannot be


@pytest.mark.parametrize("kind", KINDS)
def test_an_older_update_after_a_delete(tmp_path: Path, kind: str) -> None:
    """A deleted row stays deleted, whatever comes late, also in a later run; a newer change brings it back."""
    target, path = open_in(tmp_path, kind)
    first = [Changed((1, "p"), 5, "five"), Changed((1, "p"), 9, None)]
    AppliedChanges(target, path, ["a", "b"]).apply(table(first), "q", 0)
    target.close()
    target, path = open_in(tmp_path, kind)
    again = AppliedChanges(target, path, ["b", "a"])
    again.apply(table([Changed((1, "p"), 7, "seven"), Changed((2, "p"), 1, None)]), "q", 1)
    assert held(target, path, *ROWS) == []
    again.apply(table([Changed((1, "p"), 10, "ten")]), "q", 2)
    assert held(target, path, *ROWS) == [(1, "p", "ten", 10)]


@pytest.mark.parametrize("history", [False, True])
def test_a_change_without_a_key(tmp_path: Path, history: bool) -> None:
    """It is an error that says how many there are, where, and what to do; nothing of its batch is applied."""
    target, path = open_in(tmp_path, "duckdb")
    applied = AppliedChanges(target, path, ["a", "b"], history=history)
    rows = table([Changed((1, "p"), 1, "x"), Changed((2, None), 2, "y")])  # type: ignore[arg-type]
    with pytest.raises(
        CannotFollow, match=r"key column b is NULL in 1 of 2 rows, the first of which has the sequence 2: leave .*b IS NOT NULL"
    ):
        applied.apply(rows, "q", 0)
    rows = table([Changed((1, "p"), 1, "x"), Changed((2, "p"), None, "y")])  # type: ignore[arg-type]
    with pytest.raises(CannotFollow, match=r"the sequence is NULL in 1 of 2 rows, the first of which has a=2, b='p'"):
        applied.apply(rows, "q", 0)
    applied.apply(table([Changed((1, "p"), 1, "x")]), "q", 0)
    assert [row[:3] for row in held(target, path, "a", "b", "value")] == [(1, "p", "x")]


@pytest.mark.parametrize("history", [False, True])
def test_two_changes_with_one_sequence(tmp_path: Path, history: bool) -> None:
    """The same change twice is one; two that differ are an error, in one batch and in two."""
    target, path = open_in(tmp_path, "parquet")
    applied = AppliedChanges(target, path, ["a", "b"], history=history)
    one = Changed((1, "p"), 5, "x")
    applied.apply(table([one, one]), "q", 0)
    for number, other in enumerate([[one, one._replace(value="y")], [one, one._replace(value=None)], [one._replace(value=None)]]):
        with pytest.raises(CannotFollow, match="two different changes of a=1, b='p' have the sequence 5"):
            applied.apply(table(other), "q", 1 + number)
    gone = Changed((2, "p"), 6, None)
    applied.apply(table([gone]), "q", 9)
    with pytest.raises(CannotFollow, match="two different changes of a=2, b='p' have the sequence 6"):
        applied.apply(table([gone._replace(value="y")]), "q", 10)


@pytest.mark.parametrize("kind", KINDS)
def test_deletes_are_forgotten(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Behind `oldest` deletes are not kept; a change that comes late nevertheless is left out where nothing is known of its key, else compared."""
    target, path = open_in(tmp_path, kind)
    oldest = [0]
    applied = AppliedChanges(target, path, ["a", "b"], oldest=lambda: oldest[0])
    applied.apply(table([Changed((1, "p"), 5, None), Changed((2, "p"), 50, None), Changed((3, "p"), 8, "new")]), "q", 0)
    oldest[0] = 40
    applied = AppliedChanges(target, path, ["a", "b"], oldest=lambda: oldest[0])
    applied.apply(table([Changed((4, "p"), 60, None)]), "q", 1)
    aside = target.aside_path(path)
    assert [row[0] for row in held(target, aside, "a", "b", "_seq")] == [2, 4]
    with caplog.at_level(logging.WARNING):
        applied.apply(table([Changed((1, "p"), 4, "late"), Changed((2, "p"), 30, "x"), Changed((3, "p"), 9, "newer")]), "q", 2)
    assert held(target, path, *ROWS) == [(3, "p", "newer", 9)]
    assert [record.getMessage().split(": ")[1] for record in caplog.records] == ["1 changes that are older than 40 are left out"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("history", [False, True])
def test_columns_that_come_later(tmp_path: Path, kind: str, history: bool) -> None:
    """A column that the frame has from now on is added, NULL in the rows that are there; one that it has no more is an error."""
    target, path = open_in(tmp_path, kind)
    first = table([Changed((1, "p"), 1, "x"), Changed((2, "p"), 2, "y")])
    AppliedChanges(target, path, ["a", "b"], history=history).apply(first, "q", 0)
    more = table([Changed((1, "p"), 3, "z")]).append_column("price", pa.array([Decimal("1.50")], pa.decimal128(10, 2)))
    applied = AppliedChanges(target, path, ["a", "b"], history=history)
    applied.apply(more, "q", 1)
    schema = pa.schema([("a", pa.int32()), ("value", pa.string()), ("price", pa.decimal128(10, 2))])
    wanted = [(1, "z", Decimal("1.50")), (2, "y", None)] + [(1, "x", None)] * history
    assert held(target, path, schema=schema) == sorted(wanted, key=repr)
    with pytest.raises(CannotFollow, match="has columns price, which the frame does not have"):
        applied.apply(table([Changed((1, "p"), 4, "z")]), "q", 2)


def test_another_layout(tmp_path: Path) -> None:
    """A table with other keys, another kind of history or sequence, or one that was not made here, is not touched."""
    target, path = open_in(tmp_path, "parquet")
    AppliedChanges(target, path, ["a", "b"]).apply(table([Changed((1, "p"), 1, "x")]), "q", 0)
    rows = table([Changed((1, "p"), 2, "y")])
    strings = rows.set_column(3, SEQUENCE, rows.column(SEQUENCE).cast(pa.string()))
    for keys, history, some in ((["a"], False, rows), (["a", "b"], True, rows), (["a", "b"], False, strings)):
        with pytest.raises(CannotFollow, match="was made with other keys, another type of sequence_by, or another history"):
            AppliedChanges(target, path, keys, history=history).apply(some, "q", 1)
    other = path.replace("orders", "foreign")
    target.table(other, "foreign").create(TableSchema("", "", (Column("a", "int"),), (0,)), ["a"], {})
    with pytest.raises(CannotFollow, match="exists, and apply_changes did not make it"):
        AppliedChanges(target, other, ["a", "b"]).apply(rows, "q", 0)


def test_names_and_types(tmp_path: Path) -> None:
    """What no target can hold, and what no order has, is an error of the column."""
    target, path = open_in(tmp_path, "parquet")
    rows = table([Changed((1, "p"), 1, "x")])
    nested = rows.append_column("tags", pa.array([["a"]], pa.list_(pa.string())))
    taken = rows.append_column("_seq", pa.array([1]))
    twice = rows.append_column("VALUE", pa.array(["x"]))
    real = rows.set_column(0, "a", pa.array([1.0]))
    for some, text in (
        (nested, r"column tags has type list<.*to_json\(tags\)"),
        (taken, "column _seq has a name that the target needs"),
        (twice, "has column VALUE twice"),
        (real, "key column a has type double"),
        (rows.drop_columns(["b"]), "the frame has no column b to use as a key: it has a, value"),
    ):
        with pytest.raises(CannotFollow, match=text):
            AppliedChanges(target, path, ["a", "b"]).apply(some, "q", 0)
    for keys, text in (([], "at least one column"), (["a", "A"], "names a column twice")):
        with pytest.raises(ValueError, match=text):
            AppliedChanges(target, path, keys)


VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "tiny": (pa.int8(), [-128, 127]),
    "small": (pa.int16(), [-32768, 32767]),
    "big": (pa.int64(), [-(1 << 63), (1 << 63) - 1]),
    "long": (pa.decimal128(20, 0), [Decimal(0), Decimal((1 << 64) - 1)]),
    "exact": (pa.decimal128(30, 10), [Decimal("-0.0000000001"), Decimal("12345678901234567890.0123456789")]),
    "day": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)]),
    "at": (pa.timestamp("us", "UTC"), [datetime(1970, 1, 2, tzinfo=UTC), datetime(2038, 1, 1, 2, 3, 4, 567890, tzinfo=UTC)]),
    "local": (pa.timestamp("us"), [datetime(1000, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)]),
    "text": (pa.string(), ["a'\\\"\tö", "b "]),
    "raw": (pa.binary(), [b"\0\xff", b""]),
}


def check_key_type(open: Opener, name: str) -> None:
    """Keys and sequences of a type find their rows again, as exactly as they were."""
    kind, (low, high) = VALUES[name]
    target, path = open()

    def rows(changes: list[tuple[Any, Any, bool]]) -> pa.Table:
        keys, seqs, gone = zip(*changes, strict=True)
        flags = {"ok": pa.array([True] * len(keys)), SEQUENCE: pa.array(seqs, kind), DELETED: pa.array(gone)}
        return pa.table({"k": pa.array(keys, kind), **flags})

    low, high = sorted([low, high])
    applied = AppliedChanges(target, path, ["k"], history=True)
    applied.apply(rows([(low, high, False), (high, high, False)]), "q", 0)
    applied.apply(rows([(low, low, False), (high, low, True)]), "q", 1)
    applied.apply(rows([(low, low, False)]), "q", 2)
    schema = pa.schema([("k", kind), ("_valid_from", kind), ("_valid_to", kind), ("_current", pa.bool_()), ("ok", pa.bool_())])
    wanted = [(low, low, high, False, True), (low, high, None, True, True), (high, high, None, True, True)]
    assert held(target, path, schema=schema) == sorted(wanted, key=repr)
    target.close()


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("kind", KINDS)
def test_types_of_keys_and_sequences(tmp_path: Path, kind: str, name: str) -> None:
    """In each target the same."""
    check_key_type(lambda: open_in(tmp_path, kind), name)
