"""Files that are replaced whole: after a crash at any point there is the old one or the new one."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from shmstore import errors


def replace(path: Path, write: Callable[[Path], object], what: str, fix: str) -> None:
    """Put what `write` writes at the path that it is given in place of the file at `path`; its folder is made.

    Raises `StoreError` where the disk refuses, with `what` the file is and how to `fix` that; the file is the old one then.
    """
    # A name that no other writer has: not another thread, nor a process of this number in another container.
    temporary = path.with_name(f"_{path.name}.{os.urandom(6).hex()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        give_to_owner(temporary, path.parent)
        sync(temporary)
        os.rename(temporary, path)
        sync(path.parent)  # the rename itself
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise refused(path, error, what, fix) from error


def refused(path: Path, error: OSError, what: str, fix: str) -> errors.StoreError:
    """Return the error that says which file the disk refused, why, and what to do."""
    return errors.refused(f"{what} {path} cannot be written", error, f"make space there, or {fix}")


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, survive a crash of the host."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def give_to_owner(file: int | Path, folder: str | os.PathLike[str]) -> None:
    """Let a file that root made belong to whom its folder belongs, who would be locked out of it otherwise. Raises OSError."""
    if os.geteuid() == 0:
        owner = os.stat(folder)
        if owner.st_uid != 0:
            os.chown(file, owner.st_uid, owner.st_gid)
