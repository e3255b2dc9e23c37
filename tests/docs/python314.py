"""Python 3.14 of Debian, with the wheel that scripts/wheels builds, in an environment of its own: no compiler is asked for."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT
from tests.servers.packages import unpacked

VERSION = "3.14"
# The loader and the C library of the Python's own release, as for servers. Python finds its library next to the name that it was called by.
INTERPRETER = """\
#!/bin/sh
exec {loader} --library-path {libraries} --argv0 "$0" {root}/usr/bin/python{version} "$@"
"""


def new_environment(folder: Path, *extras: str) -> Path:
    """Make the environment below `folder`, with shmstore and `extras`; return its bin. Raises `ServerUnavailable`, `CalledProcessError`."""
    root = unpacked("python314")
    (loader,) = (root / "usr/lib").glob("*-linux-gnu/ld-linux-*.so.*")
    home, venv = folder / "python", folder / "venv"
    (home / "bin").mkdir(parents=True)
    (home / "lib").symlink_to(root / "usr/lib")
    python = home / "bin" / f"python{VERSION}"
    python.write_text(INTERPRETER.format(loader=loader, libraries=loader.parent, root=root, version=VERSION))
    python.chmod(0o755)
    _run(python, "-m", "venv", "--without-pip", venv)
    _run(ROOT / "scripts/wheels", "--python", VERSION, "--processor", platform.machine(), "--out", folder / "dist")
    (wheel,) = (folder / "dist").glob("*.whl")
    pip = (sys.executable, "-m", "pip", "--python", venv / "bin/python", "install", "--quiet")
    _run(*pip, "--only-binary=:all:", f"{wheel}[{','.join(extras)}]")
    return venv / "bin"


def _run(*words: str | Path) -> None:
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{' '.join(map(str, words))}\n{(done.stdout + done.stderr)[-3000:]}"
