"""Self-made certificates for tests of TLS; made by openssl."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path


def self_signed(
    folder: Path, name: str = "localhost", *, also: Sequence[str] = ("DNS:localhost", "IP:127.0.0.1"), passphrase: str = ""
) -> tuple[str, str]:
    """Make a certificate of `name`, valid for the names `also`, and its key, locked by `passphrase` where there is one; return both files."""
    certificate, key = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-days", "2", "-subj", f"/CN={name}"]
    command += ["-addext", f"subjectAltName={','.join(also)}", "-keyout", key, "-out", certificate]
    command += ["-passout", f"pass:{passphrase}"] if passphrase else ["-nodes"]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key
