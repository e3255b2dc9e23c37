"""MySQL's binary JSON: text exactly as MySQL prints it, partial updates, damaged documents."""

from __future__ import annotations

import json
import random
import struct
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmstore.errors import UnsupportedEvent
from shmstore.producer.values.json_binary import double_text, json_text, patched_text, quoted
from tests.producer.decoding import Log, database_of, run
from tests.servers.server import Server

DAMAGE = (ValueError, IndexError, struct.error, RecursionError)


# ---------------------------------------------------------------- against the server


def random_text(random_: random.Random) -> str:
    alphabet = 'abcXYZ 019_-."\\/\b\n\r\t\x01\x1f\x7fäß世界😀'
    return "".join(random_.choice(alphabet) for _ in range(random_.choice((0, 1, 3, 8, 20, 130, 300))))


def random_json(random_: random.Random, depth: int = 0) -> Any:
    kind = random_.randrange(12 if depth < 5 else 9)
    if kind < 2:
        return random_text(random_)
    if kind < 4:
        bits = random_.choice((3, 8, 15, 16, 31, 32, 63))
        return random_.randrange(-(1 << bits), 1 << bits)
    if kind < 6:
        return random_.choice(
            (random_.uniform(-1e3, 1e3), random_.random() * 10.0 ** random_.randint(-300, 300), 1e15, 1e16, 0.5)
        )
    if kind < 9:
        return random_.choice((None, True, False))
    size = random_.choice((0, 1, 2, 3, 7))
    if kind == 9 or depth > 4:
        return [random_json(random_, depth + 1) for _ in range(size)]
    return {random_text(random_)[:30]: random_json(random_, depth + 1) for _ in range(size)}


@pytest.mark.server
def test_random_documents_print_as_the_server_prints_them(mysql: Server, seed: int) -> None:
    """500 random documents (seeded): the binlog's binary form decodes to the text of SELECT."""
    random_ = random.Random(seed)
    documents = [json.dumps(random_json(random_)) for _ in range(498)]
    documents.append(json.dumps({f"k{i}": ["v" * 100, i] for i in range(1000)}))  # large object of large values
    documents.append(json.dumps([[i, 70000 + i, -5_000_000_000, "x" * 40] for i in range(2500)]))
    with database_of(mysql, "json_text") as (connection, log):
        run(connection, "CREATE TABLE t (id int primary key, j json)")
        log.skip()
        with connection.cursor() as cursor:
            for start in range(0, 500, 50):
                cursor.executemany("INSERT INTO t VALUES (%s, %s)", list(enumerate(documents))[start : start + 50])
        expected = run(connection, "SELECT id, CAST(j AS CHAR) FROM t ORDER BY id")
        found = [row.after for event in log.seen() for row in event.rows]
        for (id_, text), (seen_id, seen) in zip(expected, found, strict=True):
            assert (seen_id, seen) == (id_, text)


@pytest.mark.server
def test_random_doubles_print_as_the_server_prints_them(mysql: Server, seed: int) -> None:
    """2,000 doubles of all magnitudes (seeded), and those around each power of ten."""
    random_ = random.Random(seed)
    values = [struct.unpack("<d", random_.randbytes(8))[0] for _ in range(600)]
    values += [random_.uniform(-1, 1) * 10.0**e for e in range(-25, 25) for _ in range(20)]
    values += [float(f"{m}e{e}") for e in range(-20, 21) for m in ("1", "-1", "1.5", "9.999999999999999", "1.2345678901234567")]
    values = [v for v in values if v == v and abs(v) != float("inf")]
    with database_of(mysql, "json_double") as (connection, log):
        run(connection, "CREATE TABLE t (id int primary key, j json)")
        log.skip()
        for start in range(0, len(values), 200):
            rows = ", ".join(
                f"({i}, json_array({v!r}e0))" if "e" not in repr(v) else f"({i}, json_array({v!r}))"
                for i, v in enumerate(values[start : start + 200], start)
            )
            run(connection, f"INSERT INTO t VALUES {rows}")
        expected = run(connection, "SELECT CAST(j AS CHAR) FROM t ORDER BY id")
        found = [row.after[1] for event in log.seen() for row in event.rows]
        assert found == [text for (text,) in expected]


