"""The connections of a server of Arrow Flight, which belong to gRPC.

gRPC takes them, and Python cannot tell it how many it may take, nor when to give one up: a client whose host vanished, or that stopped reading
in the middle of an answer, would keep its connection and a thread until the server ends. The sockets are this process's all the same. So
they are found among its open files, by the port that they belong to, and shut down there; gRPC then sees them end, as if the client had
closed them, and so do the methods that wait for it.

A socket is looked at and shut down through a duplicate: gRPC may close its own meanwhile, and its number may be another file's by then.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import unquote

KEEPALIVE: Final = (
    (socket.TCP_KEEPIDLE, 30),
    (socket.TCP_KEEPINTVL, 10),
    (socket.TCP_KEEPCNT, 3),
)  # a vanished host is found in a minute
_INFO: Final = struct.Struct("8B24I")  # struct tcp_info of linux/tcp.h, up to tcpi_total_retrans
_LAST_SENT, _LAST_RECEIVED = 8 + 9, 8 + 11  # milliseconds since data was sent, and received


class Place(NamedTuple):
    """One end of a connection."""

    host: str
    port: int


class Connections:
    """The connections to `port` of this process: at most so many, none that is silent for `idle` seconds."""

    def __init__(self, port: int, most: int, idle: float) -> None:
        self._port = port
        self._most = most
        self._idle = idle
        self._known: dict[Place, None] = {}  # in the order in which they came

    def keep_alive(self) -> None:
        """Let the kernel ask clients that are silent whether they live: connections inherit it from the socket that listens."""
        for own, peer in self._sockets():
            if peer is None:
                own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option, value in KEEPALIVE:
                    own.setsockopt(socket.IPPROTO_TCP, option, value)

    def sweep(self) -> tuple[set[Place], list[Place]]:
        """End connections that are idle, and the last ones where there are too many. Return who is connected, and who was one too many."""
        idle, there = set(), set()
        for own, peer in self._sockets():
            if peer is not None:
                there.add(peer)
                with suppress(OSError):
                    info = _INFO.unpack(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size))
                    if min(info[_LAST_SENT], info[_LAST_RECEIVED]) > self._idle * 1000:
                        idle.add(peer)
        self._known = {peer: None for peer in self._known if peer in there}
        self._known.update(dict.fromkeys(there))
        many = [peer for peer in self._known if peer not in idle][self._most :]
        self.end({*idle, *many})
        return there - idle - set(many), many

    def end(self, peers: set[Place] | None = None) -> None:
        """Shut down connections; None: all of them."""
        for own, peer in self._sockets():
            if peer is not None and (peers is None or peer in peers):
                with suppress(OSError):
                    own.shutdown(socket.SHUT_RDWR)

    def _sockets(self) -> Iterator[tuple[socket.socket, Place | None]]:
        """Yield the sockets of the port, duplicated for that long, each with the client's end; None: the one that listens."""
        for name in os.listdir("/proc/self/fd"):
            try:
                if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    continue
                own = socket.socket(fileno=os.dup(int(name)))
            except OSError:
                continue
            with own:
                try:
                    if own.family not in (socket.AF_INET, socket.AF_INET6) or own.getsockname()[1] != self._port:
                        continue
                    peer = None if own.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) else place(*own.getpeername()[:2])
                except OSError:
                    continue
                yield own, peer


def place(host: str, port: int) -> Place:
    """Return an address in one form, whatever family the socket has."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return Place(str(mapped or address), port)


def place_of(peer: str) -> Place:
    """Return the client's end as gRPC names it: ipv4:10.0.0.1:40668, ipv6:%5B::1%5D:40668."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    try:
        return place(host.strip("[]"), int(port))
    except ValueError:
        return Place(peer, 0)
