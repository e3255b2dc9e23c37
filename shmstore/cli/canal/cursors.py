"""The cursors of Canal's clients: read where Canal keeps them, and made subscriptions, so that each client continues where it was.

``meta.dat`` (Canal's FileMixedMetaManager) is JSON, written about once a second over the file that is there: a cursor in it is as old as that.
It is the start of the last transaction's end that a client acked, or with GTIDs the set that was executed then.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shmstore.cli.canal.conversion import Conversion
from shmstore.cli.named_store import subscribe_at
from shmstore.errors import PositionNotFound, ProtocolError, StoreError
from shmstore.event import Position

if TYPE_CHECKING:
    from shmstore.consumer.wire.cluster.stored_clients import StoredClient

FILE: Final = "meta.dat"
_MOST_BYTES: Final = 16 << 20


def of_destination(made: Conversion) -> list[StoredClient]:
    """Return the clients of a destination: those in its meta.dat, or in ZooKeeper where Canal keeps them there. Raises ValueError,
    `ProtocolError`."""
    path = _data_folder(made) / made.source.name / FILE
    hosts = made.get("canal.zkServers")
    if hosts and "file-instance" not in made.get("canal.instance.global.spring.xml"):
        from shmstore.consumer.wire.cluster.stored_clients import stored_clients

        return stored_clients(hosts, made.source.name)
    return in_file(path, made.source.name) if path.exists() else []


def _data_folder(made: Conversion) -> Path:
    """Where Canal keeps meta.dat: relative to its folder bin, as Canal itself is started."""
    folder, here = made.get("canal.file.data.dir", "../conf"), made.source.folder
    return here if folder == made.get("canal.conf.dir", "../conf") else here.parent / "bin" / folder


def in_file(path: Path, destination: str = "") -> list[StoredClient]:
    """Return the clients in a meta.dat; of `destination` alone, where it is named. Raises ValueError, which names the file."""
    from shmstore.consumer.wire.cluster.cursor import ClusterCursor
    from shmstore.consumer.wire.cluster.stored_clients import StoredClient

    try:
        with open(path, "rb") as file:
            raw = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    try:
        if not raw.strip(b"\0 \r\n\t"):
            raise ValueError("it is empty or holds zero bytes, as after a power cut: take a copy of it")
        if len(raw) > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES} bytes")
        found = []
        for each in json.loads(raw)["clientDatas"]:
            identity, cursor = each["clientIdentity"], each.get("cursor")
            if destination and identity["destination"] != destination:
                continue
            place = None if cursor is None else ClusterCursor.decode(json.dumps(cursor).encode())
            if place is not None and not place.gtids and (not place.file or place.offset < 4):
                raise ValueError(f"a cursor at {place.file!r}:{place.offset} is not a place in a binlog")
            found.append(StoredClient(_client_id(identity["clientId"]), str(identity.get("filter") or ""), place))
        return found
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = error if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} is not a meta.dat of Canal: {why}") from error


def _client_id(value: Any) -> int:
    if type(value) is not int or not -(1 << 15) <= value < 1 << 15:
        raise ValueError(f"clientId is {value!r}, which is not a client's number")
    return value


def take(store: str, clients: list[StoredClient], *, path: str | None = None, state: str | None = None) -> str:
    """Make, or move, the subscription of each client in a store, also in one that does not exist yet; return what was done, a line each.

    Raises ValueError where a filter cannot be used; nothing is made then.
    """
    from shmstore.consumer.wire.cluster.resume import first_wanted
    from shmstore.consumer.wire.protocol.connection_state import Client
    from shmstore.consumer.wire.session.filter import compile_filter
    from shmstore.consumer.wire.session.session import subscription_name

    for client in clients:
        try:
            compile_filter(client.filter)
        except ProtocolError as error:
            raise ValueError(f"the filter of client {client.client_id} cannot be used: {error}") from error
    lines = []
    for client in clients:
        name = subscription_name(Client(store, client.client_id))
        if client.cursor is None:
            lines.append(f"{name}: Canal has no cursor of this client, so it begins as a new one")
            continue
        at = client.cursor
        place = at.gtids or f"{at.file}:{at.offset}"
        first = partial(first_wanted, cursor=at)
        position = Position(at.file, at.offset, at.gtids)
        try:
            subscribe_at(store, name, position, first=first, filter=client.filter, path=path, state=state)
        except (PositionNotFound, StoreError) as error:
            lines.append(f"{name}: not made: {error}")
            continue
        lines.append(f"{name}: continues behind {place}" + (f", filter {client.filter}" if client.filter else ""))
    return "\n".join(f"  {line}" for line in lines or ["no cursors of clients: new ones begin at the oldest event"])
