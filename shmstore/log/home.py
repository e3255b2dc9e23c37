"""A store's home: the folder that outlives its memory. Its path, its identity, and the lock of whoever appends.

``$SHMSTORE_STATE/NAME``, or ``~/.local/state/shmstore/NAME``, holds a file for each subscription (`shmstore.store.checkpoint`), and in
``log`` the events, and ``store.json``: what the store was created with. A store that is found there and not in memory is put
together again from it. An advisory lock on the file ``lock`` (fcntl(2), OFD) is held by the one process that appends.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from shmstore.atomic_file import give_to_owner, replace
from shmstore.errors import LayoutMismatch, ProducerInUse, StoreError, StoreNotFound, refused
from shmstore.event import Position
from shmstore.memory.create_options import Options
from shmstore.memory.layout import BatchMode, StoreFlag

FORMAT: Final = 1  # version of the home: of its files, and of the log's
REMOVED: Final = ".removed-"
SUSPENSION: Final = 0.05  # seconds between two tries for the lock
_FLOCK: Final = struct.Struct("@hhqqi4x")


class Identity(NamedTuple):
    """What a store is, whatever becomes of its memory. `start` is where the producer of its first event began to read, "" and 0 at first;
    `path` is the file of its memory, None for shared memory."""

    name: str
    epoch: int
    options: Options
    mode: int
    gid: int
    created_ms: int
    path: str | None = None
    start_file: str = ""
    start_offset: int = 0


def log_folder(home: str | os.PathLike[str]) -> Path:
    """Where the log of a home is."""
    return Path(home) / "log"


def has_log(home: str | os.PathLike[str]) -> bool:
    """True where a store with a log lives in that home. Raises `StoreError` where that cannot be seen."""
    try:
        return (log_folder(home) / "store.json").exists()
    except OSError as error:
        fix = "do this as the user whom it belongs to, or name another folder with SHMSTORE_STATE"
        raise refused(f"the home {home} of a store cannot be read", error, fix) from error


def make(home: str | os.PathLike[str], mode: int, gid: int) -> None:
    """Make the folders of a home, for those who may use a store of that `mode` and group (-1: the creator's own), whatever the umask.

    Raises `StoreError` where the disk refuses.
    """
    folder = log_folder(home)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.chmod(folder, 0o700)
        with suppress(PermissionError):  # another user's, who asked for a snapshot before there was a store
            os.chmod(home, 0o700)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if mode != 0o600:
                os.fchown(lock, -1, gid)
                os.fchmod(lock, mode)
                for each in (Path(home), folder):
                    os.chown(each, -1, gid)
                    os.chmod(each, 0o2770 if mode == 0o660 else 0o2750)  # what is made in it belongs to the group, too
        finally:
            os.close(lock)
    except OSError as error:
        raise refused(
            f"the home {home} of a store cannot be made",
            error,
            "name another folder with SHMSTORE_STATE, or make the store without a log",
        ) from error


def write(home: str | os.PathLike[str], identity: Identity) -> None:
    """Write who the store is. Raises `StoreError` where the disk refuses."""
    options = identity.options
    text = json.dumps(
        {
            "format": FORMAT,
            **{name: getattr(identity, name) for name in Identity._fields if name != "options"},
            **{name: getattr(options, name) for name in Options._fields if name != "home"},
        },
        indent=1,
    )

    def make_file(at: Path) -> None:
        at.write_text(text)
        os.chmod(at, identity.mode)

    replace(log_folder(home) / "store.json", make_file, "identity", "name another folder with SHMSTORE_STATE")


def read(home: str | os.PathLike[str]) -> Identity:
    """Return who the store in a home is. Raises `StoreNotFound`, `LayoutMismatch` for a home of a newer format, `StoreError`."""
    path = log_folder(home) / "store.json"
    try:
        value: dict[str, Any] = json.loads(path.read_text())
        if int(value["format"]) > FORMAT:
            raise LayoutMismatch(
                f"{path} has format {value['format']}, this shmstore reads up to {FORMAT}: use the shmstore that wrote it, or a newer one"
            )
        given = {name: value[name] for name in Options._fields if name != "home"}
        given |= {"batch_mode": BatchMode(value["batch_mode"]), "flags": StoreFlag(value["flags"]), "home": os.fspath(home)}
        options = Options(**given)
        return Identity(options=options, **{name: value[name] for name in Identity._fields if name != "options"})
    except LayoutMismatch:
        raise
    except FileNotFoundError:
        raise StoreNotFound(f"{home} is not the home of a store with a log: it has no log/store.json") from None
    except OSError as error:
        raise refused(f"{path} cannot be read", error, "let this user read it") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{path} cannot be read ({error!r}): restore it from a copy, or remove the home with `shmstore rm --log`"
        ) from error


def note_start(home: str | os.PathLike[str], start: Position) -> None:
    """Write down where the producer of the first event begins to read. Raises `StoreError`."""
    write(home, read(home)._replace(start_file=start.file, start_offset=start.offset))


def resize(home: str | os.PathLike[str], options: Options) -> None:
    """Write down what the store is to have from when it is put together next. Raises `StoreError`."""
    write(home, read(home)._replace(options=options))


def remove(home: str | os.PathLike[str], epoch: int | None = None) -> bool:
    """Remove the log of a home, of that `epoch` only where it is given; return whether there was one. Raises `StoreError`.

    It is renamed first: from then on nobody finds it, whole or half. What a removal that was killed left, the next one removes.
    """
    folder = log_folder(home)
    try:
        if epoch is not None and read(home).epoch != epoch:
            return False
    except StoreError:
        if not folder.is_dir():
            return False
    try:
        with suppress(FileNotFoundError):
            os.rename(folder, f"{folder}{REMOVED}{secrets.token_hex(4)}")
        left = [each for each in Path(home).iterdir() if each.name.startswith(f"{folder.name}{REMOVED}")]
        for each in left:
            shutil.rmtree(each)
        with suppress(OSError):  # subscriptions, snapshots, a schema history may be there
            Path(home).rmdir()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise refused(f"the log in {folder} cannot be removed", error, "remove it as the user whom it belongs to") from error
    return bool(left)


class AppendLock:
    """The right to change a log's files: of one process on the host, until it closes it or dies."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd, self._path = fd, path

    @property
    def current(self) -> bool:
        """False where the log was removed since, so that this says nothing about another that may be in its place."""
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self._path))
        except OSError:
            return False

    @classmethod
    def take(cls, home: str | os.PathLike[str], timeout: float) -> Self:
        """Take it, waiting `timeout` seconds for another to go. Raises `ProducerInUse`, and `StoreError` where the disk refuses."""
        path = log_folder(home) / "lock"
        until = time.monotonic() + timeout
        while True:
            try:
                lock = cls(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), path)
                give_to_owner(lock._fd, path.parent)
            except OSError as error:
                raise refused(f"the log in {path.parent} cannot be written", error, "let this user write there") from error
            try:
                fcntl.fcntl(lock._fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
                if lock.current:
                    return lock
            except (BlockingIOError, PermissionError):
                if time.monotonic() >= until:
                    lock.release()
                    raise ProducerInUse(
                        f"another process appends to the log in {path.parent} (`fuser {path}` shows which): stop it first"
                    ) from None
                time.sleep(SUSPENSION)
            except BaseException:
                lock.release()
                raise
            lock.release()  # of a log that was removed meanwhile, or it is time to look whether it was

    def release(self) -> None:
        """Give it back. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()
