"""Every link of the built site, and every link from the README into it, leads somewhere: ``python -m scripts.documentation.links SITE``.

Looks at files alone, never at the network: links to other hosts are left out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

ROOT = Path(__file__).resolve().parents[2]
MARKDOWN_LINK = re.compile(r"\]\(([^)\s]+)\)")


class _Page(HTMLParser):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        self.anchors.update(filter(None, (values.get("id"), values.get("name") if tag == "a" else None)))
        link = values.get({"a": "href", "link": "href", "img": "src", "script": "src"}.get(tag, ""))
        if link is not None:
            self.links.append(link)


def broken(site: Path) -> Iterator[str]:
    """Yield a line for each link of the site that leads nowhere."""
    pages = {path.resolve(): _Page(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # served at any address: its links are absolute
        for link in page.links:
            target, anchor = urldefrag(link)
            if urlsplit(target).scheme or target.startswith("//"):
                continue
            found = path if not target else (path.parent / unquote(target.partition("?")[0])).resolve()
            found = found / "index.html" if found.is_dir() else found
            if not found.exists():
                yield f"{path.relative_to(site.resolve())}: {link}: there is no such file"
            elif anchor and found in pages and anchor not in ("", "__skip") and unquote(anchor) not in pages[found].anchors:
                yield f"{path.relative_to(site.resolve())}: {link}: the page has no such anchor"
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md"):
        yield from broken_markdown(ROOT / name, site, pages)


def broken_markdown(source: Path, site: Path, pages: dict[Path, _Page]) -> Iterator[str]:
    """Yield a line for each relative link of a Markdown file outside of the site that leads nowhere."""
    for link in MARKDOWN_LINK.findall(source.read_text(encoding="utf-8")):
        target, anchor = urldefrag(link)
        if urlsplit(target).scheme or not target:
            continue
        found = (source.parent / target).resolve()
        if not found.exists():
            yield f"{source.name}: {link}: there is no such file"
        elif anchor:
            page = found.relative_to(ROOT / "docs").with_suffix("")
            built = site.resolve() / ("index.html" if page.name == "index" else f"{page}/index.html")
            if anchor not in pages[built].anchors:
                yield f"{source.name}: {link}: the page has no such anchor"


def main() -> int:
    """Print what is broken; return 1 where something is."""
    found = list(broken(Path(sys.argv[1])))
    print("\n".join(found) or "links: all lead somewhere")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
