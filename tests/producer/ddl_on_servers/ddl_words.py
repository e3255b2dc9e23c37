"""Random names, strings and types, as the grammars of MySQL and MariaDB have them, in all their forms."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from shmstore.sql.catalog import Catalog

__all__ = ["BARE", "CLIENTS", "DATABASES", "ENGINE_OPTIONS", "MODES", "QUOTED", "SETS", "Mode", "Words"]

DATABASES = {"d1": "utf8mb4", "d2": "latin1", "d-3": "gbk"}
BARE = [
    "a",
    "b",
    "c",
    "Dd",
    "e1",
    "period",
    "action",
    "comment",
    "data",
    "end",
    "first",
    "hash",
    "type",
    "value",
    "charset",
    "storage",
    "system",
    "vector",
    "date",
    "versioning",
    "no",
    "status",
]
QUOTED = [
    "it`s",
    'a"b',
    "x\\y",
    "c, d",
    "select",
    "key",
    "primary",
    "unsigned",
    "after",
    "check",
    "(",
    "'",
    "byte",
    "1e5",
    "12",
    "PRIMARY",
]
# Character sets of clients: Python's name, and a name of a column in letters of it.
CLIENTS = {
    "utf8mb4": ("utf-8", "größe"),
    "latin1": ("cp1252", "größe"),
    "cp1251": ("cp1251", "имя"),
    "gbk": ("gbk", "名字"),
    "koi8r": ("koi8_r", "имя"),
    "latin2": ("iso8859_2", "łódź"),
    "cp850": ("cp850", "größe"),
    "cp866": ("cp866", "имя"),
    "cp1250": ("cp1250", "łódź"),
    "sjis": ("shift_jis", "表ソ"),
    "cp932": ("cp932", "予表"),
    "big5": ("big5", "功許"),
    "euckr": ("euc_kr", "이름"),
    "ujis": ("euc_jp", "名前"),
    "greek": ("iso8859_7", "όνομα"),
    "hebrew": ("iso8859_8", "שם"),
    "latin5": ("iso8859_9", "ğış"),
    "utf8mb3": ("utf-8", "größe"),
    "ascii": ("ascii", "plain"),
    "tis620": ("tis_620", "ชื่อ"),
    "cp852": ("cp852", "łódź"),
    "latin7": ("iso8859_13", "ąžuolas"),
    "koi8u": ("koi8_u", "їжак"),
    "gb2312": ("gb2312", "名字"),
    "cp1256": ("cp1256", "اسم"),
    "cp1257": ("cp1257", "ąžuolas"),
    "eucjpms": ("euc_jp", "名前"),
    "macroman": ("mac_roman", "größe"),
    "macce": ("mac_latin2", "łódź"),
    "hp8": ("hp_roman8", "größe"),
    "binary": ("utf-8", "größe"),
}
SETS = ["cp850", "cp866", "sjis", "big5", "euckr", "ujis", "cp932", "utf16", "utf16le", "latin2", "greek", "swe7", "dec8"]
SETS += ["latin1", "utf8mb4", "gbk", "ucs2", "koi8r", "utf32", "binary", "utf8mb3", "ascii", "utf8"]
SETS += ["hebrew", "latin5", "latin7", "koi8u", "cp1250", "cp1251", "cp1256", "cp1257", "tis620", "gb2312", "eucjpms", "hp8"]
SETS += ["macce", "macroman", "cp852", "geostd8", "armscii8", "keybcs2"]
# Collations other than a set's binary one.
COLLATIONS = {
    "utf8mb4": ["utf8mb4_unicode_ci", "utf8mb4_general_ci", "utf8mb4_unicode_520_ci"],
    "utf8mb3": ["utf8mb3_general_ci", "utf8mb3_unicode_ci"],
    "utf8": ["utf8_general_ci", "utf8_bin"],
    "latin1": ["latin1_swedish_ci", "latin1_german2_ci"],
    "latin2": ["latin2_czech_cs"],
    "latin7": ["latin7_estonian_cs"],
    "cp1250": ["cp1250_czech_cs"],
    "gbk": ["gbk_chinese_ci"],
    "utf16le": ["utf16le_general_ci"],
    "ucs2": ["ucs2_unicode_ci"],
    "swe7": ["swe7_swedish_ci"],
}
# MariaDB's options of engines have any name.
ENGINE_OPTIONS = ["foo='first, c int'", "`after` = 5", "`x y`=DEFAULT", "`primary` = `key`", "nope=unsigned"]
OF_MYSQL = {"utf8mb4": ["utf8mb4_0900_ai_ci", "utf8mb4_ja_0900_as_cs"]}
OF_MARIADB = {"utf8mb4": ["utf8mb4_nopad_bin"], "latin1": ["latin1_nopad_bin"], "utf8": ["utf8_general_nopad_ci"]}
SHORT_SETS = [
    " BINARY",
    " ASCII",
    " UNICODE",
    " BYTE",
    " ASCII BINARY",
    " BINARY ASCII",
    " UNICODE BINARY",
    " BINARY CHARSET latin2",
]
GEOMETRIES = ["GEOMETRY", "POINT", "LINESTRING", "POLYGON", "MULTIPOINT", "MULTILINESTRING", "MULTIPOLYGON", "GEOMETRYCOLLECTION"]
TEXTS = [
    "x",
    "it's",
    "back\\",
    '"',
    "x, c date",
    "(",
    ")",
    "AFTER a",
    "/* ",
    "`",
    "-- x",
    "# y",
    "unsigned",
    "CHARSET=gbk",
    "*/",
    ";",
]
MODES = [
    "ANSI_QUOTES",
    "NO_BACKSLASH_ESCAPES",
    "REAL_AS_FLOAT",
    "IGNORE_SPACE",
    "NO_UNSIGNED_SUBTRACTION",
    "STRICT_ALL_TABLES",
    "NO_ZERO_DATE",
]
MODES += ["PAD_CHAR_TO_FULL_LENGTH", "PIPES_AS_CONCAT", "ANSI"]


@dataclass
class Mode:
    """How the session is set."""

    names: frozenset[str] = frozenset()
    client: str = "utf8mb4"
    explicit: bool = True

    @property
    def ansi(self) -> bool:
        return bool(self.names & {"ANSI_QUOTES", "ANSI", "ORACLE", "MSSQL", "MAXDB", "POSTGRESQL", "DB2"})

    @property
    def plain_backslash(self) -> bool:
        return "NO_BACKSLASH_ESCAPES" in self.names


@dataclass
class Words:
    rng: random.Random
    mariadb: bool
    newest: bool  # MariaDB from 11.7 on
    catalog: Catalog
    mode: Mode = field(default_factory=Mode)
    database: str = "d1"
    columns: list[str] = field(default_factory=list)  # of the table that the next statement is about
    keyed: bool = False  # it has a primary key
    versioned: bool = False  # by the system
    any_case: bool = False  # the server takes names of tables in any case of letters

    # ------------------------------------------------------------ small things

    def maybe(self, chance: float, text: str | Callable[[], str]) -> str:
        if self.rng.random() >= chance:
            return ""
        return text if isinstance(text, str) else text()

    def one(self, *texts: str | Callable[[], str]) -> str:
        chosen = self.rng.choice(texts)
        return chosen if isinstance(chosen, str) else chosen()

    def space(self) -> str:
        return self.one(
            *([" "] * 6),
            *(
                "\n",
                "\t",
                "  ",
                " /* , ( */ ",
                "/**/",
                " -- x ' `\n",
                " # y (\n",
                " /*! */ ",
                " /*!40000 */",
                " /*M! */ ",
                " /*!50100 */",
            ),
        )

    def name(self, name: str) -> str:
        if name in BARE and self.rng.random() < 0.6 and (self.mariadb or name != "system"):
            return self.one(name, name.upper(), name.capitalize())
        quote = self.rng.choice('`"') if self.mode.ansi else "`"
        return quote + name.replace(quote, quote * 2) + quote

    def old(self) -> str:
        return self.name(self.rng.choice(self.columns or ["a"]))

    def new(self) -> str:
        return self.name(self.rng.choice([*BARE, *QUOTED, CLIENTS[self.mode.client][1]]))

    def string(self, text: str) -> str:
        quote = "'" if self.mode.ansi else self.rng.choice("'\"")
        if not self.mode.plain_backslash:
            text = text.replace("\\", "\\\\")
            if self.rng.random() < 0.5:
                return quote + text.replace(quote, "\\" + quote) + quote
        return quote + text.replace(quote, quote * 2) + quote

    def text(self) -> str:
        return self.string(self.rng.choice(TEXTS))

    def table(self, name: str) -> str:
        database, table = name.split(".")
        if self.any_case:
            database, table = [self.one(part, part.upper()) for part in (database, table)]
        quote = self.rng.choice('`"') if self.mode.ansi else "`"
        quoted = self.one(table, quote + table + quote) if table[1:].isdigit() else quote + table + quote
        forms = [f"`{database}`.{quoted}", f"`{database}` . {quoted}", f"`{database}`.{quoted}"]
        if database.lower() == self.database:
            forms += [quoted, quoted, quoted] + ([f".{quoted}", f". {quoted}"] if self.mariadb else [])
        return self.rng.choice(forms)

    # ------------------------------------------------------------ types

    def member(self) -> str:
        text = self.rng.choice(["m1", "m2", "m3", "m4 ", "a'b", "c\\d", 'e"f', "(", "ü", "ж", ",", ")"])
        codec = CLIENTS[self.mode.client][0]
        if text.encode(codec, "replace").decode(codec) != text:
            text = CLIENTS[self.mode.client][1]
        if self.rng.random() < 0.15 and text.isascii():
            raw = text.encode()
            return self.one(
                f"x'{raw.hex()}'",
                f"0x{raw.hex()}",
                f"X'{raw.hex().upper()}'",
                f"b'{int.from_bytes(raw, 'big'):0{8 * len(raw)}b}'",
            )
        return self.string(text)

    def number_type(self) -> str:
        rng = self.rng
        whole = [
            "TINYINT",
            "SMALLINT",
            "MEDIUMINT",
            "INT",
            "BIGINT",
            "INTEGER",
            "INT1",
            "INT2",
            "INT3",
            "INT4",
            "INT8",
            "MIDDLEINT",
            "tinyint",
            "bigint",
        ]
        broken = ["DECIMAL", "DEC", "NUMERIC", "FIXED", "FLOAT", "DOUBLE", "FLOAT4", "FLOAT8"]
        text = self.one(
            lambda: rng.choice(whole) + self.maybe(0.3, lambda: f"({rng.randint(1, 20)})"),
            lambda: rng.choice(broken) + self.maybe(0.5, lambda: f"({rng.randint(9, 20)},{rng.randint(0, 5)})"),
            lambda: f"FLOAT({rng.randint(0, 53)})",
            lambda: self.one("REAL", "DOUBLE PRECISION") + self.maybe(0.3, "(10, 2)"),
            lambda: rng.choice(["DECIMAL", "dec", "numeric", "FIXED"]) + f"({rng.randint(1, 60)})",
        )
        if self.mariadb:
            return text + self.one(
                "", "", "", " UNSIGNED", " UNSIGNED", " SIGNED", " ZEROFILL", " UNSIGNED ZEROFILL", " ZEROFILL UNSIGNED"
            )
        return text + self.maybe(0.4, " UNSIGNED") + self.maybe(0.15, " ZEROFILL") + self.maybe(0.1, " SIGNED")

    def text_type(self) -> str:
        rng = self.rng
        size = f"({rng.choice([1, 3, 9, 40, 255])})"
        long = f"({rng.choice([0, 10, 255, 256, 20000, 65535])})"
        texts = [
            f"CHAR{size}",
            "CHAR",
            f"CHARACTER{size}",
            f"VARCHAR{size}",
            f"CHARACTER VARYING{size}",
            f"CHAR VARYING {size}",
            f"VARCHARACTER{size}",
        ]
        texts += [
            "TEXT",
            "TINYTEXT",
            "MEDIUMTEXT",
            "LONGTEXT",
            "LONG",
            "LONG VARCHAR",
            "LONG CHAR VARYING",
            "LONG VARCHARACTER",
            f"TEXT{long}",
        ]
        texts += [f"VARCHAR({rng.choice([300, 20000, 30000, 70000])})"]
        text = rng.choice(texts)
        charset = rng.choice(SETS)
        return text + self.maybe(0.5, lambda: self.charset(charset)) if rng.random() < 0.8 else text + rng.choice(SHORT_SETS)

    def collation(self, charset: str) -> str:
        """A collation of the set, most often its binary one."""
        if charset == "binary":
            return charset
        others = COLLATIONS.get(charset, []) + (OF_MARIADB if self.mariadb else OF_MYSQL).get(charset, [])
        return (
            self.rng.choice(others)
            if others and self.rng.random() < 0.3
            else f"{'utf8mb3' if charset == 'utf8' else charset}_bin"
        )

    def charset(self, charset: str) -> str:
        collation = self.collation(charset)
        set_ = self.one(charset, charset.upper(), self.string(charset), f"`{charset}`") if charset != "binary" else "binary"
        word = self.one("CHARACTER SET", "CHARSET", "CHAR SET")
        forms = [
            f" {word} {set_}",
            f" COLLATE {self.one(collation, self.string(collation))}",
            f" {word} {set_} COLLATE {collation}",
        ]
        if charset != "binary":
            forms.append(f" {word} {set_} BINARY")
        if self.mariadb:
            forms += [" COLLATE DEFAULT", f" {word} {set_} COLLATE DEFAULT"]
            if self.newest and charset.startswith(("utf", "ucs")):
                forms += [f" {word} {set_} COLLATE uca1400_ai_ci", " COLLATE uca1400_ai_ci"]
        return self.rng.choice(forms)

    def default_charset(self) -> list[str]:
        """DEFAULT, unless MySQL 9.7 would crash: of a session whose database is gone."""
        return ["DEFAULT"] if self.mariadb or self.catalog.charset_of(self.database) is not None else []

    def choice_type(self) -> str:
        members = sorted({self.member() for _ in range(self.rng.randint(1, 4))})
        text = self.one("ENUM", "SET", "enum", "set ") + f"({self.one(',', ' , ').join(members)})"
        if self.rng.random() < 0.15:
            return text + self.rng.choice(SHORT_SETS)
        return text + self.maybe(0.5, lambda: self.charset(self.rng.choice(SETS)))

    def other_type(self) -> str:
        rng = self.rng
        digits = self.maybe(0.5, f"({rng.randint(0, 6)})")
        texts = [
            "DATE",
            f"TIME{digits}",
            f"DATETIME{digits}",
            f"TIMESTAMP{digits}",
            "YEAR",
            "YEAR(4)",
            "YEAR(4) UNSIGNED ZEROFILL",
            "BIT",
            f"BIT({rng.randint(1, 64)})",
            "BOOL",
            "BOOLEAN",
        ]
        texts += [
            "BINARY",
            "BINARY(9)",
            "VARBINARY(9)",
            "VARBINARY(300)",
            "BLOB",
            "BLOB(10)",
            "BLOB(70000)",
            "TINYBLOB",
            "MEDIUMBLOB",
            "LONGBLOB",
        ]
        texts += [
            "LONG VARBINARY",
            "CHAR BYTE",
            "CHAR(3) BYTE",
            "JSON",
            *GEOMETRIES,
        ]
        texts += [
            "NATIONAL CHAR(3)",
            "NATIONAL VARCHAR(3)",
            "NATIONAL CHARACTER VARYING(4)",
            "NCHAR",
            "NCHAR(2)",
            "NCHAR VARCHAR(3)",
            "NVARCHAR(3)",
        ]
        texts += [
            "NCHAR VARYING(3)",
            "NATIONAL VARCHARACTER(3)",
            "NATIONAL CHAR VARYING(5) BINARY",
            "VARCHAR(9) BYTE",
            "TEXT BYTE",
        ]
        if self.mariadb:
            texts += [
                "UUID",
                "INET6",
                "INET4",
                "VARCHAR(20) COMPRESSED",
                "TEXT COMPRESSED=zlib",
                "BLOB COMPRESSED",
                "mariadb_schema.DATE",
            ]
            texts += [
                "mariadb_schema.TIMESTAMP",
                "POINT REF_SYSTEM_ID=4326",
                "oracle_schema.DATE",
                "`mariadb_schema`.BLOB",
                "oracle_schema . BLOB",
            ]
            if "ORACLE" in self.mode.names:
                texts += ["NUMBER", "NUMBER(5)", "NUMBER(9,2)", "VARCHAR2(9)", "CLOB", "RAW(9)"] * 3
            if self.newest:
                texts += ["VECTOR(3) NOT NULL"]
        else:
            texts += ["VECTOR(3)", "VECTOR", "GEOMCOLLECTION", "POINT SRID 4326", "GEOMETRY SRID 0"]
        return rng.choice(texts)

    def type(self) -> str:
        return self.one(self.number_type, self.text_type, self.text_type, self.choice_type, self.other_type)
