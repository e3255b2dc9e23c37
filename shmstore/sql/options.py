"""The options of a table or a database: of them the character set counts, and system versioning."""

from __future__ import annotations

from typing import NamedTuple

from shmstore.sql.columns import accept_charset
from shmstore.sql.tokens import Tokens

__all__ = ["Options", "read_options"]

# Options whose value follows with or without "=". Any other name needs the "=": MariaDB's storage engines have some of their own.
_WORDS = (
    "ENGINE TYPE MAX_ROWS MIN_ROWS AVG_ROW_LENGTH PASSWORD COMMENT COMPRESSION ENCRYPTION AUTO_INCREMENT PACK_KEYS STATS_AUTO_RECALC "
    "STATS_PERSISTENT STATS_SAMPLE_PAGES CHECKSUM TABLE_CHECKSUM PAGE_CHECKSUM DELAY_KEY_WRITE ROW_FORMAT INSERT_METHOD TABLESPACE "
    "CONNECTION KEY_BLOCK_SIZE TRANSACTIONAL SEQUENCE ENGINE_ATTRIBUTE SECONDARY_ENGINE SECONDARY_ENGINE_ATTRIBUTE AUTOEXTEND_SIZE STORAGE"
)
_NAMES = frozenset(_WORDS.split())


class Options(NamedTuple):
    """What a list of options says. `charset` None: nothing about it, empty: DEFAULT."""

    charset: str | None = None
    collation: str | None = None  # the character set of the collation; empty where the name has none
    versioned: bool = False
    engine: str = ""  # in capitals

    def charset_or(self, default: str, collated: str = "") -> str:
        """The character set: `default` for DEFAULT and where nothing is given, `collated` for a collation without one."""
        if self.collation:
            return self.collation
        if self.charset is None and self.collation is not None:
            return collated or default
        return self.charset or default


def read_options(tokens: Tokens) -> Options:
    """Read options up to what is none."""
    found = Options()
    while tokens.left:
        if tokens.peek() == "DEFAULT" and tokens.peek(1) in ("CHARACTER", "CHARSET", "CHAR", "COLLATE", "ENCRYPTION"):
            tokens.take()
        collates = tokens.peek() == "COLLATE"
        charset = accept_charset(tokens)
        if charset is not None:
            found = found._replace(collation=charset) if collates else found._replace(charset=charset)
        elif tokens.accept("WITH", "SYSTEM", "VERSIONING"):
            found = found._replace(versioned=True)
        elif tokens.accept("UNION"):
            tokens.accept("=")
            tokens.parenthesized()
        elif tokens.accept("DATA", "DIRECTORY") or tokens.accept("INDEX", "DIRECTORY") or tokens.accept("READ", "ONLY"):
            tokens.accept("=")
            tokens.take()
        elif not (tokens.accept("START", "TRANSACTION") or tokens.accept(",")):
            engine = tokens.peek() == "ENGINE"
            if tokens.peek(1) == "=":
                tokens.name()
            elif not tokens.accept_one(*_NAMES):
                return found
            tokens.accept("=")
            value = tokens.take().text.upper()
            found = found._replace(engine=value) if engine else found
    return found
