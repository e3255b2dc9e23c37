"""The right to change a log's files, ``log/lock``: an advisory lock (fcntl(2), OFD) of the one process that appends."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final, Self

from shmstore.errors import ProducerInUse, StoreError, refused
from shmstore.home.home import Home, make_folder
from shmstore.memory.locks import take_bytes

NAME: Final = "lock"
SUSPENSION: Final = 0.05  # seconds between two tries for the lock


def make(home: Home) -> None:
    """Make the folders of a home with a log, and the lock, for those who may use the store, whatever the umask. Raises `StoreError`."""
    home.make()
    try:
        make_folder(home.log, 0o700)
        home.share(home.log)
        os.close(_opened(home))
    except OSError as error:
        raise refused(
            f"the home {home.path} of a store cannot be made",
            error,
            "name another folder with SHMSTORE_STATE, or make the store without a log",
        ) from error


def _opened(home: Home) -> int:
    fd = os.open(home.log / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        home.give_rights(fd, home.log)
    except BaseException:
        os.close(fd)
        raise
    return fd


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
    def take(cls, home: Home, timeout: float) -> Self:
        """Take it, waiting `timeout` seconds for another to go. Raises `ProducerInUse`, and `StoreError` where the disk refuses."""
        path, until = home.log / NAME, time.monotonic() + timeout
        while True:
            try:
                lock = cls(_opened(home), path)
            except FileNotFoundError as error:
                raise StoreError(
                    f"the log in {home.log} was removed: put it back, or remove the store's memory, too, with `shmstore rm {home.name} --log`"
                ) from error
            except OSError as error:
                raise refused(f"the log in {home.log} cannot be written", error, "let this user write there") from error
            try:
                if take_bytes(lock._fd):
                    if lock.current:
                        return lock
                elif time.monotonic() >= until:
                    raise ProducerInUse(
                        f"another process appends to the log in {home.log} (`fuser {path}` shows which): stop it first"
                    )
                else:
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
