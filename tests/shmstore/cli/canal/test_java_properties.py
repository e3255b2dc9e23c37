"""Java's ``.properties`` files: read as Java reads them."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from shmstore.cli.canal.java_properties import MOST_BYTES, parse_properties, text_of

_PIECES = [*"ab=: \t\f\\#!\n\r", "\r\n", "\\u0041", "\\n", "\\\n", "\\\\", "é", "\\\r\n  ", "${x}"]
_JAVA = """
import java.io.*; import java.util.*;
public class Read {
    public static void main(String[] files) throws Exception {
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        for (String file : files) {
            Properties found = new Properties();
            found.load(new InputStreamReader(new FileInputStream(file), "UTF-8"));
            for (String key : new TreeSet<>(found.stringPropertyNames())) {
                out.print(key + "\\0" + found.getProperty(key) + "\\0");
            }
            out.print("\\1");
        }
        out.flush();
    }
}
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a=1\nb:2\nc 3\n d\t=\t4 ", {"a": "1", "b": "2", "c": "3", "d": "4 "}),
        ("# a=1\n ! b=2\n\n\f\nc", {"c": ""}),
        ("a = one \\\n    two\\\n\n# b\n", {"a": "one two"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("#no\\\na=1", {"a": "1"}),
        ("a\\ b\\=\\:=c\\=\\q", {"a b=:": "c=q"}),
        (r"r=.*\\..*,c4c\\..*", {"r": r".*\..*,c4c\..*"}),
        (r"u=\u00e9\uD83D\uDE00", {"u": "é😀"}),
        ("a=1\ra=2\r\nb==", {"a": "2", "b": "="}),
        ("=x", {"": "x"}),
        ("a=\\", {"a": ""}),
        ("a=1\\", {"a": "1"}),
    ],
)
def test_syntax(text: str, found: dict[str, str]) -> None:
    """Separators, comments, continued lines, escapes."""
    assert parse_properties(text) == found


def test_encodings() -> None:
    """UTF-8, with a mark or without one, and what Java takes: ISO-8859-1."""
    assert text_of("ü".encode()) == text_of("ü".encode("utf-8-sig")) == text_of("ü".encode("latin-1")) == "ü"


@pytest.mark.parametrize("text", ["a=1\nb=\\u12", "a=1\nb=\\uzzzz", "a=1\nb=\\uD800"])
def test_what_is_no_escape(text: str) -> None:
    """It says in which line it is."""
    with pytest.raises(ValueError, match=r"^line 2: "):
        parse_properties(text)


def test_what_is_too_large() -> None:
    """It is refused before it is read."""
    with pytest.raises(ValueError, match="at most"):
        text_of(b"a" * (MOST_BYTES + 1))


@pytest.mark.long
def test_as_java(tmp_path: Path, seed: int) -> None:
    """Random texts are read as `java.util.Properties` reads them."""
    if shutil.which("java") is None:
        pytest.skip("needs java")
    chance = random.Random(seed)
    texts = ["".join(chance.choices(_PIECES, k=chance.randrange(30))) for _ in range(3000)]
    (tmp_path / "Read.java").write_text(_JAVA)
    for i, text in enumerate(texts):
        (tmp_path / f"{i}").write_bytes(text.encode())
    done = subprocess.run(
        ["java", "Read.java", *map(str, range(len(texts)))], cwd=tmp_path, capture_output=True, check=True, timeout=120
    )
    for text, answer in zip(texts, done.stdout.decode().split("\1")[:-1], strict=True):
        parts = answer.split("\0")[:-1]
        java = dict(zip(parts[::2], parts[1::2], strict=True))
        ours = parse_properties(text)
        for each in (java, ours):  # of a backslash alone at the end some Javas make a property without a name
            each.pop("", None)
        assert ours == java, repr(text)
