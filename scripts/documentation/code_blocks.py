"""Every code block of a page is on the built site as it is in the Markdown: ``python -m scripts.documentation.code_blocks SITE``.

Looks at the HTML: a marker that no extension took, or one that an editor mangled, is text there.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^( *)```[^\n]*\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
INCLUDE = re.compile(r"^-+8 ?<.*", re.MULTILINE)
LEFT_OVER = re.compile(r"-+8 ?<.*|^:::.*|<!--.*|^```.*|\{\{.*", re.MULTILINE)


class _Page(HTMLParser):
    """The text of a page, and that of its code blocks."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.blocks: list[str] = []
        self.text: list[str] = []
        self._depth = 0
        self._hidden = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in ("script", "style")
        if tag == "pre":
            self._depth += 1
            self.blocks.append("")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("script", "style")
        self._depth -= tag == "pre"

    def handle_data(self, data: str) -> None:
        if self._depth:
            self.blocks[-1] += data
        elif not self._hidden:
            self.text.append(data)


def missing(markdown: str, html: str) -> Iterator[str]:
    """Yield a line for each code block that the built page has not, or has otherwise, and for each marker that is text there."""
    page = _Page(html)
    shown = {_words(block) for block in page.blocks}
    for match in BLOCK.finditer(markdown):
        if _words(match[2]) not in shown:
            yield f"line {markdown.count(chr(10), 0, match.start()) + 1}: the site does not have this block as it is"
    for found in LEFT_OVER.findall("\n".join(page.text)) + INCLUDE.findall("\n".join(page.blocks)):
        yield f"the site shows a marker as text: {found.strip()[:80]}"


def _words(text: str) -> str:
    return " ".join(text.split())


def main() -> int:
    """Print what is missing; return 1 where something is."""
    site, found = Path(sys.argv[1]), []
    for path in sorted(DOCS.rglob("*.md")):
        name = path.relative_to(DOCS).with_suffix("")
        built = site / ("index.html" if name.name == "index" else f"{name}/index.html")
        found += [f"{name}: {line}" for line in missing(path.read_text(encoding="utf-8"), built.read_text(encoding="utf-8"))]
    print("\n".join(found) or "code blocks: all are on the site")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
