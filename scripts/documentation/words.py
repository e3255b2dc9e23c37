"""Words that this project does not use, in pages, messages, docstrings and comments: ``python -m scripts.documentation.words``.

They are right English elsewhere; here they were translations that a reader had to read twice. What names the behavior of a program, or is
quoted, may be an exception.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BETTER = {
    r"mend(s|ed|ing)?": "repair",
    r"anew": "again",
    r"whoever": "name the subject",
    r"so it is with": "the same holds for",
    r"what is there( already)?": "name it",
    r"is said": "is reported",
    r"to the eye": "visually",
    r"by itself": "automatically, or alone",
    r"(no|some|any|every)body": "no reader, another process: name the subject",
    r"told": "the word is tell, ask, say: use show, report, print",
    r"beside": "next to, compared with, besides",
    r"gives back": "returns",
    r"lies in": "is in",
    r"for ever": "forever",
    r"at hand": "available",
    r"of (now|ours|theirs)": "present, our, their",
    r"reads on (behind|there|in)": "continues",
    r"which (nobody|somebody) was promised|were too many|does no longer": "say what it is",
    r"(for|to|of|with|by) who (waits|reads|asks|comes|holds|looks|starts|finds|opens|writes|takes|knows)": "name the subject",
    r"(for|to|of|with|by) who (changes|removes|sits|uses|pauses|tries|restores)": "name the subject",
    r"goes on|go on|going on|went on": "continues",
    r"stands for": "is, means",
    r"takes up again": "resumes",
    r"wears? other clothes": "has another type",
    r"goes round": "keeps running",
    r"for good": "permanently",
    r"(colour|behaviour|neighbour|favour|honour|recognis|organis|realis|initialis|serialis|synchronis)\w*|(cancell|travell)(ed|ing)": "American spelling",
}
BANNED = re.compile(r"\b(?:" + "|".join(f"(?P<w{number}>{word})" for number, word in enumerate(BETTER)) + r")\b", re.IGNORECASE)
# Text that is another program's, or a name: of a user of the system, of an element of the page, of a case of a bench and its table.
EXCEPTIONS = re.compile(
    r"CancelledError|\.cancelled\(|cancelled by the server|\"cancelled\"|the neighbour|\{.*colour.*\}|_colour|\"nobody\"|"
    r"``beside writes``|shmstore beside writes|bench\.beside|(EXISTS|INTO|TABLE) beside|table `beside`"
)
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md", "docs/**/*.md")
CODE = ("examples", "shmstore", "producer", "consumer", "scripts", "pyspark_shmstore", "deploy", "tests")
WHOLE = (
    ".pyx",
    ".pxi",
    ".pyi",
    ".js",
    ".html",
    ".css",
    ".yml",
    ".yaml",
    ".service",
    ".toml",
    ".sh",
    "",
)  # read as they are, not by tokens


def found(text: str, first_line: int = 1) -> Iterator[tuple[int, str, str]]:
    """Yield (line, word, better) for each banned word of a text. Words at the end of a line continue on the next."""
    flat = EXCEPTIONS.sub(lambda match: "x" * len(match[0]), text)
    for match in BANNED.finditer(re.sub(r"\n[ \t#]*", lambda gap: " " * len(gap[0]), flat)):
        number = next(int(name[1:]) for name, value in match.groupdict().items() if value is not None)
        yield first_line + text.count("\n", 0, match.start()), match[0], list(BETTER.values())[number]


def pages() -> Iterator[tuple[Path, int, str, str]]:
    """What the pages have, but for their generated parts and code, which are checked where they come from."""
    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            text = path.read_text(encoding="utf-8")
            hidden = re.sub(r"^<!-- generated.*?^<!-- end -->$", _blank, text, flags=re.MULTILINE | re.DOTALL)
            for line, word, better in found(hidden):
                yield path, line, word, better


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def code() -> Iterator[tuple[Path, int, str, str]]:
    """What strings and comments of the code have, of tests docstrings and comments; of files that are not Python, all of their text."""
    kinds = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1)}
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*")):
            linked = path.relative_to(ROOT).parts[:2] in (("shmstore", "producer"), ("shmstore", "consumer"))
            if linked or path == Path(__file__) or not path.is_file():
                continue  # a link to the folder of that name, and the list itself
            if path.suffix == ".py":
                for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
                    if token.type in kinds and (folder != "tests" or token.string.startswith(('"""', "#"))):
                        yield from ((path, *each) for each in found(token.string, token.start[0]))
            elif path.suffix in WHOLE:
                yield from ((path, *each) for each in found(path.read_text(encoding="utf-8", errors="replace")))


def main() -> int:
    """Print each place with what is better; return 1 where there is one."""
    places = [*pages(), *(() if "--pages" in sys.argv else code())]
    for path, line, word, better in places:
        print(f"{path.relative_to(ROOT)}:{line}: {word!r}: {better}")
    return 1 if places else 0


if __name__ == "__main__":
    sys.exit(main())
