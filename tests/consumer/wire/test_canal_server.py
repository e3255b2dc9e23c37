"""Canal's own server and `shmstore serve` on the same binlog, with the same client: entry by entry, to the byte.

What may differ is in `DIFFERENCES`, the same table as in docs/how-to/canal-differences.md; each must be seen, so that a line which is no longer true
does not stay.
"""

from __future__ import annotations

import json
import re
import struct
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from shmstore import EventStore
from shmstore.consumer.formats.formatter import Formatter
from shmstore.consumer.tail import Peek
from shmstore.consumer.wire import CanalSettings
from shmstore.consumer.wire.protocol import messages as m
from tests.consumer.wire.canal_rows import OTHER_CHARSETS
from tests.consumer.wire.canal_rows import statements as statements_of
from tests.consumer.wire.harness import RawClient, ServerThread, entries
from tests.producer.running import running, wait_for_position
from tests.servers.canal import DESTINATION, canal_server, flat_messages
from tests.servers.server import Server, start_server

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "canal-differences.md"
BEGIN, ROWS, END = 1, 2, 3
QUERY, INSERT, UPDATE, DELETE = 7, 1, 2, 3
ROLE = {QUERY: "QUERY", INSERT: "INSERT", UPDATE: "UPDATE", DELETE: "DELETE"}


class Difference(NamedTuple):
    """A field that may differ, as docs/how-to/canal-differences.md has it: what Canal sends, what we send, why."""

    what: str
    canal: str
    here: str
    why: str


DIFFERENCES = {
    "table id": Difference(
        "`RowChange.tableId`",
        "the server's table id",
        "a number computed from the table's definition",
        "a store does not keep the server's id; this one is the same after a restart",
    ),
    "character set": Difference(
        "text of another character set than UTF-8",
        "read as UTF-8: `é` of latin1 becomes `�`",
        "the text",
        "Canal loses the text",
    ),
    "binary text": Difference(
        "`VARCHAR ... CHARACTER SET binary`",
        "text, `sqlType` 12",
        "bytes, `sqlType` 2004",
        "bytes that are not UTF-8 would be lost",
    ),
    "doubles": Difference(
        "FLOAT and DOUBLE",
        "as its Java prints them; before Java 19 not always with the fewest digits: `9.999999999999999E22`",
        "as Java 19 and later prints them: `1.0E23`",
        "both are the same number",
    ),
    "types in JSON": Difference(
        "DATE and DECIMAL in JSON, and JSON strings that look like values of other SQL types",
        "by their type: `2024-05-06 00:00:00.000000`; `1.2345678905E9` for a double and `1234567890.5` for a DECIMAL",
        "by their text, as MySQL prints it: `2024-05-06`, `1.2345678905E9`",
        "a store keeps JSON as text; there a DATE is a string, and some DECIMALs look like doubles",
    ),
    "replace": Difference(
        "REPLACE and LOAD DATA logged as a statement",
        "not sent",
        "an INSERT with the table",
        "otherwise a change would be lost",
    ),
    "several tables": Difference(
        "DELETE from several tables, logged as a statement",
        "the first name in the statement, which may be an alias",
        "the first of the tables",
        "the filter is applied to each of the tables",
    ),
    "statement filters": Difference(
        "a client's filter and changes that were logged as statements",
        "not applied: every client gets them",
        "applied to each table",
        "a client gets what it asks for",
    ),
    "values of a statement": Difference(
        "INSERT_ID, RAND and user variables before a statement",
        "QUERY entries that set them",
        "not sent",
        "a store keeps rows; these statements change none",
    ),
    "accounts": Difference(
        "statements about accounts that Canal's parser does not understand (MySQL's ALTER USER)",
        "QUERY entries, to every client",
        "never sent",
        "they contain secrets",
    ),
    "unread DDL": Difference(
        "other DDLs that Canal's parser does not understand",
        "QUERY entries without a table",
        "entries of their own type; not sent if they concern no table",
        "otherwise filters would not apply to them",
    ),
    "no index": Difference(
        "ALTER TABLE with nothing but CHECK, FOREIGN KEY or REMOVE PARTITIONING",
        "not sent",
        "an ALTER with the table",
        "a reader that keeps definitions needs it",
    ),
    "second rename": Difference(
        "ALTER TABLE that renames the table after other parts",
        "the first part, with the old name",
        "a RENAME with the new name",
        "the filter is applied to both names",
    ),
    "backticks": Difference(
        "CREATE and DROP DATABASE with the name in backticks",
        "`schemaName` has the backticks",
        "`schemaName` is the name",
        "readers compare names",
    ),
    "old key": Difference(
        "`isKey` after DROP PRIMARY KEY",
        "may stay true",
        "of the key that the table has now",
        "otherwise a client would look for rows by a key that no longer exists",
    ),
    "spelling": Difference(
        "`mysqlType` of a table whose DDL the producer did not read",
        "as SHOW CREATE TABLE prints it",
        "as the server's information_schema prints it",
        "see [Values](canal.md#values)",
    ),
    "defaults": Difference(
        "protobuf fields that hold their default",
        "some are on the wire, so that `has...()` is true",
        "on the wire if proto3 marks them as optional",
        "the values are the same",
    ),
    "grown old": Difference(
        "`old` of a flat message with several rows",
        "also has columns that earlier rows of the event changed",
        "has the columns that the row changed",
        "the other columns did not change",
    ),
    "gtid sets": Difference(
        "`gtid` in the header, with `--gtids on`",
        "in every entry, if Canal was started by a GTID; else in none",
        "of a transaction's end and of a DDL; `curtGtid` is in every entry",
        "the store keeps the set once a transaction",
    ),
    "sequences": Difference(
        "MariaDB's sequences",
        "Canal stops: it does not understand their definition",
        "rows of a table, as in the binlog",
        "reading continues",
    ),
}

