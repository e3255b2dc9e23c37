"""What a server's error numbers mean: which of the producer's errors they become, and what to do."""

from __future__ import annotations

import re
import ssl

from shmstore.errors import BinlogPurged, PositionNotFound, SourceError
from shmstore.producer.errors import (
    AnonymousTransactions,
    LinkLost,
    LoginRefused,
    PrivilegeMissing,
    ServerIdInUse,
    ServerUnreachable,
)
from shmstore.producer.settings import ServerAddress

GRANT = "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO your account (MariaDB: REPLICATION SLAVE, BINLOG MONITOR)"
_UNREACHABLE = {1040, 1053, 1129, 1203, 1226, 2002, 2003, 2005}
_LOST = {1152, 1158, 1159, 1160, 1161, 1184, 1927, 2006, 2013, 3169, 4031}
_LOGIN = {1045, 1130, 1156, 1251, 1275, 1449, 1524, 1698, 1820, 1862, 2026, 2049, 2059, 2061, 3118, 3159, 4151}
_OF_CLIENT = range(2000, 3000)
_SELECT = "GRANT SELECT ON it, or ON *.*, TO your account"
_DENIED = {1227: GRANT, 1370: GRANT, 1044: _SELECT, 1142: _SELECT, 1143: _SELECT}
_NO_CLIENT_PLUGIN, _NO_SERVER_PLUGIN = 2059, 1524
_PLUGIN = re.compile(r"[Pp]lugin (?:\"|'|b')+([^'\"]+)")  # PyMySQL writes 'b'dialog''


def translate(error: Exception, endpoint: ServerAddress, *, user: str = "", server_id: int = 0) -> SourceError:
    """Return the `SourceError` that says what `error` means and what fixes it; `server_id`: as which replica the server was asked."""
    where = endpoint.where
    coded = error.args and isinstance(error.args[0], int) and not isinstance(error, OSError)  # whose number is the system's
    code = error.args[0] if coded else 0
    text = str(error.args[1] if code and len(error.args) > 1 else error).replace("\n", " ").strip()
    cause = getattr(error, "original_exception", None) or error.__context__ or error  # what PyMySQL made an error of its own of
    if code == 1236:
        return _dump_error(text, where, server_id)
    if code == 4052:
        return _in_use(text, where, server_id)
    if code in _DENIED:
        return PrivilegeMissing(f"{where}: {text}; {_DENIED[code]}")
    if not code or code in _OF_CLIENT:  # otherwise the server's code says what it is, whatever names are in its text
        if isinstance(cause, (ssl.SSLEOFError, ConnectionResetError)):  # in mid-handshake too
            return LinkLost(f"the link to {where} broke: {text}")
        if isinstance(cause, ssl.SSLError) or code == 2026:
            return LoginRefused(f"no TLS to {where}: {text}; check the server's certificate and tls, tls_ca, tls_cert, tls_key")
    if wanting := _wants_plugin(code, text):
        return LoginRefused(f"{where} wants {user or 'the account'} to log in with {wanting}")
    if code in _LOST:
        return LinkLost(f"the link to {where} broke: {text}")
    if code in _LOGIN:
        return LoginRefused(f"{where} refused {user or 'the account'}: {text}; check user, password and the account's host")
    if code in _UNREACHABLE or isinstance(error, OSError):
        return ServerUnreachable(f"no connection to {where}: {text}; is the server running, are host and port right?")
    return SourceError(f"{where}: error {code}: {text}" if code else f"{where}: {text}")


def _wants_plugin(code: int, text: str) -> str:
    """Return which authentication plugin the login failed for want of, and what fixes it; empty where that was not the reason."""
    other = (
        "ALTER USER ... IDENTIFIED VIA mysql_native_password USING PASSWORD('...') (MySQL: WITH caching_sha2_password BY '...')"
    )
    if not code and "pynacl" in text:
        return f"plugin client_ed25519, which needs PyNaCl: pip install PyMySQL[ed25519], or {other}"
    if not code and "cryptography" in text:
        return "plugin caching_sha2_password or sha256_password, which without TLS needs cryptography: pip install cryptography, or set tls"
    if code == _NO_CLIENT_PLUGIN and (named := _PLUGIN.search(text)):
        return f"plugin {named[1]}, which is not supported here: {other}"
    if code == _NO_SERVER_PLUGIN and (named := _PLUGIN.search(text)):
        return f"plugin {named[1]}, which the server itself has not loaded: {other}"
    return ""


def _in_use(text: str, where: str, server_id: int) -> ServerIdInUse:
    ours = f"our server id {server_id}" if server_id else "our server id"
    fix = "stop the other one, or set server_id to another number"
    return ServerIdInUse(f"another replica of {where} has {ours} and took the stream over: {text}; {fix}")


def _dump_error(text: str, where: str, server_id: int) -> SourceError:
    low = text.lower()
    if "same server_uuid/server_id" in low or "same server_id" in low:
        return _in_use(text, where, server_id)
    if "anonymous transaction" in low:
        return AnonymousTransactions(
            f"{where}: {text}; gtid_mode became ON before this producer had read what was logged without GTIDs: "
            "SET GLOBAL gtid_mode = ON_PERMISSIVE until it has"
        )
    choices = "start again with start = latest (or earliest) and a new store, or set on_purged"
    if "purged" in low or "could not find first log file" in low:
        return BinlogPurged(f"{where} no longer has the binlog of the start position: {text}; {choices}")
    if "could not find next log" in low:
        return PositionNotFound(
            f"{where} has no binlog file after the one that was read: {text}; its binlog was reset (RESET BINARY LOGS AND GTIDS, RESET MASTER), or "
            f"a file of it is missing; {choices}"
        )
    if any(
        word in low for word in ("not in the master's binlog", "impossible position", "position > file size", "truncated", "gtid")
    ):
        return PositionNotFound(
            f"{where} does not know the start position: {text}; is it another server, or was it reset? {choices}"
        )
    if "not open" in low or "binary logging" in low:
        return SourceError(f"{where}: {text}; turn the binlog on: log_bin")
    return SourceError(f"{where} refused to send its binlog: {text}")
