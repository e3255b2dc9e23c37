"""Certificates and their keys, PEM files, as servers and clients show them."""

from __future__ import annotations

import os
import ssl


def load_certificate(context: ssl.SSLContext, chain: str, key: str) -> None:
    """Let `context` show the certificate chain and its key, paths of PEM files. A passphrase is never asked for on the terminal.

    Raises `OSError` where a file cannot be read, and `ValueError` where it is not what it should be, or the key is encrypted.
    """
    for file in (chain, key):
        os.close(os.open(file, os.O_RDONLY))  # ssl does not say which file it cannot read

    def passphrase() -> str:  # without it, OpenSSL asks on the terminal
        raise ValueError(f"the TLS key {key} is encrypted: give one without a passphrase, in a file that only this user may read")

    try:
        context.load_cert_chain(chain, key, passphrase)
    except ssl.SSLError as error:
        raise ValueError(
            f"{chain} and {key} are not a certificate chain and its key in PEM ({error.reason or error.strerror})"
        ) from error
