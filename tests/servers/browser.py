"""A browser without windows, out of the system's package archive, driven by Playwright.

It runs with the machine's own C library, of whose release its packages are, and starts itself again for each of its parts: so it is not started
through a loader as the servers are, and finds its libraries in a folder of links to all but the C library's.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests.servers.packages import unpacked

_C_LIBRARY = (
    "ld-linux",
    "libc.",
    "libc_",
    "libm.",
    "libmvec",
    "libpthread",
    "libdl.",
    "librt.",
    "libresolv",
    "libnss_",
    "libutil.",
    "libanl",
)


@contextmanager
def browser() -> Iterator[Browser]:
    """A Chromium. Raises `ServerUnavailable` where it cannot be had."""
    root = unpacked("chromium")
    with tempfile.TemporaryDirectory(prefix="shmstore-browser-") as folder:
        libraries = Path(folder, "libraries")
        libraries.mkdir()
        for library in sorted(root.rglob("*.so*")):
            link = libraries / library.name
            if not library.name.startswith(_C_LIBRARY) and not link.exists():
                link.symlink_to(library.resolve())
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(libraries),
            "FONTCONFIG_PATH": str(root / "etc/fonts"),
            "FONTCONFIG_SYSROOT": str(root),
            "HOME": folder,
        }
        with sync_playwright() as playwright:
            made = playwright.chromium.launch(
                executable_path=root / "usr/lib/chromium/chromium-headless-shell",
                args=["--no-sandbox", "--disable-gpu"],
                env=environment,
            )
            try:
                yield made
            finally:
                made.close()
