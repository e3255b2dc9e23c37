"""MySQL and MariaDB in: one binlog connection, decoded exactly, put into a store."""

from producer.doctor import Finding, check_server
from producer.errors import (
    AnonymousTransactions,
    ChecksumMismatch,
    LinkLost,
    LoginRefused,
    PrivilegeMissing,
    ServerBehind,
    ServerIdInUse,
    ServerUnreachable,
    TransactionBroken,
)
from producer.filter import PatternError
from producer.progress import Progress, cancel_snapshot, request_snapshot, snapshot_status, snapshot_waits
from producer.replicator import run
from producer.settings import Settings, SettingsError, add_flags, load_all, load_settings
from producer.sources import run_all
from producer.vitals import Summary

__all__ = [
    "AnonymousTransactions",
    "ChecksumMismatch",
    "Finding",
    "LinkLost",
    "LoginRefused",
    "PatternError",
    "PrivilegeMissing",
    "Progress",
    "ServerBehind",
    "ServerIdInUse",
    "ServerUnreachable",
    "Settings",
    "SettingsError",
    "Summary",
    "TransactionBroken",
    "add_flags",
    "cancel_snapshot",
    "check_server",
    "load_all",
    "load_settings",
    "request_snapshot",
    "run",
    "run_all",
    "snapshot_status",
    "snapshot_waits",
]