UPDATES = (
    "j = json_set(j, '$.a', 99)",
    "j = json_set(j, '$.a', 'longer than what was there before, so that it does not fit')",
    "j = json_replace(j, '$.b[1]', json_array(1, 'two'))",
    "j = json_remove(j, '$.b[0]')",
    "j = json_set(j, '$.new', 'key', '$.zz', null, '$.\"odd key\"', 1.5)",
    'j = json_set(j, \'$."q\\\\"u.o[te"\', 1)',
    "j = json_set(j, '$.b[7]', 'appended')",
    "j = json_remove(j, '$.c.d', '$.\"\"')",
    "j = json_set(json_set(j, '$.c.e', 1), '$.c.f', cast('2024-02-29' as date))",
    "j = json_replace(j, '$.c', json_object('x', cast(1.50 as decimal(5,2))), '$.a', true)",
    "j = json_set(j, '$.ü', '世界')",
    "j = json_set(j, '$', 5)",
    "j = json_set(j, '$.c', j->'$.b')",
    "j = json_set(j, '$.a', json_extract(j, '$.a')), k = json_set(k, '$[0]', 'k')",
    "k = json_remove(k, '$[1]')",
    "n = n + 1",
    "j = NULL",
    "j = json_object('whole', 1)",
)
DOCUMENT = r'{"a": 1, "b": [1, 2, {"x": [true]}], "c": {"d": null, "e": "ü"}, "": 0, "q\"u.o[te": 2}'


def partial_updates(connection: Any, log: Log) -> int:
    """Run every update on its own copy; returns how many came as PARTIAL_UPDATE events."""
    partial = 0
    for id_, change in enumerate(UPDATES):
        run(connection, ("INSERT INTO t VALUES (%s, %s, 1, '[1, 2, 3]')", (id_, DOCUMENT)))
        (before,) = run(connection, f"SELECT id, CAST(j AS CHAR), n, CAST(k AS CHAR) FROM t WHERE id = {id_}")
        log.skip()
        run(connection, f"UPDATE t SET {change} WHERE id = {id_}")
        (after,) = run(connection, f"SELECT id, CAST(j AS CHAR), n, CAST(k AS CHAR) FROM t WHERE id = {id_}")
        events = log.seen()
        if before == after:
            assert events == []
            continue
        (event,) = events
        partial += event.event_type == 39
        assert event.rows[0].before == before
        assert event.rows[0].after == after, change
    return partial


@pytest.mark.server
def test_partial_updates_give_the_whole_document(mysql: Server) -> None:
    """binlog_row_value_options=PARTIAL_JSON: diffs are applied to the document before; all changed paths count."""
    with database_of(mysql, "json_partial") as (connection, log):
        run(connection, "CREATE TABLE t (id int primary key, j json, n int, k json)")
        run(connection, "SET SESSION binlog_row_value_options = PARTIAL_JSON")
        assert partial_updates(connection, log) >= 10


PATHS = ["$.a", "$.b", "$.c", "$.d.x", "$.l[1]", "$.l[9]", "$.new1", '$."n w"', "$.l[0]"]
PATHS += [
    "$.l[last]",
    "$.l[last-1]",
    "$.l[ last - 2 ]",
    "$.l[last-99]",
    "$.a[0]",
    "$.b[last]",
    "$.c[last-1]",
    "$[0].d",
    "$[last].l[last]",
]
PATHS += [
    "$.l[last][0]",
    "$.l[last].x",
    "$.e[0][last]",
    "$.a[1]",
    "$.größe",
    '$."last"',
    '$."[last]"',
    '$."a\\"b"',
    "$.f[last].last",
]


