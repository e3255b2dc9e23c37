"""A key with a passphrase is refused wherever a certificate is given: none is asked for on the terminal, where a service would wait forever."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.certificates import self_signed

ROOT = Path(__file__).resolve().parent.parent
PLACES = {
    "serve": ["serve", "--listen", "127.0.0.1:0", "--tls-cert", "CHAIN", "--tls-key", "KEY"],
    "flight": ["serve", "--flight", "127.0.0.1:0", "--tls-cert", "CHAIN", "--tls-key", "KEY"],
    "metrics": ["metrics", "--listen", "127.0.0.1:0", "--tls-cert", "CHAIN", "--tls-key", "KEY"],
    "web": ["web", "--listen", "127.0.0.1:0", "--tls-cert", "CHAIN", "--tls-key", "KEY"],
    "zookeeper": [
        *("serve", "orders", "--listen", "127.0.0.1:0", "--zookeeper", "127.0.0.1:1"),
        *("--zookeeper-ca", "CHAIN", "--zookeeper-cert", "CHAIN", "--zookeeper-key", "KEY"),
    ],
    "server": ["doctor", "--host", "127.0.0.1", "--user", "u", "--tls", "required", "--tls-cert", "CHAIN", "--tls-key", "KEY"],
}


@pytest.mark.parametrize("place", PLACES)
def test_a_locked_key_is_refused(place: str, tmp_path: Path) -> None:
    """In one line that says so, with exit code 2."""
    chain, key = self_signed(tmp_path, "locked", passphrase="secret")
    words = [{"CHAIN": chain, "KEY": key}.get(word, word) for word in PLACES[place]]
    keyboard, terminal = pty.openpty()
    try:
        done = subprocess.run(
            ["setsid", "--ctty", sys.executable, "-m", "shmstore", *words],  # with a terminal of its own: OpenSSL opens /dev/tty
            stdin=terminal,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, "SHMSTORE_STATE": str(tmp_path), "SHMSTORE_PASSWORD": "p"},
            timeout=60,
            check=False,
        )
    finally:
        os.close(keyboard)
        os.close(terminal)
    assert "is encrypted" in done.stderr
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
