"""The source errors that only the producer raises. Each message says what was seen and what to do."""

from __future__ import annotations

from shmstore.errors import PositionNotFound, SourceError, UnsupportedEvent


class ServerUnreachable(SourceError, ConnectionError):
    """No server answers there, or it takes no connections now. Retried, once a connection has stood."""


class LinkLost(SourceError, ConnectionError):
    """An open link broke or fell silent. Always retried."""


class LoginRefused(SourceError, PermissionError):
    """The server refused account, password or TLS. Retried, once a connection has stood (passwords rotate)."""


class PrivilegeMissing(SourceError, PermissionError):
    """The account may not do what a replica must."""


class ServerIdInUse(SourceError):
    """Another replica with the same server id took the stream over."""


class ServerBehind(PositionNotFound):
    """The server has not executed what the start position has: it lags behind, was reset, or is another."""


class AnonymousTransactions(PositionNotFound):
    """With gtid_mode = ON a server does not send what it logged without GTIDs."""


class ChecksumMismatch(LinkLost):
    """An event arrived damaged. Read again from the last transaction."""


class TransactionBroken(UnsupportedEvent):
    """The stream of transactions contradicts itself or the store; it can not be skipped: what follows would be wrong."""


class PatternError(SourceError, ValueError):
    """A filter pattern cannot be read."""


class SettingsError(SourceError, ValueError):
    """An option is unknown, missing or not allowed."""
