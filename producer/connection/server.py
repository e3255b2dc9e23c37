"""A server as a source: what it is, where its binlog stands, and whether rows can be read from it."""

from __future__ import annotations

from typing import NamedTuple

from shmstore.errors import BinlogDisabled, SourceError
from shmstore.event import Position
from shmstore.producer.connection.managed import SERVICE_VARIABLES, Service, service_of
from shmstore.producer.connection.session import ServerSession
from shmstore.producer.errors import LinkLost, PrivilegeMissing
from shmstore.producer.gtid import ExecutedSet, GtidSet, MariadbGtids
from shmstore.producer.settings import ServerAddress, Settings

_VARIABLES = (
    "log_bin",
    "binlog_format",
    "binlog_row_image",
    "binlog_row_metadata",
    "binlog_row_value_options",
    "binlog_checksum",
    "binlog_transaction_compression",
    "log_bin_compress",
    "lower_case_table_names",
    "gtid_mode",
    "gtid_strict_mode",
    "server_id",
    "server_uuid",
    "binlog_expire_logs_seconds",
    "expire_logs_days",
    "max_allowed_packet",
    "max_binlog_size",
    "time_zone",
    "system_time_zone",
    *SERVICE_VARIABLES,
)


class SourceServer(NamedTuple):
    """A server, as its variables describe it."""

    endpoint: ServerAddress
    version: str
    mariadb: bool
    variables: dict[str, str]

    @property
    def flavor(self) -> str:
        """``mariadb`` or ``mysql``."""
        return "mariadb" if self.mariadb else "mysql"

    @property
    def gtids(self) -> bool:
        """Whether every transaction has a GTID."""
        return self.mariadb or self.variables.get("gtid_mode", "OFF") == "ON"

    @property
    def identity(self) -> str:
        """What tells this server from another: its UUID, on MariaDB its server_id."""
        return self.variables.get("server_uuid") or f"server_id={self.variables.get('server_id', '0')}"

    @property
    def source(self) -> str:
        """The source's default name."""
        return f"{self.flavor}://{self.endpoint.where}/{self.identity}"

    @property
    def service(self) -> Service | None:
        """The managed service that it belongs to, if any."""
        return service_of(self.endpoint.host, self.version, self.variables)

    def lasting(self, name: str, value: str) -> str:
        """Return what sets a variable, after a restart of the server, too."""
        if not self.mariadb and int(self.version.partition(".")[0]) >= 8:
            return f"SET PERSIST {name} = {value};"
        return f"SET GLOBAL {name} = {value}; -- and, as a restart of the server ends that, in its option file under [mysqld]: {name} = {value}"

    def to_keep(self, hours: int) -> str:
        """Return what makes the server keep its binlog files for so many hours."""
        service, fix = self.service, self.lasting("binlog_expire_logs_seconds", str(hours * 3600))
        if service is None:
            return fix
        return service.retention.format(hours=hours) or service.fix(fix)

    def executed(self, text: str) -> ExecutedSet:
        """Return a GTID set of this server's kind. Raises ValueError."""
        return MariadbGtids(text) if self.mariadb else GtidSet(text)


def read_server(session: ServerSession) -> SourceServer:
    """Ask the server who it is."""
    return SourceServer(session.endpoint, session.version, session.mariadb, session.variables(_VARIABLES))


def require_binlog(server: SourceServer, settings: Settings) -> None:
    """Raise `BinlogDisabled`, with the SQL that fixes it, unless exact rows can be read from this server."""
    where, have = server.endpoint.where, server.variables
    if have.get("log_bin", "OFF") != "ON":
        raise BinlogDisabled(f"{where} writes no binlog: set log_bin = binlog and server_id = 1 in [mysqld], and restart it")
    format_ = have.get("binlog_format", "ROW")
    if format_ != "ROW" and settings.statements != "pass":
        fix = "SET GLOBAL binlog_format = ROW (and binlog_format = ROW in [mysqld]), then let old sessions reconnect"
        raise BinlogDisabled(f"{where} has binlog_format = {format_}, which logs statements, not rows: {fix}")
    image = have.get("binlog_row_image", "FULL")
    if image != "FULL" and settings.row_image == "full":
        fix = "SET GLOBAL binlog_row_image = FULL; or take partial rows with row_image = any"
        raise BinlogDisabled(f"{where} has binlog_row_image = {image}, which leaves columns out: {fix}")
    metadata = have.get("binlog_row_metadata", "missing")
    if metadata != "FULL" and settings.schema_history == "off":
        fix = "follow DDLs with schema_history = auto"
        if metadata == "missing":  # before MySQL 8.0.1 and MariaDB 10.5
            raise BinlogDisabled(f"{where} ({server.version}) cannot log column names (it has no binlog_row_metadata): {fix}")
        raise BinlogDisabled(
            f"{where} has binlog_row_metadata = {metadata}, which leaves out column names: SET GLOBAL binlog_row_metadata = FULL; or {fix}"
        )


def binlog_files(session: ServerSession) -> list[tuple[str, int]]:
    """Return (name, bytes) of the server's binlog files, oldest first. Raises `PrivilegeMissing`."""
    return [(str(row[0]), int(row[1])) for row in session.query("SHOW BINARY LOGS")]


def log_end(session: ServerSession, server: SourceServer) -> Position:
    """Return where the server writes now, on MySQL with its executed set. Raises `BinlogDisabled`, `PrivilegeMissing`."""
    try:
        names, rows = session.select("SHOW BINARY LOG STATUS")
    except (PrivilegeMissing, LinkLost):
        raise
    except SourceError:  # before MySQL 8.2, and MariaDB
        names, rows = session.select("SHOW MASTER STATUS")
    if not rows:
        raise BinlogDisabled(f"{server.endpoint.where} writes no binlog: set log_bin in [mysqld], and restart it")
    row = {name.lower(): value for name, value in zip(names, rows[0], strict=True)}
    text = str(row.get("executed_gtid_set") or "") if server.gtids and not server.mariadb else ""
    return Position(str(row["file"]), int(row["position"]), str(GtidSet(text)))
