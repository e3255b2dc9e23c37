"""MySQL and MariaDB in: one binlog connection, decoded exactly, put into a store."""

if __name__ == "producer":  # found as a folder of the checkout, where a file of yours may have the same name
    raise ImportError("import shmstore.producer instead of producer")

import typing

from shmstore import lazy_names

if typing.TYPE_CHECKING:
    from shmstore.home.snapshot_progress import Progress
    from shmstore.home.snapshots import cancel_snapshot, snapshot_status, snapshot_waits
    from shmstore.producer.doctor import Finding, check_server, tables_of
    from shmstore.producer.doctor_running import check_running
    from shmstore.producer.errors import (
        AnonymousTransactions,
        ChecksumMismatch,
        LinkLost,
        LoginRefused,
        PatternError,
        PrivilegeMissing,
        ServerBehind,
        ServerIdInUse,
        ServerUnreachable,
        SettingsError,
        TransactionBroken,
    )
    from shmstore.producer.pipeline.reloads import Reloads
    from shmstore.producer.pipeline.replicator import run
    from shmstore.producer.pipeline.sources import run_all
    from shmstore.producer.pipeline.statistics import Summary
    from shmstore.producer.settings import Settings
    from shmstore.producer.settings_sources import add_flags, load_all, load_settings
    from shmstore.producer.snapshot.request import request_snapshot
    from shmstore.producer.snapshot.server_tables import ServerTable, ServerTables

__all__ = [
    "AnonymousTransactions",
    "ChecksumMismatch",
    "Finding",
    "LinkLost",
    "LoginRefused",
    "PatternError",
    "PrivilegeMissing",
    "Progress",
    "Reloads",
    "ServerBehind",
    "ServerIdInUse",
    "ServerTable",
    "ServerTables",
    "ServerUnreachable",
    "Settings",
    "SettingsError",
    "Summary",
    "TransactionBroken",
    "add_flags",
    "cancel_snapshot",
    "check_running",
    "check_server",
    "load_all",
    "load_settings",
    "request_snapshot",
    "run",
    "run_all",
    "snapshot_status",
    "snapshot_waits",
    "tables_of",
]

# Where each public name is defined: options are shown, and checked, without what reads a server.
__getattr__, __dir__ = lazy_names.of(
    __name__,
    {
        "shmstore.home.snapshot_progress": "Progress",
        "shmstore.home.snapshots": "cancel_snapshot snapshot_status snapshot_waits",
        "shmstore.producer.doctor": "Finding check_server tables_of",
        "shmstore.producer.doctor_running": "check_running",
        "shmstore.producer.errors": "AnonymousTransactions ChecksumMismatch LinkLost LoginRefused PatternError PrivilegeMissing ServerBehind "
        "ServerIdInUse ServerUnreachable SettingsError TransactionBroken",
        "shmstore.producer.pipeline.reloads": "Reloads",
        "shmstore.producer.pipeline.replicator": "run",
        "shmstore.producer.pipeline.sources": "run_all",
        "shmstore.producer.pipeline.statistics": "Summary",
        "shmstore.producer.settings": "Settings",
        "shmstore.producer.settings_sources": "add_flags load_all load_settings",
        "shmstore.producer.snapshot.request": "request_snapshot",
        "shmstore.producer.snapshot.server_tables": "ServerTable ServerTables",
    },
)
