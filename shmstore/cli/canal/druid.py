"""Passwords that druid's ``ConfigTools`` encrypted: RSA with the private key, so that the public key, which Canal is given, reads them.

That hides a password from a glance, not from a user who has the file. PKCS #1 v1.5, block type 1; the key is X.509's SubjectPublicKeyInfo.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from typing import Final

#: The key that ``ConfigTools`` takes where none is given.
DEFAULT_KEY: Final = "MFwwDQYJKoZIhvcNAQEBBQADSwAwSAJBAKHGwq7q2RmwuRgKxBypQHw0mYu4BQZ3eMsTrdK8E6igRcxsobUC7uT0SoxIjl1WveWniCASejoQtn/BY6hVKWsCAwEAAQ=="
_SEQUENCE, _INTEGER, _BIT_STRING = 0x30, 0x02, 0x03
_MOST_BITS: Final = 16384


def decrypted(password: str, public_key: str = "") -> str:
    """Return the password that was encrypted. Raises ValueError, without the password in it."""
    modulus, exponent = _key(_decoded(public_key or DEFAULT_KEY, "the public key"))
    cipher = _decoded(password, "the password")
    size = (modulus.bit_length() + 7) // 8
    if len(cipher) != size:
        raise ValueError(f"the encrypted password has {len(cipher)} bytes, and the public key is for {size}")
    block = pow(int.from_bytes(cipher, "big"), exponent, modulus).to_bytes(size, "big")
    filled, end, plain = block[2:].partition(b"\0")
    if block[:2] != b"\0\1" or not end or len(filled) < 8 or filled.strip(b"\xff"):
        raise ValueError("the password was not encrypted with the other half of this public key")
    try:
        return plain.decode()
    except UnicodeDecodeError as error:
        raise ValueError("the decrypted password is not text in UTF-8") from error


def _decoded(text: str, what: str) -> bytes:
    try:
        return b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{what} is not in Base64") from error


def _key(der: bytes) -> tuple[int, int]:
    """Return (modulus, exponent): SEQUENCE { SEQUENCE { algorithm }, BIT STRING { SEQUENCE { modulus, exponent } } }."""
    outer, _ = _taken(der, _SEQUENCE)
    _, rest = _taken(outer, _SEQUENCE)
    bits, _ = _taken(rest, _BIT_STRING)
    numbers, _ = _taken(bits[1:], _SEQUENCE)
    modulus, rest = _taken(numbers, _INTEGER)
    exponent, _ = _taken(rest, _INTEGER)
    n, e = int.from_bytes(modulus, "big"), int.from_bytes(exponent, "big")
    if not 256 <= n.bit_length() <= _MOST_BITS or not 0 < e < 1 << 64:
        raise ValueError("the public key is not an RSA key")
    return n, e


def _taken(der: bytes, tag: int) -> tuple[bytes, bytes]:
    """Return (the content of the first element, which has this tag, what follows it)."""
    if len(der) < 2 or der[0] != tag:
        raise ValueError("the public key is not an RSA key in X.509's form")
    length, at = der[1], 2
    if length & 0x80:
        count = length & 0x7F
        length, at = int.from_bytes(der[2 : 2 + count], "big"), 2 + count
    if not 0 < length <= len(der) - at:
        raise ValueError("the public key is cut off")
    return der[at : at + length], der[at + length :]
