"""Virtual environments with other versions of pyspark than the installed one: everything else in them is this environment's.

CACHE/spark/4.0.5        pyspark and its py4j (half a gigabyte); published by one rename, so each folder is whole
CACHE/spark/4.0.lock     held while it is looked for or fetched: a second process waits for the first

An environment itself is some links, made where it is asked for.
"""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from tests.servers.packages import cache_folder, locked


def packages(version: str) -> Path:
    """The folder with the newest pyspark of `version`, such as 4.0, and its py4j; fetched from the package index the first time."""
    cache = cache_folder() / "spark"
    with locked(cache / f"{version}.lock"):
        there = sorted(cache.glob(f"{version}.*/pyspark"))
        if there:
            return there[-1].parent
        for left in cache.glob(f".{version}-*"):  # of a run that was killed
            shutil.rmtree(left, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=f".{version}-", dir=cache))
        try:
            print(f"fetching pyspark {version} (once; kept in {cache})", file=sys.stderr, flush=True)
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--target", str(work)]
            subprocess.run([*pip, f"pyspark=={version}.*"], check=True)
            (found,) = work.glob("pyspark-*.dist-info")
            final = cache / found.name.removeprefix("pyspark-").removesuffix(".dist-info")
            work.chmod(0o755)
            return work.rename(final)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def environment(version: str, folder: Path) -> str:
    """Make a virtual environment with pyspark of `version` in `folder`; return its Python."""
    venv.create(folder, symlinks=True)
    (own,) = folder.glob("lib/python3*/site-packages")
    others = [path for path in site.getsitepackages() if os.path.isdir(path)]
    lines = [str(packages(version)), *(f"import site; site.addsitedir({path!r})" for path in others)]
    (own / "spark.pth").write_text("\n".join(lines) + "\n")
    return str(folder / "bin" / "python")
