"""Python packages of other versions than the installed ones, in folders of the cache: published by one rename, so that each folder is whole."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.servers.packages import cache_folder, locked


def packages(kind: str, version: str, *more: str) -> Path:
    """The folder with the newest package `kind` of `version`, such as 4.0, and with what it needs, or else with `more`; fetched from the package index
    the first time. Another process that asks for it waits.

    CACHE/KIND/4.0.5        the packages
    CACHE/KIND/4.0.lock     held while they are looked for or fetched
    """
    cache = cache_folder() / kind
    with locked(cache / f"{version}.lock"):
        there = sorted(path for path in cache.glob(f"{version}*") if path.is_dir())
        if there:
            return there[-1]
        for left in cache.glob(f".{version}-*"):  # of a run that was killed
            shutil.rmtree(left, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=f".{version}-", dir=cache))
        try:
            print(f"fetching {kind} {version} (once; kept in {cache})", file=sys.stderr, flush=True)
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--target", str(work)]
            subprocess.run([*pip, *(["--no-deps"] if more else []), f"{kind}=={version}.*", *more], check=True)
            (found,) = work.glob(f"{kind}-*.dist-info")
            work.chmod(0o755)
            return work.rename(cache / found.name.removeprefix(f"{kind}-").removesuffix(".dist-info"))
        finally:
            shutil.rmtree(work, ignore_errors=True)