@pytest.mark.server
def test_random_partial_updates(mysql: Server, seed: int) -> None:
    """1,200 random changes of random documents (seeded), several rows to an event."""
    random_ = random.Random(seed)
    with database_of(mysql, "json_random") as (connection, log):
        run(connection, "CREATE TABLE t (id int primary key, j json)")
        run(connection, "SET SESSION binlog_row_value_options = PARTIAL_JSON")
        with connection.cursor() as cursor:
            documents = [
                (i, json.dumps({c: random_json(random_, 3) for c in "abcdef"} | {"l": list(range(5))})) for i in range(30)
            ]
            cursor.executemany("INSERT INTO t VALUES (%s, %s)", documents)
        partial = 0
        for _ in range(40):
            log.skip()
            paths = random_.sample(PATHS, 3)
            verbs = [random_.choice(("json_set", "json_replace", "json_insert", "json_remove")) for _ in paths]
            expression = "j"
            arguments: list[Any] = []
            for verb, path in zip(verbs, paths, strict=True):
                if verb == "json_remove":
                    expression = f"{verb}({expression}, %s)"
                    arguments.append(path)
                else:
                    expression = f"{verb}({expression}, %s, CAST(%s AS JSON))"
                    arguments += [path, json.dumps(random_json(random_, 4))]
            run(connection, (f"UPDATE t SET j = {expression}", arguments))
            expected = dict(run(connection, "SELECT id, CAST(j AS CHAR) FROM t"))
            for event in log.seen():
                partial += event.event_type == 39
                for row in event.rows:
                    assert row.after == (row.after[0], expected[row.after[0]])
        assert partial


@pytest.mark.server
def test_partial_updates_without_the_document_before_are_refused(mysql: Server) -> None:
    """Diffs alone are not the document: with row image MINIMAL the error names the setting to change."""
    with database_of(mysql, "json_image") as (connection, log):
        run(connection, "CREATE TABLE t (id int primary key, j json, n int, k json)")
        run(connection, "SET SESSION binlog_row_value_options = PARTIAL_JSON, binlog_row_image = minimal")
        run(connection, ("INSERT INTO t VALUES (1, %s, 1, '[]')", (DOCUMENT,)), "UPDATE t SET n = 2")
        assert log.seen()[-1].rows[0].after[2] == 2  # no JSON changed: nothing is missing
        run(connection, "UPDATE t SET j = json_set(j, '$.a', 5)")
        with pytest.raises(UnsupportedEvent, match=r"column 'j' of table json_image.t .*binlog_row_image=FULL") as raised:
            log.seen()
        assert "mysqlbinlog" not in str(raised.value), "the binlog is sound"


@pytest.mark.server
def test_partial_updates_with_row_image_noblob(mysql: Server) -> None:
    """With NOBLOB the server keeps JSON columns in both images, so that diffs can be applied."""
    with database_of(mysql, "json_noblob") as (connection, log):
        run(connection, "CREATE TABLE t (id int primary key, j json, n int, k json)")
        run(connection, "SET SESSION binlog_row_value_options = PARTIAL_JSON, binlog_row_image = noblob")
        run(connection, ("INSERT INTO t VALUES (1, %s, 1, '[]')", (DOCUMENT,)))
        run(connection, "UPDATE t SET n = 2", "UPDATE t SET j = json_set(j, '$.a', 5)")
        _, first, second = log.seen()
        ((expected,),) = run(connection, "SELECT CAST(j AS CHAR) FROM t")
        assert first.rows[0].after == (1, expected.replace('"a": 5', '"a": 1'), 2, "[]")
        assert second.rows[0].after == (1, expected, 2, "[]")


# ---------------------------------------------------------------- by hand