# Statements of every kind. Tables are kept: Canal asks the server for those whose DDL it cannot read.
LOAD = Path(__file__).with_name("canal_load.sql").read_text(encoding="utf-8")
LAST = "CREATE DATABASE the_end"


def capture(port: int, destination: str, seconds: float) -> list[Any]:
    """All entries up to that of `LAST`, got in small batches."""
    client, found = RawClient(port, destination), []
    client.socket.settimeout(60)
    try:
        assert client.subscribe().error_code == 0
        deadline = time.monotonic() + seconds
        while not found or not is_last(found[-1]):
            assert time.monotonic() < deadline, f"only {len(found)} entries came"
            answer = client.get(64, timeout=-1)
            if answer.batch_id > 0:
                found += entries(answer)
                client.ack(answer.batch_id)
            else:
                time.sleep(0.05)
    finally:
        client.close()
    return found


def is_last(entry: Any) -> bool:
    return entry.entryType == ROWS and m.RowChange.FromString(entry.storeValue).sql == LAST


def content(entry: Any) -> Any:
    """The parsed storeValue."""
    return {BEGIN: m.TransactionBegin, ROWS: m.RowChange, END: m.TransactionEnd}[entry.entryType].FromString(entry.storeValue)


def place(entry: Any) -> tuple[str, int, int]:
    """What tells an entry from all others."""
    return entry.header.logfileName, entry.header.logfileOffset, entry.entryType


