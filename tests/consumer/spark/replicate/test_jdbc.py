"""Copies in PostgreSQL, MariaDB and MySQL: real servers, through the JVM of a real Spark."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from shmstore import Column, Event, EventStore, EventType, TableSchema
from shmstore.consumer.copies.change_reduction import Alter, CannotFollow, CopyDiffers
from shmstore.consumer.copies.copy import Copy, Step
from shmstore.consumer.copies.ddl import Change
from shmstore.consumer.spark.options import SourceOptions
from shmstore.consumer.spark.replicate.jdbc_connection import Database, DatabaseError
from shmstore.consumer.spark.replicate.replicate import Replication, replicate
from shmstore.encoding.codec import encode
from tests.consumer.spark.copies import Copies, copies, text
from tests.consumer.spark.events import ORDERS, Binlog, order_row
from tests.consumer.spark.queries import started
from tests.consumer.spark.test_examples import example

pytestmark = [pytest.mark.spark, pytest.mark.server]


@pytest.fixture(scope="module", params=["postgresql", "mariadb", "mysql"])
def target(request: pytest.FixtureRequest) -> Iterator[Copies]:
    server = None if request.param == "postgresql" else request.getfixturevalue(request.param)
    with copies(request.param, server, "shop") as made:
        yield made


@pytest.fixture(autouse=True)
def empty(target: Copies) -> Iterator[None]:
    """Each test begins without copies and without marks."""
    yield
    target.query(
        f"DROP {'SCHEMA' if target.kind == 'postgresql' else 'DATABASE'} IF EXISTS shop"
        + " CASCADE" * (target.kind == "postgresql")
    )


def replication(target: Copies, spark: Any, **named: Any) -> Replication:
    return Replication(
        SourceOptions.parse({"store": "none"}), "{database}.{table}", "jdbc", database=target.connect(spark), **named
    )


def apply(copy: Replication, batch: int, *transactions: list[Event], query: str = "q") -> None:
    copy.apply([encode(event) for events in transactions for event in events], query, batch)


def texts(rows: Any) -> list[tuple[str, ...]]:
    return sorted(tuple(map(text, row)) for row in rows)


def kills(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> Iterator[None]:
    """Do `act` again and again, which dies at its first statement, then at its second, until it gets through; yield after each death."""
    real = Database.execute
    for statements in range(100):
        left = statements

        def execute(self: Database, sql: str) -> int:
            nonlocal left
            if left == 0:
                raise DatabaseError("the driver was killed here")
            left -= 1
            return real(self, sql)

        with monkeypatch.context() as patch:
            patch.setattr(Database, "execute", execute)
            try:
                act()
            except DatabaseError:
                pass
            else:
                return
        yield


def _broken(copy: Copy, step: Step, at: Mapping[str, int], follow: Any = Copy._follow) -> None:
    if copy._name == "shop.z_broken":
        raise ConnectionError("the server is gone")
    follow(copy, step, at)


def test_random_changes_in_random_batches_equal_a_model(
    target: Copies, spark: Any, binlog: Binlog, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the changes, however they are cut into batches, failed and replayed, the copy equals the source."""
    choose = random.Random(seed)
    model: dict[int, tuple[Any, ...]] = {}
    copy = replication(target, spark)
    for batch in range(15):
        transactions = []
        for _ in range(choose.randrange(1, 6)):
            kind = choose.choice("iiiuudkt" if choose.random() < 0.9 else "t")
            free = [key for key in range(60) if key not in model]
            if kind == "i" and free:
                states = ["a", "ä😀'\\\n\"{d}", "\\'", "%s?", "", " x ", None]
                fresh = [order_row(key, status=choose.choice(states)) for key in choose.sample(free, min(4, len(free)))]
                transactions.append(binlog.insert(*fresh))
                model.update({row[0]: row for row in fresh})
            elif kind in "ukd" and model:
                old = model.pop(choose.choice(list(model)))
                if kind == "d":
                    transactions.append(binlog.delete(old))
                else:
                    key = choose.choice(free) if kind == "k" and free else old[0]
                    model[key] = order_row(key, status=choose.choice("xyz"))
                    transactions.append(binlog.update((old, model[key])))
            elif kind == "t":
                transactions.append(binlog.ddl("TRUNCATE TABLE orders", EventType.TRUNCATE))
                model.clear()
        if choose.random() < 0.3:
            broken = binlog.insert(order_row(1), table=ORDERS._replace(table="z_broken"))
            with monkeypatch.context() as patch:
                patch.setattr(Copy, "_follow", _broken)
                with pytest.raises(ConnectionError):
                    apply(copy, batch, *transactions, broken)  # nothing of it may be there
        apply(copy, batch, *transactions)
        if choose.random() < 0.3:
            copy = replication(target, spark)  # the driver was killed after the sink, before Spark's commit log
            apply(copy, batch, *transactions)
        if model:
            assert target.select("orders") == texts(model.values()), f"seed {seed}, batch {batch}"


