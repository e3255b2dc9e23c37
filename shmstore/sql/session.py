"""What of the session that ran a statement decides its meaning. All of it comes with the statement in the binlog."""

from __future__ import annotations

from typing import NamedTuple

from shmstore.sql.tokens import SqlMode, modes

__all__ = ["UNKNOWN", "Dialect", "Session", "meanings"]

_OTHER_PRODUCTS = 0b11111 << 8 | 1 << 18  # of sql_mode: POSTGRESQL, ORACLE, MSSQL, DB2, MAXDB; ANSI
_EXPLICIT_TIMESTAMPS = 1 << 24  # of MariaDB's options


class Session(NamedTuple):
    """The settings of a session, as far as a definition of a table or a database depends on them.

    A character set that the event does not name is an empty string. `explicit_timestamps` is explicit_defaults_for_timestamp as MySQL
    logs it, from 8.0 on; of MariaDB it is a bit of `options`. `temporary`: the statement is about a temporary table of the session, or
    may be; MariaDB logs such statements where the format is not ROW.
    """

    sql_mode: int = 0  # bits
    client: str = ""  # character set of the statement's bytes
    literals: str = ""  # character set of collation_connection: each string passes through it
    server: str = ""  # character set of collation_server: that of a database which names none
    database: str = ""  # of MySQL's collation_database, where that is not the database's own
    options: int | None = None
    explicit_timestamps: bool | None = None
    temporary: bool = False
    rewritten: bool = False  # the text is the server's own, for a statement that it does not log as it came
    failed: bool = False  # the statement had an error; it is logged for what it had done before

    @property
    def mode(self) -> SqlMode:
        """What of sql_mode decides how the statement is read."""
        return SqlMode.of(self.sql_mode)

    def with_mode(self, mode: SqlMode) -> Session:
        """The session with another `mode`, and all else of its sql_mode."""
        return self._replace(sql_mode=self.sql_mode & ~self.mode.bits | mode.bits)


UNKNOWN = Session()


def meanings(sql: str, session: Session) -> list[Session]:
    """Return the sessions as which the server may have read a statement: often the log's alone, which comes first.

    Besides `modes`: what servers write themselves has escaped backslashes in every mode, while a client may have sent just that.
    """
    if session.rewritten and session.mode.plain_backslash and "\\" in sql:
        escaped = session.mode._replace(plain_backslash=False)
        return [session, session.with_mode(escaped)]
    return [session, *[session.with_mode(mode) for mode in modes(sql, session.mode)[1:]]]


class Dialect(NamedTuple):
    """The words of a server in a session: `mariadb`, and what that one's sql_mode makes of the names of types."""

    mariadb: bool
    session: Session = UNKNOWN

    @property
    def oracle(self) -> bool:
        """MariaDB's sql_mode=ORACLE: DATE has a time, BLOB is long, and there is NUMBER."""
        return self.mariadb and self.session.mode.oracle

    @property
    def maxdb(self) -> bool:
        """MariaDB's sql_mode=MAXDB: TIMESTAMP is DATETIME."""
        return self.mariadb and self.session.mode.maxdb

    @property
    def omits_charsets(self) -> bool:
        """Whether a statement that the server wrote itself has no character sets: in the modes of other products."""
        return self.session.rewritten and bool(self.session.sql_mode & _OTHER_PRODUCTS)

    @property
    def explicit_timestamps(self) -> bool | None:
        """Whether a TIMESTAMP without NOT NULL takes NULL; None where the log does not say."""
        if not self.mariadb:
            return self.session.explicit_timestamps
        return None if self.session.options is None else bool(self.session.options & _EXPLICIT_TIMESTAMPS)

    @property
    def real_as_float(self) -> bool:
        """REAL is FLOAT, not DOUBLE."""
        return self.session.mode.real_as_float