def flat(message: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The fields that are set, by path: repeated ones by number, columns by name."""
    for field, value in message.ListFields():
        if isinstance(value, bytes | str | int | float | bool):
            yield f"{path}.{field.name}", value
            continue
        parts = value if not hasattr(value, "ListFields") else [value]
        for number, part in enumerate(parts):
            if hasattr(part, "ListFields"):
                yield from flat(part, f"{path}.{field.name}[{getattr(part, 'name', '') or number}]")
            else:
                yield f"{path}.{field.name}[{number}]", part


def fields(entry: Any) -> dict[str, Any]:
    """Every field of an entry and of what it stores."""
    return {path: value for path, value in flat(entry) if path != ".storeValue"} | dict(flat(content(entry), ".stored"))


def only_canal(entry: Any) -> str:
    """The permitted difference that an entry is which Canal alone sends; empty: none."""
    sql = content(entry).sql if entry.entryType == ROWS else ""
    if re.match(r"SET (INSERT_ID|LAST_INSERT_ID|SESSION rand_seed1|@)", sql):
        return "values of a statement"
    if re.match(r"(ALTER|CREATE) USER", sql):
        return "accounts"
    return ""


def only_here(entry: Any) -> str:
    """The same of an entry that only we send."""
    sql = content(entry).sql if entry.entryType == ROWS else ""
    if re.match(r"(?i)alter table .* (check|foreign key|remove partitioning)", sql):
        return "no index"
    return "replace" if sql.upper().startswith("REPLACE") else ""


def differing(path: str, canals: Any, ours: Any, column_types: dict[str, Any], sql: str) -> str:
    """The permitted difference that a field is; empty: none."""
    if path == ".stored.tableId":
        return "table id"
    column = re.search(r"Columns\[(\w+)\]\.(value|sqlType|updated|isKey)$", path)
    if column and column[1].startswith(OTHER_CHARSETS) and ("\ufffd" in str(canals) or column[2] == "updated"):
        return "character set"
    if column and re.match(r"json|j$", column[1]) and (column[2] == "updated" or _by_text(canals) == _by_text(ours)):
        return "types in JSON"
    if column and column[2] == "isKey" and canals:
        return "old key"
    if column and column[1] == "charbin" and column[2] == "sqlType":
        return "binary text"
    if column and column[2] == "value" and (kind := {7: "f", 8: "d"}.get(column_types.get(column[1], 0))):
        return "doubles" if struct.pack(kind, float(canals)) == struct.pack(kind, float(ours)) else ""
    if re.match(r"(?i)alter table .*, rename to", sql) and path.rpartition(".")[2] in ("eventType", "tableName"):
        return "second rename"
    if path == ".header[0].schemaName" and canals == f"`{ours}`":
        return "backticks"
    if path == ".header[0].tableName" and ours and re.match(rf"(?i)delete {canals} from .* join ", sql):
        return "several tables"
    return ""


def _by_text(json: Any) -> str:
    """A JSON text without what tells a DATE from a string, and a DECIMAL from a double."""
    text = re.sub(r'"(\d{4}-\d\d-\d\d) 00:00:00(\.0{6})?"', r'"\1"', str(json))
    return re.sub(r"-?\d+\.\d+(E-?\d+)?", lambda number: repr(float(number[0])), text)


def compare(canals: list[Any], ours: list[Any]) -> tuple[list[str], set[str], int]:
    """(differences that are not permitted, keys of those that are and were seen, fields compared)."""
    wrong: list[str] = []
    seen: set[str] = set()
    compared = 0
    theirs, here = {place(entry): entry for entry in canals}, {place(entry): entry for entry in ours}
    assert (len(theirs), len(here)) == (len(canals), len(ours)), "an entry came twice"
    common = [key for key in theirs if key in here]
    assert common == [key for key in here if key in theirs], "another order"
    for key, entry in [*theirs.items(), *here.items()]:
        if key in theirs and key in here:
            continue
        reason = only_canal(entry) if key in theirs else only_here(entry)
        seen.add(reason)
        if not reason:
            wrong.append(f"{key}: only {'Canal' if key in theirs else 'we'}: {entry.header.eventType} {content(entry)}"[:300])
    for key in common:
        one, other = fields(theirs[key]), fields(here[key])
        types = {match[1]: value for path, value in one.items() if (match := re.search(r"Columns\[(\w+)\]\.sqlType$", path))}
        for path in sorted(one.keys() | other.keys()):
            compared += 1
            if one.get(path) != other.get(path):
                sql = str(one.get(".stored.sql", ""))
                reason = differing(path, one.get(path), other.get(path), types, sql)
                seen.add(reason)
                if not reason:
                    wrong.append(f"{key} {sql[:60]}: {path}: Canal {one.get(path)!r}, here {other.get(path)!r}")
    return wrong, seen - {""}, compared


CASES = [
    ("mariadb", "NO_LOG"),
    ("mariadb", "FULL"),
    ("mysql", "MINIMAL"),
    ("mysql", "FULL"),
]


@pytest.mark.long
@pytest.mark.server
@pytest.mark.parametrize(("kind", "metadata"), CASES)
def test_entries_are_those_of_canal(kind: str, metadata: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Of every type, DDL, XA transaction, logged statement and rotation, and of random rows under every row image, the client gets what it
    would get of Canal's server; and `tail` prints what Canal's producers make of that."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    statements = "--binlog-annotate-row-events=1" if kind == "mariadb" else "--binlog-rows-query-log-events=1"
    load = (
        LOAD if metadata != "FULL" else re.sub(r"\byear(\(4\))?,", "int(4),", LOAD)
    )  # Canal takes the signs of what follows a YEAR wrong
    with start_server(kind, [statements, f"--binlog-row-metadata={metadata}"]) as server:
        file, offset = begin(server)
        with (
            canal_server(server, file, offset, int(time.time() * 1000) - 1000) as canal,
            running(server, start="latest", statements="pass", row_image="any", rows_query=True) as run,
        ):
            execute(server, load, statements_of(seed, server.flavor) if metadata != "FULL" else [])
            with EventStore.attach(run.settings.store) as store:
                wait_for_position(server, store)
                flat = documents(store)
            serving = ServerThread(CanalSettings(port=0, state=tmp_path))
            try:
                ours = capture(serving.port, run.settings.store, 60)
            finally:
                serving.stop()
            try:
                canals = capture(canal.port, DESTINATION, 90)
            except AssertionError as error:
                raise AssertionError(f"{error}; Canal logged: {canal.log()[-3000:]}") from error
    wrong, seen, compared = compare(canals, ours)
    print(
        f"{kind} {metadata}: {len(canals)} and {len(ours)} entries, {compared} fields; permitted differences seen: {sorted(seen)}"
    )
    assert not wrong, "\n".join(wrong[:40])
    assert compared > 4000
    not_loaded = {"unread DDL", "sequences", "statement filters", "spelling", "defaults", "grown old", "gtid sets"} | (
        {"accounts", "types in JSON"} if kind == "mariadb" else set()
    )
    assert seen == DIFFERENCES.keys() - not_loaded
    assert compare_flat(flat_messages([entry.SerializeToString() for entry in ours]), flat) == []


def begin(server: Server) -> tuple[str, int]:
    """A new binlog file, and the place in it where what comes begins."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("SHOW BINARY LOG STATUS" if server.flavor == "mysql" else "SHOW MASTER STATUS")
        file, offset = cursor.fetchone()[:2]
    return file, offset


def documents(store: EventStore) -> list[dict[str, Any]]:
    """What `tail --format canal` prints."""
    formatter, found = Formatter("canal"), []
    with Peek(store, "earliest", follow=False, missed=print) as reader:
        for batch in reader:
            found += [json.loads(line) for event in batch for line in formatter.lines(event)]
    return found


def compare_flat(canals: list[dict[str, Any]], ours: list[dict[str, Any]]) -> list[str]:
    """What differs in flat messages and is not permitted."""
    assert len(canals) == len(ours)
    wrong = []
    for one, other in zip(canals, ours, strict=True):
        for name in sorted((one.keys() | other.keys()) - {"id", "ts"}):
            theirs, here = one.get(name, "missing"), other.get(name, "missing")
            if name == "old" and theirs and here:
                theirs = [
                    {column: text for column, text in row.items() if column in mine or row[column] != now.get(column, text)}
                    for row, mine, now in zip(theirs, here, one["data"], strict=True)
                ]
            if theirs != here or (isinstance(here, dict) and list(theirs) != list(here)):
                wrong.append(f"{one['type']} {one['sql'][:60]}: {name}: Canal {theirs!r}, here {here!r}"[:400])
    return wrong


def execute(server: Server, load: str, more: Iterable[str]) -> None:
    """Run the statements; a line that begins with -- and the name of a kind of server is for that kind alone."""
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in [*load.split(";;\n"), *more, LAST]:
            text = statement.strip()
            only = re.match(r"-- (mariadb|mysql): ", text)
            if text and (only is None or only[1] == server.flavor):
                cursor.execute(text[only.end() :] if only else text)


def documented() -> list[tuple[str, ...]]:
    """The rows of the table of differences in docs/how-to/canal-differences.md."""
    text = DOCUMENT.read_text(encoding="utf-8")
    rows = [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in text.splitlines() if line.startswith("| ")]
    return rows[1:]


def test_the_documentation_lists_what_differs() -> None:
    """The table in docs/how-to/canal-differences.md and the one that the comparison permits are the same."""
    assert documented() == [tuple(difference) for difference in DIFFERENCES.values()]
