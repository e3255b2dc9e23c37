"""Passwords that druid's ConfigTools encrypted."""

from __future__ import annotations

import random
from base64 import b64encode

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from shmstore.cli.canal.druid import decrypted

# Made by druid 1.2.17: ConfigTools.genKeyPair(512), encrypt(privateKey, ...); and encrypt(...) with its own key.
KEY = "MFwwDQYJKoZIhvcNAQEBBQADSwAwSAJBAKQ9NWGUXgeSrgBwHRwc0dGt6j3bTSMp79xQ0j9fZq3o5ImWAAczYxkYDfnG6fG7waVbn5qxgwNuqrvCikYU4BECAwEAAQ=="
ENCRYPTED = "Y3Uy1Cx5+J0mvsfg9MIEDokmRTMBXN9csrpRiqFH1oRoLQibLSjNAjL/P1DJs5XvDLp8zRf9JSO9j33mNwq7Og=="
BY_DEFAULT = "NWF3DPxKGGs+gj/XLdi6B269CTyLemfqagQg5D0nVMgPets7Zol6toOrbGLhMByRyQzkYUHWb9moSQiWrFZppw=="


def test_what_druid_encrypted() -> None:
    """With a key of its own, and with the one that druid has."""
    assert decrypted(ENCRYPTED, KEY) == "pässword=1"
    assert decrypted(BY_DEFAULT) == "canal"


@pytest.mark.parametrize("bits", [1024, 2048])
def test_larger_keys(bits: int) -> None:
    """Keys are not bound to druid's own size."""
    private = generate_private_key(65537, bits)
    numbers = private.private_numbers()
    size = bits // 8
    plain = b"secret"
    block = b"\0\1" + b"\xff" * (size - 3 - len(plain)) + b"\0" + plain
    cipher = pow(int.from_bytes(block, "big"), numbers.d, numbers.public_numbers.n).to_bytes(size, "big")
    public = private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert decrypted(b64encode(cipher).decode(), b64encode(public).decode()) == "secret"


@pytest.mark.parametrize(
    ("password", "key", "why"),
    [
        ("canal", KEY, "Base64|bytes"),
        (ENCRYPTED, "", "not encrypted"),
        (BY_DEFAULT, KEY, "not encrypted"),
        (ENCRYPTED, "AAAA", "not an RSA key"),
        (ENCRYPTED, KEY[:40], "cut off|RSA|Base64"),
        ("ü", KEY, "Base64"),
    ],
)
def test_what_cannot_be_decrypted(password: str, key: str, why: str) -> None:
    """It says why, and never shows the password."""
    with pytest.raises(ValueError, match=why) as raised:
        decrypted(password, key)
    assert password not in str(raised.value)


def test_random_bytes() -> None:
    """Whatever stands in the place of a key or a password is an error, and no other exception."""
    chance = random.Random(7)
    for _ in range(500):
        key, cipher = (b64encode(chance.randbytes(chance.randrange(100))).decode() for _ in range(2))
        with pytest.raises(ValueError):  # noqa: PT011  any of them
            decrypted(cipher, key or "AAAA")
