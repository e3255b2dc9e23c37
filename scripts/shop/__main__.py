"""``python -m scripts.shop``: what scripts/demo runs."""

from __future__ import annotations

import sys

from scripts.shop.options import parse


def main() -> int:
    """Run the demo; return its exit code."""
    options = parse()
    from scripts.shop.demo import run  # after the options: --help needs nothing installed

    return run(options)


if __name__ == "__main__":
    sys.exit(main())
