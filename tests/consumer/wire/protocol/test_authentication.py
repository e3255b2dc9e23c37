"""shmstore.consumer.wire.protocol.authentication: the scramble of MySQL's native password, as Canal checks it."""

import pytest

from shmstore.consumer.wire.protocol.authentication import Credentials, hash_password, token

SEED = bytes(range(8))
HASH = "e3619321c1a937c46a0d8bd1dac39f93b27d4458"


def test_known_values() -> None:
    """Canal's own example: password canal, seed 00..07."""
    assert hash_password("canal") == HASH
    assert token("canal", SEED) == "76cd0e6365f62575090e092b7b43d2c7c5be2ceb"


@pytest.mark.parametrize("stored", [HASH, HASH.upper(), "*" + HASH.upper()])
def test_admit(stored: str) -> None:
    """The token and the plain password are taken; another seed's token, a wrong or empty password and a wrong user are not."""
    account = Credentials.make("canal", "", stored)
    assert account.admit("canal", token("canal", SEED).encode(), SEED)
    assert account.admit("canal", token("canal", SEED).upper().encode(), SEED)
    assert account.admit("canal", b"canal", SEED)
    assert not account.admit("canal", token("canal", b"\1" * 8).encode(), SEED)
    assert not account.admit("canal", token("canal2", SEED).encode(), SEED)
    assert not account.admit("canal", b"", SEED)
    assert not account.admit("canal", HASH.encode(), SEED)
    assert not account.admit("canal", b"\xff" * 40, SEED)
    assert not account.admit("root", b"canal", SEED)
    assert not account.admit("", b"canal", SEED)


def test_open_servers() -> None:
    """No user lets any name in, no password any proof: Java, Go and .NET send a token even of the empty password."""
    assert Credentials.make("", "", "").admit("anybody", token("", SEED).encode(), SEED)
    assert Credentials.make("canal", "", "").admit("canal", b"whatever", SEED)
    assert not Credentials.make("canal", "", "").admit("root", b"", SEED)
    assert Credentials.make("", "canal", "").admit("anybody", b"canal", SEED)


def test_forty_hex_digits_as_password() -> None:
    """A password that looks like a token still works as a password."""
    password = "0123456789abcdef0123456789abcdef01234567"
    assert Credentials.make("", password, "").admit("", password.encode(), SEED)


def test_refused_settings() -> None:
    """A hash that is none, and a password together with a hash, are refused with what is wanted."""
    with pytest.raises(ValueError, match="40 hex digits"):
        Credentials.make("u", "", "canal")
    with pytest.raises(ValueError, match="not both"):
        Credentials.make("u", "canal", HASH)
