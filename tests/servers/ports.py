"""A port that no process has, for a program that takes its port's number and cannot choose one itself."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_chosen = random.SystemRandom()


def free_port() -> int:
    """A free port of 127.0.0.1 of those that Linux gives to no process automatically: what it chose for a socket bound to port 0 it may give to
    the next outgoing connection, between our look and the program's `bind`."""
    first_outgoing = int(_OUTGOING.read_text().split()[0])
    for _ in range(100):
        port = _chosen.randrange(first_outgoing // 2, first_outgoing)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise OSError(f"no free port between {first_outgoing // 2} and {first_outgoing}")
