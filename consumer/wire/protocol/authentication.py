"""Who may connect: Canal's check of MySQL's native password scramble.

The server keeps hex(SHA1(SHA1(password))). A client that knows the seed of the handshake sends
SHA1(password) XOR SHA1(seed + SHA1(SHA1(password))) as 40 hex digits; older clients and the Python ones send the
password itself. Both are taken where they prove the password; nothing is given of which was wrong.
"""

from __future__ import annotations

import hmac
import re
from hashlib import sha1
from typing import NamedTuple

_HEX = re.compile(rb"[0-9A-Fa-f]{40}")


def hash_password(password: str) -> str:
    """Return what a server stores of `password`: hex(SHA1(SHA1(password))); empty for an empty password."""
    return sha1(sha1(password.encode()).digest()).hexdigest() if password else ""


def token(password: str, seed: bytes) -> str:
    """Return what a client sends to prove `password` to a server whose handshake had `seed`."""
    first = sha1(password.encode()).digest()
    mask = sha1(seed + sha1(first).digest()).digest()
    return bytes(a ^ b for a, b in zip(first, mask, strict=True)).hex()


class Credentials(NamedTuple):
    """The one account of a server. An empty user lets any name in, an empty hash any password."""

    user: str = ""
    password_hash: str = ""

    @classmethod
    def make(cls, user: str, password: str, password_hash: str) -> Credentials:
        """Check and normalise: one of `password` and `password_hash` (hex, MySQL's leading ``*`` allowed), or neither."""
        if password and password_hash:
            raise ValueError("give a password or its hash, not both")
        stored = password_hash.removeprefix("*").lower() or hash_password(password)
        if stored and not _HEX.fullmatch(stored.encode()):
            raise ValueError("the password hash is not the 40 hex digits of SHA1(SHA1(password))")
        return cls(user, stored)

    def admit(self, user: str, proof: bytes, seed: bytes) -> bool:
        """True where `user` and `proof` are right. Takes the same time whichever of them is wrong."""
        right_user = not self.user or hmac.compare_digest(user.encode(), self.user.encode())
        if not self.password_hash:
            return right_user
        stored = bytes.fromhex(self.password_hash)
        by_token = False
        if _HEX.fullmatch(proof):
            mask = sha1(seed + stored).digest()
            first = bytes(a ^ b for a, b in zip(bytes.fromhex(proof.decode()), mask, strict=True))
            by_token = hmac.compare_digest(sha1(first).digest(), stored)
        by_password = hmac.compare_digest(sha1(sha1(proof).digest()).digest(), stored)
        return right_user & (by_token | by_password)
