"""Database: a connection through Spark's own JVM, for copies in a database.

The driver (a jar) is the user's Spark's: ``--packages org.mariadb.jdbc:mariadb-java-client:3.5.6``. One connection is kept, and
opened again when it is lost. A driver's errors become one line, without the password; a password is never logged, and nothing
of the connection is in the query's checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from shmstore.consumer.copies.target import TargetFailed
from shmstore.consumer.spark.replicate.sql_dialect import SqlDialect

DRIVERS = {
    "postgresql": ("org.postgresql.Driver", "org.postgresql:postgresql:42.7.8"),
    "mariadb": ("org.mariadb.jdbc.Driver", "org.mariadb.jdbc:mariadb-java-client:3.5.6"),
    "mysql": ("com.mysql.cj.jdbc.Driver", "com.mysql:mysql-connector-j:9.5.0"),
}
_ALIVE_SECONDS = 5
_INCORRECT_STRING = 1366
_STATEMENT_CHARACTERS = 1 << 19
_SECRET = re.compile(r"(?i)((?:password|passwd|pwd|secret|token|passphrase)[^=&;?\s]*=)[^&;\s]*")
_USER_INFO = re.compile(r"//[^/@\s]*@")


class DatabaseError(TargetFailed):
    """The database cannot be reached, or refused a statement. One line, without secrets. `state` is its SQLSTATE, where it gave one."""

    state = ""

    @property
    def of_values(self) -> bool:
        """Whether values do not fit the columns they are for; the statement did nothing then, and the transaction stands."""
        return self.state.startswith("22") or self.state == "42804"


class Database:
    """A database named by its JDBC `url`; `properties` are the driver's (user, password, ...)."""

    def __init__(self, session: SparkSession, url: str, properties: Mapping[str, str] | None = None) -> None:
        kind = url.split(":")[1] if url.startswith("jdbc:") and url.count(":") > 1 else ""
        if kind not in DRIVERS:
            forms = ", ".join(f"jdbc:{name}://HOST:PORT/DATABASE" for name in DRIVERS)
            raise ValueError(f"url {self._clean(url, {})!r} names no database that can hold copies: give {forms}")
        self._session = session
        self._url = url
        self._properties = {key: value for key, value in (properties or {}).items() if key != "driver"}
        self._driver = (properties or {}).get("driver", DRIVERS[kind][0])
        self._package = DRIVERS[kind][1]
        self._connection: Any = None
        self._statement: Any = None
        self.transactions = 0  # that were begun
        self.dialect = SqlDialect(kind)

    def __repr__(self) -> str:
        return f"Database({self.name})"

    @property
    def name(self) -> str:
        """The URL without its parameters and users."""
        return _USER_INFO.sub("//", self._url.partition("?")[0].partition(";")[0])

    # ---------------------------------------------------------------- connection

    def connect(self) -> None:
        """Connect, unless a living connection is there. Raises `DatabaseError`."""
        if self._connection is not None:
            with suppress(Py4JError):
                if self._connection.isValid(_ALIVE_SECONDS):
                    return
            self.close()
        jvm: Any = self._session.sparkContext._jvm
        properties = jvm.java.util.Properties()
        for key, value in self._properties.items():
            properties.setProperty(key, value)
        with self._errors(f"cannot connect to {self.name}"):
            connection = self._load(jvm).connect(self._url, properties)
        if connection is None:
            raise DatabaseError(
                f"driver {self._driver} does not accept {self.name}: see the driver's documentation for the form of its URLs"
            )
        self._connection = connection
        try:
            self._prepare(connection)
        except DatabaseError:
            self.close()
            raise

    def _prepare(self, connection: Any) -> None:
        with self._errors(f"cannot use {self.name}"):
            connection.setAutoCommit(False)
            self._statement = connection.createStatement()
            self._statement.setEscapeProcessing(False)  # braces in values are not JDBC's
            if not self.dialect.postgres:
                version = str(self.query("SELECT VERSION()")[0][0])
                self.dialect = SqlDialect("mariadb" if "mariadb" in version.lower() else "mysql")  # either driver speaks to both
            for sql in self.dialect.settings:
                self._statement.execute(sql)
            connection.commit()

    def _load(self, jvm: Any) -> Any:
        """The driver, from the class loader that has Spark's --packages, --jars and ADD JAR; DriverManager does not look there."""
        loader = self._session._jsparkSession.sharedState().jarClassLoader()
        try:
            found = loader.loadClass(self._driver)
        except Py4JJavaError as error:
            raise DatabaseError(
                f"Spark has no class {self._driver}, the JDBC driver for {self.name}: start Spark with --packages {self._package}, or with --jars"
            ) from error
        gateway: Any = self._session.sparkContext._gateway
        nothing = gateway.new_array(jvm.java.lang.Class, 0)
        return found.getDeclaredConstructor(nothing).newInstance(gateway.new_array(jvm.java.lang.Object, 0))

    def close(self) -> None:
        """Close the connection; what was not committed is rolled back. Idempotent."""
        if self._connection is not None:
            with suppress(Py4JError):
                self._connection.close()
        self._connection = self._statement = None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what the body did, or roll it back where it raised. Raises `DatabaseError`."""
        self.connect()
        self.transactions += 1
        try:
            yield
            with self._errors("the transaction was not committed"):
                self._connection.commit()
        except BaseException:
            self.close()  # its state is unknown: the next transaction opens a new one
            raise

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Undo what the body did where a statement of it was refused; what was done before stays, and the transaction continues.

        What MariaDB and MySQL commit by themselves, a DDL, stays as well.
        """
        self.execute("SAVEPOINT shmstore")
        try:
            yield
        except DatabaseError as error:
            if self.dialect.postgres:
                self.execute("ROLLBACK TO SAVEPOINT shmstore")
            elif error.of_values:
                with suppress(DatabaseError):  # a DDL in the body has ended it
                    self.execute("ROLLBACK TO SAVEPOINT shmstore")
            raise

    # ---------------------------------------------------------------- statements

    def execute(self, sql: str) -> int:
        """Run a statement; return how many rows it changed. Raises `DatabaseError`."""
        with self._errors(f"{self.name} refused {' '.join(sql[:60].split())!r}"):
            self._statement.execute(sql)
            return int(self._statement.getUpdateCount())

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a query; return its rows. Raises `DatabaseError`."""
        with self._errors(f"{self.name} refused {' '.join(sql[:60].split())!r}"):
            result = self._statement.executeQuery(sql)
            count = range(1, result.getMetaData().getColumnCount() + 1)
            rows = []
            while result.next():
                rows.append(tuple(result.getString(i) for i in count))
            result.close()
            return rows

    def insert(self, table: str, columns: str, rows: list[str]) -> None:
        """Insert rows as `SqlDialect.rows` writes them, some hundred kilobytes a statement. Raises `DatabaseError`."""
        first, size = 0, 0
        for i, row in enumerate(rows):
            if size + len(row) > _STATEMENT_CHARACTERS and i > first:
                self._insert(f"{table} ({columns})", rows[first:i])
                first, size = i, 0
            size += len(row)
        if first < len(rows):
            self._insert(f"{table} ({columns})", rows[first:])

    def _insert(self, into: str, rows: list[str]) -> None:
        if not self.dialect.postgres:
            self.execute(f"INSERT INTO {into} VALUES {','.join(rows)}")
            return
        jvm: Any = self._session.sparkContext._jvm
        with self._errors(f"{self.name} refused {f'COPY {into}'[:60]!r}"):
            lines = jvm.java.io.StringReader("".join(f"{row}\n" for row in rows))
            self._connection.getCopyAPI().copyIn(f"COPY {into} FROM STDIN", lines)

    # ---------------------------------------------------------------- errors

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Turn the driver's exceptions into one line: Java's own text, with its stack, may hold the URL with a password."""
        said, state = None, ""
        try:
            yield
        except Py4JJavaError as error:
            said, state = _message(error.java_exception), _state(error.java_exception)
        except Py4JError as error:
            said = str(error).partition("\n")[0]
        if said is not None:
            failed = DatabaseError(f"{self._clean(what, self._properties)}: {self._clean(said, self._properties)}")
            failed.state = state
            raise failed

    @staticmethod
    def _clean(text: str, properties: Mapping[str, str]) -> str:
        for key, value in properties.items():
            if value and _SECRET.match(f"{key}="):
                text = text.replace(value, "***")
        return " ".join(_USER_INFO.sub("//", _SECRET.sub(r"\1***", text)).split())


def _state(error: Any) -> str:
    """The SQLSTATE of an exception that has one; for text that is none MySQL says no more than its own number."""
    with suppress(Py4JError, TypeError):  # no SQLException has no such method
        return "22000" if error.getErrorCode() == _INCORRECT_STRING else str(error.getSQLState() or "")
    return ""


def _message(error: Any) -> str:
    """The messages of an exception and its causes, each once."""
    found: list[str] = []
    for _ in range(4):
        if error is None:
            break
        said = str(error.getMessage() or error.getClass().getSimpleName())
        if not any(said in other for other in found):
            found.append(said)
        error = error.getCause()
    return ": ".join(found)