def test_an_empty_value_is_json_null() -> None:
    """INSERT IGNORE of NULL into NOT NULL JSON leaves no bytes: MySQL shows null."""
    assert json_text(b"") == "null"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (1e15, "1e15"),
        (1e14, "100000000000000.0"),
        (1e-5, "0.00001"),
        (5e-324, "5e-324"),
        (1.5e300, "1.5e300"),
    ],
)
def test_doubles(value: float, text: str) -> None:
    """The forms that MySQL chooses."""
    assert double_text(value) == text


def test_quoting_is_mysqls() -> None:
    """Only quotes, backslashes and control characters are escaped; everything else stays."""
    assert quoted('a"\\/\b\f\n\r\t\x01\x7fü😀') == '"a\\"\\\\/\\b\\f\\n\\r\\t\\u0001\x7fü😀"'


ARRAY = b"\x02" + struct.pack("<HH", 2, 16) + b"\x05\x07\x00" + b"\x0c\x0a\x00" + b"\x05hello"


def test_a_document_by_hand() -> None:
    """The format as the plan of the module gives it."""
    assert json_text(ARRAY) == '[7, "hello"]'


def test_diffs_by_hand() -> None:
    """Replace, insert and remove, in order, with paths of both kinds."""

    def diff(operation: int, path: str, value: bytes = b"") -> bytes:
        head = bytes([operation, len(path)]) + path.encode()
        return head + (bytes([len(value)]) + value if operation != 2 else b"")

    assert patched_text(ARRAY, b"") == '[7, "hello"]'
    assert patched_text(ARRAY, diff(0, "$[0]", b"\x04\x01")) == '[true, "hello"]'
    assert patched_text(ARRAY, diff(1, "[0]", ARRAY) + diff(2, "$[2]")) == '[[7, "hello"], 7]'
    assert patched_text(ARRAY, diff(0, "$", b"\x05\x01\x00")) == "1"


@pytest.mark.parametrize(
    "diffs",
    [
        b"\x00",
        b"\x07\x01$",
        b"\x02\x05$.a.b",
        b"\x00\x04$[9]\x02\x04\x01",
        b"\x02\x01$",
        b"\x00\x02$x\x02\x04\x01",
        b"\x01\x04$[0]\x30\x04",
    ],
)
def test_damaged_diffs_are_refused(diffs: bytes) -> None:
    """Cut off, unknown, or of a path that the document has not."""
    with pytest.raises(DAMAGE):
        patched_text(ARRAY, diffs)


def test_nesting_is_bounded_as_in_mysql() -> None:
    """100 levels are read, a damaged document that contains itself is refused at once."""
    loop = b"\x02" + struct.pack("<HH", 1, 7) + b"\x02\x00\x00"
    with pytest.raises(ValueError, match=r"overlap|deeper"):
        json_text(loop)
    with pytest.raises(ValueError, match="deeper"):
        json_text(loop + bytes(500))
    wide = b"\x02" + struct.pack("<HH", 40, 4 + 3 * 40) + b"\x02\x00\x00" * 40
    with pytest.raises(ValueError, match=r"overlap|deeper"):
        json_text(wide)


def test_parts_that_are_shared_do_not_multiply() -> None:
    """A damaged document whose 60 levels each hold the next one twice would print 2^60 elements: it is refused at once."""
    document = b"\x05\x01\x00"
    for _ in range(60):
        size = 10 + len(document) - 1
        document = b"\x02" + struct.pack("<HH", 2, size) + (document[:1] + struct.pack("<H", 10)) * 2 + document[1:]
    with pytest.raises(ValueError, match="overlap"):
        json_text(document)
    with pytest.raises(ValueError, match="overlap"):
        patched_text(document, b"")


@settings(max_examples=1500)
@given(st.binary(max_size=60), st.integers(0, 15))
def test_any_bytes_are_text_or_a_plain_error(data: bytes, kind: int) -> None:
    """Random bytes end in text or one of the errors that `rows` knows, in bounded time."""
    started = time.thread_time()
    with suppress(*DAMAGE):
        assert isinstance(json_text(bytes([kind]) + data), str)
    assert time.thread_time() - started < 2
