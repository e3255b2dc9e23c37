"""Home: the folder of one store that outlives its memory, and how a file in it is replaced.

    STATE/NAME/        0700, or of the store's group 2770 or 2750
      .lock            a byte for each file that is replaced, see below
      ...              `shmstore.home.kinds` lists what else there is; each kind of file has a module of its own

Rights. A file has the rights that its folder gives, and its folder's group, whatever the umask of its writer: so who may use the store
can read what another of its users wrote.

Order. A writer locks the file's byte of ``.lock``, then looks whether it may write (`may`: the epoch is the home's, the role is its own,
and not behind what exists), then replaces the file, then unlocks. What could make that look untrue waits for the byte, and so comes
after the write: the next owner's first write takes the same byte, removal and the reading of all acks for a restored store take all of
them. A writer that is killed leaves the byte free, the old file or the new one whole, and at most a temporary file, which removal takes
along.
"""

from __future__ import annotations

import os
import stat
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from shmstore import atomic_file
from shmstore.atomic_file import give_to_owner, sync
from shmstore.errors import StoreClosed, StoreError, refused
from shmstore.memory.locks import take_bytes
from shmstore.memory.segment import check_name
from shmstore.stored_json import read_json

NOT_SOURCES: Final = ("log", "origin", "verify")
FIX: Final = "name another folder with state, or SHMSTORE_STATE"
LOCK: Final = ".lock"
PATIENCE: Final = 10.0  # seconds for another process to finish a write
SUSPENSION: Final = 0.001  # seconds between two tries for a byte
PRIVATE: Final = 0o600
SHARED: Final = 0o660

May = Callable[
    [], bool
]  # looked at when nothing can make it untrue any more; raises, or returns False to leave the file as it is


