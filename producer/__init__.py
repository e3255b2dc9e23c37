"""MySQL and MariaDB in: one binlog connection, decoded exactly, put into a store."""

from producer.errors import (
    LinkLost,
    LoginRefused,
    PrivilegeMissing,
    ServerIdInUse,
    ServerUnreachable,
    TransactionBroken,
)
from producer.filter import PatternError
from producer.replicator import Summary, run
from producer.settings import Settings, SettingsError, add_flags, load_all, load_settings

__all__ = [
    "LinkLost",
    "LoginRefused",
    "PatternError",
    "PrivilegeMissing",
    "ServerIdInUse",
    "ServerUnreachable",
    "Settings",
    "SettingsError",
    "Summary",
    "TransactionBroken",
    "add_flags",
    "load_all",
    "load_settings",
    "run",
]
