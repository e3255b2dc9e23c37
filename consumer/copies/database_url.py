"""Where a database is: ``postgresql://USER@HOST:PORT/DATABASE``, ``mysql://USER@HOST:PORT/DATABASE``, ``sqlite:///FILE``, ``duckdb:///FILE``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from shmstore.errors import did_you_mean

KINDS: Final = ("postgresql", "mysql", "mariadb", "sqlite")
TLS: Final = ("disabled", "preferred", "required", "verify-ca", "verify-identity")
OPTIONS: Final = ("tls", "tls_ca", "tls_cert", "tls_key")
_SECRET = re.compile(r"(?i)((?:password|passwd|pwd|secret|token|passphrase)[^=&;?\s]*=)[^&;\s]*")
_USER_INFO = re.compile(r"//[^/\s]*@")
_FILE_FORMS = "{kind}:///FILE is a file in the current folder, {kind}:////PATH is a path that begins with a slash"


def without_secrets(text: str) -> str:
    """Return text with a URL in it, without the URL's user, password and parameters that look secret."""
    return _USER_INFO.sub("//", _SECRET.sub(r"\1***", text))


def file_of(kind: str, place: str) -> str:
    """Return the file of a database that ``KIND:PLACE`` names, as SQLAlchemy writes it: the path is behind three slashes, so that one that begins with a
    slash has four. Without two slashes at the beginning the place is the path itself. Raises ValueError."""
    path = place.removeprefix("///")
    if path.startswith("//") or not path.strip("/"):
        raise ValueError(f"{kind}:{place} names no file: {_FILE_FORMS.format(kind=kind)}")
    return path


def no_folder(kind: str, path: str) -> str:
    """Return what is wrong where the folder of a database's file does not exist."""
    return f"the folder of {path} does not exist: make it, or name another file; {_FILE_FORMS.format(kind=kind)}"


class ServerUrl(NamedTuple):
    """A MySQL or MariaDB server, and a database of it. `options` are those of `OPTIONS`."""

    host: str
    port: int
    user: str
    password: str
    database: str
    options: Mapping[str, str]

    @property
    def tls(self) -> str:
        """One of `TLS`."""
        return self.options.get("tls", "preferred")


def server_url(text: str) -> ServerUrl:
    """Return what ``mysql://USER:PASSWORD@HOST:PORT/DATABASE?OPTION=VALUE`` says; names may be percent-encoded. Raises ValueError, without the text."""
    split = urlsplit(text)
    try:
        port = split.port or 0
    except ValueError:
        raise ValueError("the URL of the database has no port number behind its host: give mysql://USER@HOST:PORT") from None
    if not split.hostname:
        raise ValueError("the URL of the database names no host: give mysql://USER@HOST:PORT")
    options = dict(parse_qsl(split.query, keep_blank_values=True))
    for name, value in options.items():
        if name not in OPTIONS:
            raise ValueError(
                f"the URL of the database has no option {name!r}; choose from {', '.join(OPTIONS)}{did_you_mean(name, OPTIONS)}"
            )
        if name == "tls" and value not in TLS:
            raise ValueError(f"tls={value} is unknown; choose from {', '.join(TLS)}{did_you_mean(value, TLS)}")
    return ServerUrl(
        split.hostname,
        port,
        unquote(split.username or ""),
        unquote(split.password or ""),
        unquote(split.path.strip("/")),
        options,
    )