def state_directory() -> Path:
    """Where homes are: ``$SHMSTORE_STATE``, else ``$XDG_STATE_HOME/shmstore``, else ``~/.local/state/shmstore``."""
    chosen = os.environ.get("SHMSTORE_STATE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "shmstore"


class Home:
    """The home of one store. `mode` and `gid` are those of the store, for the folder; None: they are not known here, so a folder that is there
    keeps its rights, and one that is missing is this user's alone.

    With `epoch` it is the home of a store with a log, which is there already: nothing is written where it is gone, or another store's.
    """

    __slots__ = ("epoch", "gid", "mode", "path")

    def __init__(self, path: str | os.PathLike[str], *, mode: int | None = None, gid: int = -1, epoch: int | None = None) -> None:
        self.path = Path(os.path.abspath(path))
        self.mode, self.gid, self.epoch = mode, gid, epoch

    @classmethod
    def of(cls, store: str, state: str | os.PathLike[str] | None = None, *, mode: int | None = None, gid: int = -1) -> Home:
        """Return the home of a store by its name: ``STATE/STORE``, in `state_directory()` by default. Raises `ValueError` for a bad name."""
        return cls(Path(state or state_directory()) / check_name(store), mode=mode, gid=gid)

    def __repr__(self) -> str:
        return f"Home({os.fspath(self.path)!r})"

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    @property
    def name(self) -> str:
        """The store's name."""
        return self.path.name

    @property
    def state(self) -> Path:
        """The folder of homes that it is in."""
        return self.path.parent

    @property
    def log(self) -> Path:
        """Where the store's log is, if it has one."""
        return self.path / "log"

    def of_source(self, source: str) -> Path:
        """Where the files of one of a store's several sources are; those of the only one, whose name is empty, are in the home itself."""
        name = quote(source, safe="").replace(
            ".", "%2E"
        )  # all that else is in a home has a dot in its name, or is of NOT_SOURCES
        return self.path / (f"%{ord(name[0]):02X}{name[1:]}" if name in NOT_SOURCES else name)

    def sources(self) -> list[str]:
        """Return the names of the several sources that have a folder here, sorted. Nothing where the home cannot be read."""
        try:
            found = [entry.name for entry in os.scandir(self.path) if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return []
        return sorted(unquote(name) for name in found if "." not in name and name not in NOT_SOURCES)

    @property
    def identity(self) -> Path:
        """The file that says which store with a log lives here."""
        return self.log / "store.json"

    @property
    def has_log(self) -> bool:
        """Whether a store with a log lives here. Raises `StoreError` where that cannot be seen."""
        try:
            return self.identity.exists()
        except OSError as error:
            fix = f"do this as the user whom it belongs to, or {FIX}"
            raise refused(f"the home {self.path} of a store cannot be read", error, fix) from error

    # ------------------------------------------------------------ whose it is

    def check_ours(self, group: int | None = None) -> None:
        """Raise `StoreError` where another user made the home: not this one, not root, nor a member of `group`, or of a group of this
        user for which the folder is (None). Root may use every home, as it may remove and restore every store.
        """
        user = os.geteuid()
        groups = {os.getegid(), *os.getgroups()} if group is None else {group}
        for path in (self.path, self.log, self.log / "lock", self.identity):
            for look in (os.lstat, os.stat):  # a link is as good as what it leads to, if both may be relied on
                try:
                    there = look(path)
                except OSError:
                    continue  # the process that uses it hears why
                shared = there.st_gid in groups and bool(there.st_mode & 0o040)
                if user not in (0, there.st_uid) and there.st_uid != 0 and not shared:
                    raise StoreError(
                        f"the home {self.path} of store {self.name!r} is not this user's: {path} belongs to uid {there.st_uid}, group "
                        f"{there.st_gid}. Wanted uid {user}, root, or a group that shares the store: remove it if it should not be there, "
                        f"or {FIX}"
                    )

    # ------------------------------------------------------------ making it

    def make(self) -> None:
        """Make the folder, where it is missing, and give it the rights of the store, whatever the umask. Raises `StoreError`."""
        try:
            self._make()
        except OSError as error:
            fix = f"{FIX}, or make the store without a log"
            raise refused(f"the home {self.path} of a store cannot be made", error, fix) from error

    def _make(self) -> None:
        missing = [each for each in (self.state, *self.state.parents) if not each.exists()]
        for each in reversed(missing):
            make_folder(each, 0o700 if self.mode in (None, PRIVATE) else 0o755)  # members of a group pass through
        make_folder(self.path, 0o700)
        self.share(self.path)

    def share(self, folder: Path) -> None:
        """Give a folder of the home the rights of the store, as far as they are known, and it is this user's. Raises OSError."""
        there = os.stat(folder)
        if self.mode is None or os.geteuid() not in (0, there.st_uid):
            return
        if self.mode == PRIVATE:
            wanted, gid = 0o700, -1
        else:  # what is made in it belongs to the group, too
            wanted, gid = 0o2770 if self.mode == SHARED else 0o2750, self.gid
        if gid not in (-1, there.st_gid):
            os.chown(folder, -1, gid)
        if stat.S_IMODE(there.st_mode) != wanted:
            os.chmod(folder, wanted)

    # ------------------------------------------------------------ writing in it

    def replace(self, path: Path, content: bytes, what: str, may: May | None = None) -> bool:
        """Put `content` in place of the file at `path`, durably; return False where `may` says no.

        Raises `StoreClosed` where the home is gone or another store's, what `may` raises, and `StoreError` where the disk refuses.
        """

        def write(at: Path) -> None:
            with open(os.open(at, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE), "wb") as file:
                self.give_rights(file.fileno(), at.parent)
                file.write(content)

        with self.writing(path, what):
            if may is not None and not may():
                return False
            atomic_file.replace(path, write, what, FIX)
        return True

    def put_aside(self, path: Path, what: str, may: May | None = None) -> None:
        """Rename the file at `path`, so that its name ends in ``.old``, durably; not where `may` says no. Raises as `replace`."""
        with self.writing(path, what):
            if may is None or may():
                path.replace(path.with_suffix(".old"))
                sync(path.parent)

    def remove(self, path: Path, what: str, may: May | None = None) -> None:
        """Remove the file at `path`, if it is there, durably; not where `may` says no. Raises as `replace`."""
        with self.writing(path, what):
            try:
                if (may is None or may()) and path.exists():
                    path.unlink()
                    sync(path.parent)
            except OSError as error:
                raise refused(f"{what} {path} cannot be removed", error, f"let this user write there, or {FIX}") from error

    @contextmanager
    def writing(self, path: Path, what: str) -> Iterator[None]:
        """Be the only one that writes the file at `path`. Raises as `replace`."""
        try:
            if self.epoch is None:
                self._make()
            if path.parent != self.path:
                make_folder(path.parent, stat.S_IMODE(os.stat(self.path).st_mode))
            byte = zlib.crc32(os.fsencode(path.relative_to(self.path)))
            with self.locked(byte, 1, what):
                self.check_epoch()
                yield
        except StoreError:
            raise
        except FileNotFoundError as error:
            raise self._gone() from error
        except OSError as error:
            raise atomic_file.refused(path, error, what, FIX) from error

    @contextmanager
    def locked(self, byte: int = 0, count: int = 0, what: str = "home") -> Iterator[None]:
        """Lock `count` bytes (0: all), against the writers of those files. Raises OSError, `StoreError` after `PATIENCE` seconds."""
        path, until = self.path / LOCK, time.monotonic() + PATIENCE
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE)
            try:
                self.give_rights(fd, self.path)
                if take_bytes(fd, byte, count):
                    try:
                        if _is_at(fd, path):  # else the home was removed, and there may be another in its place
                            yield
                            return
                    finally:
                        take_bytes(fd, byte, count, free=True)  # a child that was forked meanwhile has the description, too
                elif time.monotonic() >= until:
                    raise StoreError(
                        f"{what} in {self.path} is being written by another process for {PATIENCE:.0f} s: is one stopped (`fuser {path}` shows "
                        "which)?"
                    )
                else:
                    time.sleep(SUSPENSION)
            finally:
                os.close(fd)

    def check_epoch(self) -> None:
        """Raise `StoreClosed` where the store with a log that this was opened for lives here no more."""
        if self.epoch is not None and self.epoch_there() != self.epoch:
            raise self._gone()

    def epoch_there(self) -> int | None:
        """Return the epoch of the store with a log that lives here; None for none. Raises `StoreError` where that cannot be read."""
        try:
            return int(read_json(self.identity)["epoch"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{self.identity} cannot be read ({error}): restore it from a copy") from error

    def _gone(self) -> StoreClosed:
        return StoreClosed(
            f"store {self.name!r} is no longer in {self.path}: it was removed with its log, so nothing is written; attach again"
        )

    def give_rights(self, fd: int, folder: Path) -> None:
        """Let a file have the rights that its folder gives, and its group. Raises OSError."""
        here, there = os.fstat(fd), os.stat(folder)
        if os.geteuid() not in (0, here.st_uid):
            return  # another's, who did it
        give_to_owner(fd, folder)
        mode = PRIVATE
        if there.st_mode & 0o040:
            with suppress(PermissionError):  # no member of the group, which then has no rights either
                if here.st_gid != there.st_gid:
                    os.fchown(fd, -1, there.st_gid)
                mode |= 0o060 if there.st_mode & 0o020 else 0o040
        if stat.S_IMODE(here.st_mode) != mode:
            os.fchmod(fd, mode)


def make_folder(path: Path, mode: int) -> None:
    """Make a folder with exactly this mode, where it is missing. Raises OSError."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return
    give_to_owner(path, path.parent)
    if mode != 0o700:
        os.chmod(path, mode)


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
