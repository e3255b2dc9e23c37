"""The source errors that only the producer raises. Each message says what was seen and what to do."""

from __future__ import annotations

from shmstore.errors import PositionNotFound, SourceError, UnsupportedEvent


class ServerUnreachable(SourceError, ConnectionError):
    """No server answers at this address, or it accepts no connections now. Retried, except for the first connection."""


class LinkLost(SourceError, ConnectionError):
    """An open connection broke or fell silent. Always retried."""


class LoginRefused(SourceError, PermissionError):
    """The server refused account, password or TLS. Retried, except for the first connection: passwords rotate."""


class PrivilegeMissing(SourceError, PermissionError):
    """The account lacks a privilege that a replica needs."""


class ServerIdInUse(SourceError):
    """Another replica with the same server id took over the stream."""


class ServerBehind(PositionNotFound):
    """The server has not executed all of the start position: it lags behind, was reset, or is a different server."""


class AnonymousTransactions(PositionNotFound):
    """A server with gtid_mode = ON does not send transactions that were logged without GTIDs."""


class ChecksumMismatch(LinkLost):
    """An event arrived damaged. Read again from the last transaction."""


class TransactionBroken(UnsupportedEvent):
    """The binlog's transactions contradict each other or the store; they cannot be skipped, because all that follows would be wrong."""


class PatternError(SourceError, ValueError):
    """A filter pattern cannot be read."""


class SettingsError(SourceError, ValueError):
    """An option is unknown, missing or not allowed."""


class ValueRefused(ValueError):
    """A value is whole, and cannot be decoded exactly all the same: the message has the fix."""
