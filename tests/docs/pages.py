"""The pages: the README and docs/, with their code blocks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md")),
    *sorted((ROOT / "docs").glob("**/*.md")),
)
_BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """A code block; `line` is the first of its text."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(*pages: Path, language: str | None = None) -> list[Block]:
    found = []
    for page in pages or PAGES:
        text = page.read_text(encoding="utf-8")
        for match in _BLOCK.finditer(text):
            found.append(Block(page, text.count("\n", 0, match.start(2)) + 1, match[1], match[2]))
    return [block for block in found if language in (None, block.language)]


def page_of(name: str) -> Path:
    """The page of that name, in docs/ or one of its folders; those of the API are one deeper."""
    (found,) = (path for folder in ("", "*/") for path in (ROOT / "docs").glob(f"{folder}{name}.md"))
    return found


def command_lines(*pages: Path) -> list[str]:
    """The command lines of pages' console and shell blocks, in order, without the prompt: in a console block $, or # for root."""
    found = []
    for block in blocks(*pages):
        if block.language == "console":
            found += re.findall(r"^[$#] (.*)$", block.text, re.MULTILINE)
        elif block.language == "sh":
            found += [line for line in block.text.splitlines() if line and not line.startswith("#")]
    return found


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as MkDocs makes them."""
    heads = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", head).strip().lower()) for head in heads}
