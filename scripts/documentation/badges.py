"""The README's badges: what the tests run on, drawn into docs/images, so that no other host is asked.

    python -m scripts.documentation.badges               draw them

`tests/docs/test_badges.py` compares them with the pages that say what the tests run on.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

IMAGES: Final = Path(__file__).resolve().parents[2] / "docs" / "images"
BADGES: Final = {
    "python": ("Python", "3.11"),
    "mariadb": ("MariaDB", "10.11, 11.8"),
    "mysql": ("MySQL", "9.7"),
    "spark": ("Spark", "4.0 to 4.3"),
    "code": ("tested", "compiled and pure"),
}
_LETTER, _PAD, _HEIGHT = 6.6, 7, 20  # pixels


def file(name: str) -> Path:
    """Return where a badge is."""
    return IMAGES / f"badge-{name}.svg"


def drawn(name: str) -> str:
    """Return a badge as SVG: what is tested on a gray field, which on a blue one."""
    label, value = BADGES[name]
    left, right = (round(_LETTER * len(text)) + 2 * _PAD for text in (label, value))
    texts = "".join(
        f'  <text x="{start + width / 2:g}" y="14" textLength="{width - 2 * _PAD}">{text}</text>\n'
        for start, width, text in ((0, left, label), (left, right, value))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="{_HEIGHT}" role="img" aria-label="{label}: {value}">\n'
        f'  <rect width="{left + right}" height="{_HEIGHT}" rx="3" fill="#4b5563"/>\n'
        f'  <path d="M{left} 0h{right - 3}a3 3 0 0 1 3 3v{_HEIGHT - 6}a3 3 0 0 1 -3 3h-{right - 3}z" fill="#1767c4"/>\n'
        '  <g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">\n'
        f"{texts.replace('  <text', '    <text')}  </g>\n</svg>\n"
    )


if __name__ == "__main__":
    for each in BADGES:
        file(each).write_text(drawn(each), encoding="utf-8")
    sys.exit(0)