def test_a_batch_is_one_transaction_over_all_tables(target: Copies, spark: Any, binlog: Binlog) -> None:
    """What stops a batch in one table leaves the others as they were; a replayed batch changes nothing."""
    log = TableSchema("shop", "log", (Column("n", "int"), Column("t", "varchar", size=20)), (0,))
    copy = replication(target, spark)
    apply(copy, 0, binlog.insert(order_row(1)), binlog.insert((1, "a"), table=log))
    target.query("DROP TABLE shop.log")
    target.query("CREATE TABLE shop.log (n INT PRIMARY KEY, t VARCHAR(20) NOT NULL, foreign_to_us INT NOT NULL)")
    second = [*binlog.insert(order_row(2)), *binlog.insert((2, "too long"), table=log)]
    with pytest.raises(DatabaseError, match=r"INSERT INTO|COPY"):
        apply(copy, 1, second)
    assert target.select("orders", "id") == [("1",)]
    target.query("DROP TABLE shop.log")
    apply(copy, 1, second)
    apply(replication(target, spark), 0, binlog.delete(order_row(1)))
    assert target.select("orders", "id") == [("1",), ("2",)]
    assert target.select("log") == [("2", "too long")]
    apply(copy, 0, binlog.delete(order_row(1)), query="another")
    assert target.select("orders", "id") == [("2",)]


def test_values_that_are_none_of_the_columns(target: Copies, spark: Any, binlog: Binlog) -> None:
    """The copy is set aside and its rows asked for, without a change to it; the other tables of the batch go on."""
    rows = TableSchema("shop", "log", (Column("n", "int"), Column("u", "uuid"), Column("s", "varchar", size=9)), (0,))
    raw = rows._replace(columns=(rows.columns[0], Column("u", "varbinary", size=16), rows.columns[2]))
    copy = replication(target, spark)
    uuid = "123e4567-e89b-12d3-a456-426655440000"
    apply(copy, 0, binlog.insert((1, uuid, "a"), (2, None, "b"), table=rows))
    apply(copy, 1, binlog.insert((1, b"\x91\xff", "c"), table=raw), binlog.insert(order_row(1)))
    assert copy.aside == ["shop.log"]
    assert target.select("log") == texts([(1, uuid, "a"), (2, None, "b")])
    assert target.select("orders", "id") == [("1",)]
    apply(copy, 2, binlog.insert((3, uuid, "d"), table=rows), binlog.insert(order_row(2)))
    assert len(target.select("log")) == 2
    assert len(target.select("orders")) == 2


