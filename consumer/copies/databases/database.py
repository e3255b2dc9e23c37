"""Database: one connection to a database that holds copies, its transactions and its errors.

The connection is kept, and opened again when it was lost. A driver's errors become one line without the password, which is never logged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from shmstore.consumer.copies.database_url import without_secrets
from shmstore.consumer.copies.databases.dialect import Refusal, SqlDialect
from shmstore.consumer.copies.target import TargetBusy, TargetFailed

Password = str | Callable[[], str]
_SHOWN = 60  # characters of a statement
_LOOK_SECONDS = 0.2
_log = logging.getLogger(__name__)


class DatabaseError(TargetFailed):
    """The database cannot be reached, or refused a statement. One line, without secrets. `refusal` says what that concerns."""

    refusal = Refusal.ALL


class DatabaseBusy(DatabaseError, TargetBusy):
    """Another process has the database for now."""


class Database:
    """The database at `url`. `password` is asked for each connection, where it is a function; else the URL's own is used.

    `stopped` is asked while another process is waited for: where it returns true the wait ends with `TargetBusy`.
    """

    def __init__(self, dialect: SqlDialect, url: str, password: Password = "", stopped: Callable[[], bool] | None = None) -> None:
        self.dialect, self._url, self._password, self._stopped = dialect, url, password, stopped
        self._used = ""  # password, of the connection
        self._connection: Any = None
        self._locks: list[str] = []
        self._depth = 0  # of what is all or nothing
        self.transactions = 0  # that were begun

    def __repr__(self) -> str:
        return f"Database({self.name})"

    def __getstate__(self) -> dict[str, Any]:
        """Without the connection: a process that gets it opens its own."""
        return {**self.__dict__, "_connection": None, "_locks": []}

    @property
    def name(self) -> str:
        """The URL without its parameters and users."""
        return without_secrets(self._url)

    # ---------------------------------------------------------------- connection

    def connect(self) -> None:
        """Connect, unless a living connection is there. Raises `DatabaseError`."""
        if self._connection is not None and self.dialect.alive(self._connection):
            return
        self.close()
        password = self._ask()
        with self._errors(f"cannot connect to {self.name}"):
            self._connection = self.dialect.open(password)
        try:
            self.dialect.prepare(self)
        except BaseException:
            self.close()
            raise

    def _ask(self) -> str:
        try:
            self._used = self._password if isinstance(self._password, str) else self._password()
        except OSError as error:
            raise DatabaseError(f"cannot connect to {self.name}: its password cannot be read: {error}") from None
        return self._used

    def close(self) -> None:
        """Close the connection; what was not committed is rolled back. Idempotent."""
        connection, self._connection, self._locks = self._connection, None, []
        if connection is not None:
            with suppress(*self.dialect.errors):
                connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what the body did, or roll it back where it raised. Raises `DatabaseError`."""
        self.connect()
        self.transactions += 1
        try:
            self._wait(lambda: self.dialect.begin(self), self.name)
            yield
            with self._errors("the transaction was not committed"):
                self.dialect.commit(self._connection)
            if self._locks:
                self.dialect.unlock(self, self._locks)
                self._locks = []
        except BaseException:
            self.close()  # its state is unknown: the next transaction opens a new one
            raise

    def lock(self, name: str) -> None:
        """Own `name` until the transaction ends: while another process does, this one waits for it."""
        if name not in self._locks:
            self._wait(lambda: self.dialect.lock(self, name), f"the copy {name} in {self.name}")
            self._locks.append(name)

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        waits = False
        while not done():
            if not waits:
                _log.warning("another process writes to %s: this one waits for it", what)
                waits = True
            if self._stopped is not None and self._stopped():
                raise TargetBusy(f"another process writes to {what}")
            time.sleep(_LOOK_SECONDS)

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Undo what the body did where it raised; what was done before stays, and the transaction continues. They may be nested.

        A DDL, which MariaDB and MySQL commit at once, stays as well, and what it committed.
        """
        self._depth += 1
        name = f"shmstore_{self._depth}"
        try:
            self.execute(f"SAVEPOINT {name}")
            try:
                yield
            except Exception as error:
                if not isinstance(error, DatabaseError) or error.refusal is not Refusal.ALL:
                    self._undo(name)
                raise
            if not self.dialect.ddl_commits:
                self.execute(f"RELEASE SAVEPOINT {name}")
        finally:
            self._depth -= 1

    def _undo(self, name: str) -> None:
        try:
            self.execute(f"ROLLBACK TO SAVEPOINT {name}")
        except DatabaseError as error:
            if not self.dialect.ddl_commits or error.refusal is Refusal.ALL:  # else a DDL in the body has ended it
                raise

    # ---------------------------------------------------------------- statements

    def execute(self, sql: str) -> None:
        """Run a statement. Raises `DatabaseError`."""
        with self._refused(sql):
            self.dialect.run(self._connection, sql)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a query; return its rows. Raises `DatabaseError`."""
        with self._refused(sql):
            return [tuple(row) for row in self.dialect.run(self._connection, sql)]

    @contextmanager
    def driver(self, sql: str) -> Iterator[Any]:
        """The driver's own connection, for what it does with `sql`. Raises `DatabaseError`."""
        with self._refused(sql):
            yield self._connection

    def _refused(self, sql: str) -> Any:
        return self._errors(f"{self.name} refused {' '.join(sql[:_SHOWN].split())!r}")

    # ---------------------------------------------------------------- errors

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except self.dialect.errors as error:
            said = without_secrets(" ".join(str(self.dialect.message(error)).split()))
            for secret in (self._used, self.dialect.password):
                said = said.replace(secret, "***") if secret else said
            refusal = self.dialect.refusal(error)
            if refusal is Refusal.BUSY:
                raise DatabaseBusy(f"{what}: {said}") from None
            failed = DatabaseError(f"{what}: {said}")
            failed.refusal = refusal
            raise failed from None  # the driver's own text may hold the password
