"""What ZooKeeper has of a destination's clients, read once: their filters and cursors, for a take-over."""

from __future__ import annotations

from contextlib import suppress
from typing import Final, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from shmstore.consumer.wire.cluster.cursor import ClusterCursor
from shmstore.consumer.wire.cluster.zookeeper import ZookeeperSilent

_DESTINATIONS: Final = "/otter/canal/destinations"
PATIENCE: Final = 10.0


class StoredClient(NamedTuple):
    """A client that has subscribed once; `cursor` None: it has acked nothing."""

    client_id: int
    filter: str = ""
    cursor: ClusterCursor | None = None


def stored_clients(hosts: str, destination: str, timeout: float = PATIENCE) -> list[StoredClient]:
    """Return the clients of a destination. Raises `ZookeeperSilent`, and `ProtocolError` where what exists is no cursor."""
    zookeeper = KazooClient(hosts, timeout=timeout)

    def value(path: str) -> bytes:
        with suppress(NoNodeError):
            return bytes(zookeeper.get(path)[0] or b"")
        return b""

    try:
        zookeeper.start(timeout=timeout)
        folder = f"{_DESTINATIONS}/{destination}"
        names = zookeeper.get_children(folder) if zookeeper.exists(folder) else []
        found = []
        for name in sorted(name for name in names if name.lstrip("-").isdigit()):
            data = value(f"{folder}/{name}/cursor")
            filter = value(f"{folder}/{name}/filter").decode("utf-8", "replace")
            found.append(StoredClient(int(name), filter, ClusterCursor.decode(data) if data else None))
        return found
    except (KazooException, KazooTimeoutError, OSError) as error:
        raise ZookeeperSilent(
            f"ZooKeeper at {hosts} does not answer ({type(error).__name__}): start it, or take no cursors from it"
        ) from error
    finally:
        with suppress(KazooException):
            zookeeper.stop()
            zookeeper.close()
