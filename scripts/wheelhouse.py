"""The wheels that are published: one for each Python and processor, and the source distribution.

The C that Cython writes is the same for every Python and processor, so it is written once. One interpreter then does for all of them
what only the C headers make different: a C compiler that carries the C libraries of every Linux (Zig's, from the package index) compiles
against the headers of each Python and the oldest glibc that a wheel promises. What comes out is put into a wheel of pure Python, and
auditwheel says whether it keeps the promise.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from shmstore.native import MODULES
from tests.servers.packages import ServerUnavailable, unpacked

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
GLIBC = "2.28"  # Debian 10, RHEL 8, Ubuntu 18.10
PROCESSORS = ("x86_64", "aarch64")
FROM_DEBIAN = {"3.14": "python314"}
FLAGS = ("-O3", "-fPIC", "-shared", "-fwrapv", "-fno-strict-aliasing", "-fno-sanitize=all", "-DNDEBUG", "-s")
DESCRIPTION = f"""\
Build the source distribution and a wheel for each Python ({", ".join(PYTHONS)}) and processor ({", ".join(PROCESSORS)}):
manylinux with glibc {GLIBC} or later, checked by auditwheel. Nothing is installed into the system.

The headers of each Python are those of an interpreter on the PATH or of pyenv; where there is none, Debian's package of it.
"""
EPILOG = """\
examples:
  scripts/wheels                                    all, into dist/
  scripts/wheels --python 3.11 --processor x86_64   one of them
"""


class WheelFailed(RuntimeError):
    """A wheel could not be built; the message says which, and what to do."""


def main() -> int:
    """Build what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="scripts/wheels", description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--python", action="append", choices=PYTHONS, help="for this Python alone (may be repeated; default: all)"
    )
    parser.add_argument("--processor", action="append", choices=PROCESSORS, help="for this processor alone (default: both)")
    parser.add_argument("--out", metavar="DIR", type=Path, default=ROOT / "dist", help="where they go (default: dist)")
    chosen = parser.parse_args()
    try:
        for made in build(chosen.out.resolve(), chosen.python or PYTHONS, chosen.processor or PROCESSORS):
            print(f"wheels: {made.name}  {made.stat().st_size / 1024:,.0f} KiB", flush=True)
    except (WheelFailed, ServerUnavailable) as error:
        print(f"wheels: {error}", file=sys.stderr)
        return 1
    return 0


def build(out: Path, pythons: Sequence[str] = PYTHONS, processors: Sequence[str] = PROCESSORS) -> Iterator[Path]:
    """Build the source distribution and the wheels into `out`, giving the path of each when it is done.

    Raises `WheelFailed` with what a program said, `ServerUnavailable` where a Python's headers cannot be had.
    """
    headers = {python: headers_of(python) for python in pythons}  # what is missing is reported before anything is built
    with tempfile.TemporaryDirectory(prefix="shmstore-wheels-") as folder:
        work = Path(folder)
        _run("-m", "build", "--sdist", "--outdir", work / "sdist", ROOT)
        source = next((work / "sdist").glob("*.tar.gz"))
        shutil.unpack_archive(source, work, filter="data")
        tree = work / source.name.removesuffix(".tar.gz")
        for python, found in headers.items():
            headers[python] = _one_folder(found, work / f"headers-{python}")
        for module in MODULES:
            _run("-m", "cython", "-3", _source(tree, module))
        plain = _wheel_of_pure_python(tree, work / "plain")
        out.mkdir(parents=True, exist_ok=True)
        yield Path(shutil.copy2(source, out))
        for python in pythons:
            for processor in processors:
                yield _wheel(work, tree, plain, (python, processor), headers[python], out)


def headers_of(python: str) -> Path:
    """The folder of the C headers of a Python: of one that runs here, else of Debian's package."""
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{python}.*/bin/python3"))
    for program in (shutil.which(f"python{python}"), *pyenv):
        if program is None:
            continue
        said = subprocess.run(
            [
                program,
                "-c",
                "import json, sys, sysconfig; print(json.dumps([sys.version_info[:2], sysconfig.get_path('include')]))",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if said.returncode == 0:
            (major, minor), folder = json.loads(said.stdout)
            if f"{major}.{minor}" == python and Path(folder, "Python.h").exists():
                return Path(folder)
    if python in FROM_DEBIAN:
        return unpacked(FROM_DEBIAN[python]) / "usr/include" / f"python{python}"
    raise WheelFailed(
        f"no C headers of Python {python} here: install it (python{python}-dev, or pyenv install {python}), or leave it out"
    )


def _one_folder(headers: Path, out: Path) -> Path:
    """Copy the headers to `out`, whole: Debian keeps pyconfig.h apart, next to the C library's headers, which must not be found."""
    shutil.copytree(headers, out)
    for apart in headers.parent.glob(f"*-linux-gnu/{headers.name}/pyconfig.h"):
        shutil.copy(apart, out)
    return out


def _wheel_of_pure_python(tree: Path, out: Path) -> Path:
    """Unpack a wheel without compiled parts: of the tree, which loses what would compile them."""
    bare = out / "tree"
    shutil.copytree(tree, bare, symlinks=True)
    (bare / "setup.py").unlink()
    _run("-m", "pip", "--quiet", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", out, bare)
    _run("-m", "wheel", "unpack", "--dest", out / "unpacked", next(out.glob("*.whl")))
    return next((out / "unpacked").iterdir())


def _source(tree: Path, module: str) -> Path:
    """The source of a compiled module: `producer` and `consumer` are folders of their own in the tree."""
    return (tree if module.startswith(("producer/", "consumer/")) else tree / "shmstore") / f"{module}.pyx"


def _wheel(work: Path, tree: Path, plain: Path, which: tuple[str, str], headers: Path, out: Path) -> Path:
    python, processor = which
    tag = "cp" + python.replace(".", "")
    folder = work / f"{tag}-{processor}" / plain.name
    shutil.copytree(plain, folder)
    for module in MODULES:
        library = folder / "shmstore" / f"{module}.cpython-{tag[2:]}-{processor}-linux-gnu.so"
        target = f"{processor}-linux-gnu.{GLIBC}"
        source = _source(tree, module).with_suffix(".c")
        # -isystem: what a Python's headers warn about is not ours.
        _run("-m", "ziglang", "cc", "-target", target, *FLAGS, "-w", "-isystem", headers, source, "-o", library)
    record = next(folder.glob("*.dist-info")) / "WHEEL"
    platform = f"manylinux_{GLIBC.replace('.', '_')}_{processor}"
    lines = [line for line in record.read_text().splitlines() if line and not line.startswith(("Tag:", "Root-Is-Purelib:"))]
    record.write_text("\n".join([*lines, "Root-Is-Purelib: false", f"Tag: {tag}-{tag}-{platform}"]) + "\n")
    _run("-m", "wheel", "pack", "--dest-dir", out, folder)
    made = next(out.glob(f"*-{tag}-{tag}-{platform}.whl"))
    said = _run("-m", "auditwheel", "show", made)
    if platform not in said.replace("\n", " "):
        made.unlink()
        raise WheelFailed(f"{made.name} does not keep what its name promises:\n{said}")
    return made


def _run(*words: str | Path) -> str:
    done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise WheelFailed(f"{' '.join(map(str, words))} failed ({done.returncode}):\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