def test_columns_follow_ddl_and_replays_of_a_cut_batch(
    target: Copies, spark: Any, binlog: Binlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ADD with a plain default, DROP, RENAME, MODIFY; a crash after any statement is made good by the replay."""
    wider = ORDERS._replace(
        columns=(
            *(c._replace(name="state") if c.name == "status" else c for c in ORDERS.columns if c.name != "customer"),
            Column("flag", "tinyint"),
            Column("note", "varchar", size=400),
            Column("due", "date"),
        )
    )
    ddl = (
        "alter table shop.orders add flag tinyint not null default 9, drop customer, change status state varchar(300), "
        "modify amount decimal(20,2), add note varchar(100) default 'its', add due date"
    )
    new = (3, Decimal("2.5000"), *order_row(3)[3:5], "s", 5, "n", None)
    batch = [
        *binlog.insert(order_row(1), order_row(2)),
        *binlog.ddl(ddl),
        *binlog.insert(new, table=wider),
        *binlog.delete(order_row(2))[:1],
    ]
    crashes = sum(1 for _ in kills(monkeypatch, lambda: apply(replication(target, spark), 7, batch)))
    assert crashes > 5
    old = [(n, Decimal(n).scaleb(-2).quantize(Decimal("0.01")), *order_row(n)[3:5], "new", 9, "its", None) for n in (1, 2)]
    assert target.select("orders", "id, amount, placed, seen, state, flag, note, due") == texts([*old, new])


def test_keys_are_compared_byte_by_byte(target: Copies, spark: Any, binlog: Binlog) -> None:
    """Keys that a collation would call equal are two rows, and a key that changes its case is one."""
    words = TableSchema("shop", "words", (Column("w", "varchar", size=40, charset="utf8mb4"), Column("n", "int")), (0,))
    copy = replication(target, spark)
    apply(copy, 0, binlog.insert(("a", 1), ("A", 2), ("a ", 3), ("ä", 4), table=words))
    apply(copy, 1, binlog.update((("A", 2), ("Z", 2)), table=words), binlog.update((("ä", 4), ("A", 4)), table=words))
    assert target.select("words") == texts([("a", 1), ("a ", 3), ("Z", 2), ("A", 4)])


def test_a_key_of_two_columns_and_swapped_unique_values(target: Copies, spark: Any, binlog: Binlog) -> None:
    """A composite key; two rows that swap a value which another index keeps unique."""
    items = TableSchema("shop", "items", (Column("order", "int"), Column("line", "smallint"), Column("n", "int")), (0, 1))
    copy = replication(target, spark)
    apply(copy, 0, binlog.insert((1, 1, 10), (1, 2, 20), (2, 1, 30), table=items))
    target.query("CREATE UNIQUE INDEX u ON shop.items (n)")
    apply(copy, 1, binlog.update(((1, 1, 10), (1, 1, 20)), ((1, 2, 20), (1, 2, 10)), table=items))
    apply(copy, 2, binlog.delete((1, 1, 20), table=items), binlog.update(((2, 1, 30), (1, 1, 31)), table=items))
    assert target.select("items") == texts([(1, 2, 10), (1, 1, 31)])


@pytest.mark.parametrize("history", [False, True])
def test_a_change_of_the_primary_key_is_followed(target: Copies, spark: Any, binlog: Binlog, history: bool) -> None:
    """In mid-stream, in one batch with rows of both keys: the copy gets the new key, and rows are distinguished by it alone."""
    columns = (Column("id", "int", nullable=False), Column("word", "varchar", size=400, charset="utf8mb4"), Column("n", "int"))
    old = TableSchema("shop", "words", columns, (0,))
    new = old._replace(primary_key=(1, 2))
    copy = replication(target, spark, history=history)
    apply(copy, 0, binlog.insert((1, "a", 1), (2, "b", 2), (3, "c", 3), table=old))
    batch = [
        binlog.update(((1, "a", 1), (1, "A", 1)), table=old),
        binlog.delete((3, "c", 3), table=old),
        binlog.ddl("alter table words drop primary key, modify id int null, add primary key (word, n)"),
        binlog.insert((1, "a", 1), (None, "d", 4), table=new),
        binlog.update(((2, "b", 2), (2, "B", 2)), table=new),
        binlog.delete((1, "A", 1), table=new),
    ]
    apply(copy, 1, *batch)
    apply(replication(target, spark, history=history), 1, *batch)
    apply(copy, 2, binlog.update(((None, "d", 4), (9, "d", 4)), table=new))
    current = "words WHERE _current" if history else "words"
    assert target.select(current, "id, word, n") == texts([(1, "a", 1), (2, "B", 2), (9, "d", 4)])
    where = "table_schema = 'shop' AND table_name = 'words' AND constraint_name IN ('PRIMARY', 'words_pkey')"
    keys = {row[0] for row in target.query(f"SELECT column_name FROM information_schema.key_column_usage WHERE {where}")}
    assert keys == {"word", "n", *(["_seq"] if history else [])}


def test_a_new_primary_key_that_the_copy_cannot_take(target: Copies, spark: Any, binlog: Binlog) -> None:
    """A row of the copy that is not the source's: it is set aside, the others go on, and what is read again has the new key."""
    pair = TableSchema("shop", "pairs", (Column("id", "int"), Column("n", "int", nullable=False)), (0,))
    copy = replication(target, spark)
    apply(copy, 0, binlog.insert((1, 10), (2, 20), table=pair))
    target.query("INSERT INTO shop.pairs VALUES (3, 20)")
    new = pair._replace(primary_key=(1,))
    apply(copy, 1, binlog.insert((4, 40), table=new), binlog.insert(order_row(1)))
    assert target.select("pairs") == texts([(1, 10), (2, 20), (3, 20)])
    assert target.select("orders", "id") == [("1",)]
    assert copy.aside == ["shop.pairs"]
    apply(copy, 2, binlog.read("whole", (1, 10), (2, 20), (4, 40), table=new))
    apply(copy, 3, binlog.update(((4, 40), (5, 40)), table=new))
    assert target.select("pairs") == texts([(1, 10), (2, 20), (5, 40)])


def test_rows_that_are_read_again(
    target: Copies, spark: Any, binlog: Binlog, monkeypatch: pytest.MonkeyPatch, state: Path
) -> None:
    """They take the place of the copy's, with their columns and key, whichever statement the driver was killed at; grants and indexes stay."""
    new = ORDERS._replace(
        columns=(
            *(c._replace(type="varchar", size=80) if c.name == "placed" else c for c in ORDERS.columns if c.name != "customer"),
            Column("made", "int", nullable=False),
        ),
        primary_key=(0, 5),
    )
    copy = replication(target, spark)
    apply(copy, 0, binlog.insert(order_row(1), order_row(2)))
    if target.kind == "postgresql":
        target.query("CREATE INDEX mine ON shop.orders (status)")
    batches = [
        binlog.ddl("alter table orders drop customer, modify placed varchar(80), add made int not null default (7)"),
        [*binlog.read("first", *[_changed(n) for n in (1, 2)], table=new), *binlog.delete(_changed(2), table=new)],
        [*binlog.read("last", table=new), *binlog.insert(_changed(3), table=new)],
    ]
    crashes = 0
    for number, batch in enumerate(batches, 1):
        for _ in kills(monkeypatch, lambda batch=batch, number=number: apply(replication(target, spark), number, batch)):
            crashes += 1
            if target.kind == "postgresql" or number < 3:
                assert target.select("orders", "id") == [("1",), ("2",)]
    assert crashes > 15
    assert target.select("orders", "id, amount, placed, seen, status, made") == texts([_changed(1), _changed(3)])
    where = "table_schema = 'shop' AND table_name"
    keys = f"{where} = 'orders' AND constraint_name IN ('PRIMARY', 'orders_pkey')"
    assert {row[0] for row in target.query(f"SELECT column_name FROM information_schema.key_column_usage WHERE {keys}")} == {
        "id",
        "made",
    }
    left_over = target.query(f"SELECT table_name FROM information_schema.tables WHERE {where} LIKE '%next%'")
    assert left_over == []
    if target.kind == "postgresql":
        assert target.query("SELECT count(*) FROM pg_indexes WHERE indexname = 'mine'")[0][0] == "1"


def _changed(n: int) -> tuple[Any, ...]:
    row = order_row(n)
    return (row[0], row[2], str(row[3]), row[4], row[5], n)


def test_a_table_that_is_made_again_has_its_new_types(target: Copies, spark: Any, binlog: Binlog) -> None:
    """DROP and CREATE with the same names and other types: the copy gets them with the first row."""
    copy = replication(target, spark)
    old = TableSchema("shop", "t", (Column("id", "int"), Column("v", "int")), (0,))
    new = TableSchema("shop", "t", (Column("id", "bigint", unsigned=True), Column("v", "varchar", size=200)), (0,))
    apply(copy, 0, binlog.insert((1, 2), table=old))
    apply(copy, 1, binlog.ddl("drop table t", EventType.ERASE))
    apply(replication(target, spark), 2, binlog.ddl("create table t (id bigint)"), binlog.insert((2**64 - 1, "a"), table=new))
    assert target.select("t") == texts([(2**64 - 1, "a")])


def test_what_postgresql_cannot_hold(target: Copies, spark: Any, binlog: Binlog, caplog: pytest.LogCaptureFixture) -> None:
    """Text with U+0000, and names that it would cut: the table is set aside with the reason, and the others go on."""
    if target.kind != "postgresql":
        pytest.skip("the others can")
    long = TableSchema("shop", "long", (Column("id", "int"), Column("ü" * 40, "int")), (0,))
    copy = replication(target, spark)
    apply(copy, 0, binlog.insert(order_row(1)))
    apply(
        copy, 1, binlog.insert(order_row(2, status="a\0b")), binlog.insert((1, 1), table=long), binlog.insert((1, 2), table=PAIR)
    )
    assert copy.aside == ["shop.long", "shop.orders"]
    assert target.select("orders", "id") == [("1",)]
    assert target.select("pair") == [("1", "2")]
    assert "U+0000" in caplog.text
    assert "has 80 bytes, and PostgreSQL's names have at most 63" in caplog.text


PAIR = TableSchema("shop", "pair", (Column("id", "int"), Column("n", "int")), (0,))


def test_history_keeps_every_version(target: Copies, spark: Any, binlog: Binlog, versions: list[list[list[Event]]]) -> None:
    """SCD type 2: each version once, replays included; TRUNCATE ends what is current."""
    copy = replication(target, spark, history=True)
    for number, batch in enumerate(versions):
        apply(copy, number, *batch)
        apply(replication(target, spark, history=True), number, *batch)
    ended = "CASE WHEN _valid_to IS NULL THEN 0 ELSE 1 END"
    assert target.select("orders", f"id, status, _current, {ended}") == sorted(
        [
            ("1", "new", "0", "1"),
            ("1", "paid", "0", "1"),
            ("1", "sent", "1", "0"),
            ("2", "new", "0", "1"),
            ("2", "again", "1", "0"),
            ("3", "new", "0", "1"),
            ("4", "new", "1", "0"),
        ]
    )
    joined = "shop.orders a JOIN shop.orders b ON a.id = b.id AND a._valid_to = b._valid_from"
    assert target.query(f"SELECT count(*) FROM {joined} WHERE a.id = 1 AND a._seq < b._seq")[0][0] in (2, "2")
    apply(copy, 3, binlog.ddl("truncate orders", EventType.TRUNCATE))
    assert {row[0] for row in target.select("orders", "_current")} == {"0"}
    with pytest.raises(CannotFollow, match="history=True"):
        apply(replication(target, spark), 4, binlog.insert(order_row(9)))


def test_a_dropped_database_empties_its_copies(target: Copies, spark: Any, binlog: Binlog) -> None:
    """DROP DATABASE reaches copies that no event of the batch names."""
    copy = replication(target, spark)
    apply(copy, 0, binlog.insert(order_row(1)))
    apply(replication(target, spark), 1, binlog.ddl("drop database shop", EventType.QUERY))
    assert target.select("orders") == []


def test_errors_are_one_line_without_the_password(
    target: Copies, spark: Any, store: EventStore, store_name: str, tmp_path: Path
) -> None:
    """A wrong password, host, driver or right is said in one line before a query runs; the password is never in it."""
    target.connect(spark)
    account, host = target.account, target.url.partition("://")[2].rstrip("/")
    port = host.partition("/")[0].partition(":")[2]
    wrong = "n0t-the-password"

    def refused(url: str, **properties: str) -> str:
        given = {"store": store_name, "target": "{database}.{table}", "checkpoint": str(tmp_path / "c"), "format": "jdbc"}
        with pytest.raises((DatabaseError, ValueError)) as caught:
            replicate(spark, **given, url=url, properties={**account, **properties})
        said = str(caught.value)
        assert "\n" not in said
        assert wrong not in said
        assert account["password"] not in said
        return said

    assert f"cannot connect to {target.url}" in refused(target.url, password=wrong)
    assert "cannot connect" in refused(f"{target.url}?password={wrong}&user=nobody", user="", password="")
    assert "cannot connect" in refused(target.url.replace(port, "1"))
    assert "--packages" in refused(target.url, driver="com.example.Driver")
    assert "jdbc:postgresql://" in refused(f"jdbc:oracle:thin:me/{wrong}@x?password={wrong}".replace(f"/{wrong}", ""))
    assert "jdbc:mariadb://" in refused("postgres://x")
    if target.kind != "postgresql":
        copy = Replication(SourceOptions.parse({"store": "none"}), "mysql.{table}", "jdbc", database=target.connect(spark))
        with pytest.raises(DatabaseError, match=r"(?i)denied") as caught:
            apply(copy, 0, Binlog().insert(order_row(1)))
        assert "\n" not in str(caught.value)


def test_a_streaming_query(
    target: Copies, spark: Any, store: EventStore, store_name: str, binlog: Binlog, tmp_path: Path
) -> None:
    """`replicate(format="jdbc")` end to end, as in its example; neither the checkpoint nor the query's plan hold the password."""
    target.connect(spark)
    store.put(binlog.insert(*[order_row(n) for n in range(3000)]))
    store.put(binlog.delete(order_row(5)))
    checkpoint = tmp_path / "checkpoint"
    for _ in range(2):
        started(lambda: example("database").run(spark, store_name, target.url, target.account, str(checkpoint), once=True))
    assert target.select("orders") == texts(order_row(n) for n in range(3000) if n != 5)
    kept = [path for path in checkpoint.rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if target.account["password"].encode() in path.read_bytes()]


def test_a_column_whose_values_do_not_fit_its_new_type(target: Copies, spark: Any, binlog: Binlog) -> None:
    """A copy that holds other values than the server's column could: it is set aside to be read again, and the query goes on."""
    copy = replication(target, spark)
    table = TableSchema("shop", "t", (Column("id", "int"), Column("v", "varchar", size=200)), (0,))
    apply(copy, 0, binlog.insert((1, "long"), table=table))
    found = next(iter(copy._copies.values()))._target
    with pytest.raises(CopyDiffers, match="cannot take its rows"):
        found.commit(Alter((Change("v", "v", Column("v", "decimal", size=6, scale=2)),)), {})
    assert target.select("t") == texts([(1, "long")])
    apply(copy, 1, binlog.insert((2, "more"), table=table))
    assert target.select("t") == texts([(1, "long"), (2, "more")])
