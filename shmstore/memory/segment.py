"""Create, attach and unlink a store's memory by name: a file in /dev/shm, or on disk, mapped.

Plan. A segment is built in a file without a name and gets its name when it is whole, so that no process ever attaches to
half a segment, and a creator that dies leaves nothing: shm_open(3) has no such way to create, so that creating is done by open(2)
and linkat(2). Opening and removing is `shared_memory`. Every size an attacher uses comes from `layout.sizes` of a header
that was checked first.
"""

from __future__ import annotations

import copy
import errno
import grp
import os
import re
import stat as stat_module
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO, Final, Protocol

import numpy as np

from shmstore.clock import calendar_ms
from shmstore.errors import LayoutMismatch, StoreClosed, StoreError, StoreExists, StoreNotFound, refused
from shmstore.memory import layout
from shmstore.memory.available import free_memory
from shmstore.memory.create_options import CreateOptions
from shmstore.memory.layout import BatchMode, Sizes, StoreFlag, StoreState, SubscriptionState, header_word
from shmstore.memory.locks import is_locked, start_time
from shmstore.memory.mapping import Views, cursors_sane, mapped
from shmstore.memory.shared_memory import DIRECTORY, open_file, remove_file

PREFIX: Final = "shmstore."
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def check_name(name: str) -> str:
    """Return `name` if it can name a store or a subscription; raise `ValueError` that says what can."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"name {name!r} is not allowed: use 1 to 100 letters, digits, '_', '-' or '.', not starting with '-' or '.', no slash"
        )
    return name


def where_is(name: str, path: str | None) -> str:
    """The file of a store: its path, or ``shmstore.NAME`` in /dev/shm."""
    check_name(name)
    return path or f"{DIRECTORY}/{PREFIX}{name}"


class Closed:
    """In the place of memory that was let go of: whatever is asked of it raises `StoreClosed`."""

    __slots__ = ("_says",)

    def __init__(self, says: str) -> None:
        object.__setattr__(self, "_says", says)

    def __setattr__(self, name: str, value: object) -> None:
        raise StoreClosed(self._says)

    def __getattr__(self, name: str) -> Any:
        raise StoreClosed(self._says)

    def __getitem__(self, i: object) -> Any:
        raise StoreClosed(self._says)

    def __setitem__(self, i: object, value: object) -> None:
        raise StoreClosed(self._says)


class Log(Protocol):
    """What the parts below the log ask of it, which a `shmstore.log.files.LogFiles` answers; `log_of` there says what those above may."""

    def extent(self, first: int, limit_events: int, limit_bytes: int | None, *, ddl_alone: bool) -> int:
        """Return the last event of a batch from `first` on under the limits: at least one event."""

    def window(self, first: int, last: int) -> Any:
        """Return what the compiled get takes events `first` to `last` from, and perhaps more."""

    def release(self, *, everything: bool = False) -> None:
        """Let go of the files that are removed, or of all."""


class Segment:
    """One mapped segment: its descriptor, its header's options, its views."""

    def __init__(self, name: str, path: str | None, fd: int, *, read_only: bool = False) -> None:
        self.name = name
        self.path = path
        self.fd = fd
        self.where = where = where_is(name, path)
        try:
            status = os.fstat(fd)
            if not stat_module.S_ISREG(status.st_mode):
                raise LayoutMismatch(f"{where} is not a store: it is not even a regular file")
            head = os.pread(fd, layout.HEADER.itemsize, 0)
            header = _checked_header(head, status.st_size, where)
            self.mode = stat_module.S_IMODE(status.st_mode)
            self.uid, self.gid = status.st_uid, status.st_gid
            self.epoch = int(header["epoch"])
            #: Overflow segments are called this, a dot and a sequence. With the epoch, so that a store that is removed and its
            #: successor never share one.
            self.overflow_prefix = f"{where}@{self.epoch:x}"
            self.evict_after = float(header["evict_after"])
            self.memory_unit = int(header["memory_unit"])
            self.batch_mode = BatchMode(int(header["batch_mode"]))
            self.flags = StoreFlag(int(header["flags"]))
            self.created_ms = int(header["created_ms"])
            self.sizes = layout.sizes(int(header["capacity"]), int(header["limit"]))
            self.views = mapped(fd, self.sizes, header, read_only=read_only)
            if not cursors_sane(self.views):
                raise LayoutMismatch(
                    f"{where} has cursors that contradict each other: remove it with `shmstore rm {name}` and start its producer again"
                )
        except BaseException:
            os.close(fd)
            raise
        self.words = self.views.words
        self._fixed = self.views.fixed
        self.home = self.read_text("home")  # of a store with a log
        if head[slice(*_text_at("home", None))].rstrip(b"\0") != self.home.encode() or (
            self.home and not os.path.isabs(self.home)
        ):
            os.close(fd)
            raise LayoutMismatch(
                f"{where} names an impossible home, {self.home!r}: remove it with `shmstore rm {name}` and start its producer again"
            )
        #: The log behind the ring, where the store has one; set by the code that opens the store.
        self.log: Log | None = None
        #: Sequence and file of the oversized event that its producer, which is here, put last, until the log has it.
        self.unlogged: tuple[int, BinaryIO] | None = None
        self._finalizer = weakref.finalize(self, os.close, fd)
        self._finalizer.atexit = False  # a daemon thread may use it until the process is gone

    def close(self) -> None:
        """Close the descriptor; the memory goes, and the mapped files of the log, when this object and the last view of them do."""
        self._finalizer()

    def closed(self) -> Segment:
        """Close it; return what is known of it, without its memory and its log: the process that held this holds that from then on.

        Batches hold the segment itself, so they stay valid, and the memory goes with the last of them.
        """
        self.close()
        if self.log is not None:
            self.log.release(everything=True)
        left, none = copy.copy(self), Closed(f"store {self.name!r} is closed: attach again")
        numbers = {field for field, value in self.views._asdict().items() if type(value) is int}
        left.views = self.views._replace(native=None, **dict.fromkeys({*Views._fields} - numbers - {"native"}, none))  # type: ignore[arg-type]
        left.words, left._fixed, left.log, left.unlogged = none, none, none, None  # type: ignore[assignment]
        return left

    @property
    def removed(self) -> bool:
        """True when this store was removed, or its file taken away and a process noticed."""
        return self.words[header_word("state")] != StoreState.LIVE

    def look(self) -> bool:
        """True while the store is there. The process that first finds that its file is not says so to all who are attached."""
        if self.removed:
            return False
        if self.linked:
            return True
        if not self._fixed.readonly:
            self.words[header_word("state")] = StoreState.UNLINKED
        return False

    def read_text(self, field: str, entry: int | None = None) -> str:
        """Text of a header field, or of a field of subscription entry `entry`, up to its first NUL: what follows that is damage."""
        return bytes(self._fixed[slice(*_text_at(field, entry))]).partition(b"\0")[0].decode("utf-8", "replace")

    def write_text(self, field: str, text: str, entry: int | None = None) -> None:
        """Write a text field; what does not fit is cut off."""
        start, end = _text_at(field, entry)
        self._fixed[start:end] = text.encode()[: end - start].ljust(end - start, b"\0")

    @property
    def linked(self) -> bool:
        """True while the name leads to this segment, or that cannot be seen."""
        return self._named() is not False

    @property
    def replaced(self) -> bool:
        """True where another segment has the name: the store was created again, or restored."""
        return self._named() is False and os.path.lexists(self.where)

    def _named(self) -> bool | None:
        """Whether the name leads to this segment; None where that cannot be seen."""
        try:
            there = os.stat(self.where)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return None
        here = os.fstat(self.fd)
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def _text_at(field: str, entry: int | None) -> tuple[int, int]:
    record = layout.HEADER if entry is None else layout.SUBSCRIPTION
    start = 0 if entry is None else layout.HEADER.itemsize + entry * layout.SUBSCRIPTION.itemsize
    assert record.fields is not None
    dtype, offset = record.fields[field][:2]
    return start + offset, start + offset + dtype.itemsize


# ---------------------------------------------------------------- create, attach, unlink


def _file(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.path.abspath(os.fspath(path))


def new_epoch() -> int:
    """Return a random id for a store's life: odd, so never 0."""
    return int.from_bytes(os.urandom(8), "little") >> 1 | 1


def create(
    name: str,
    options: CreateOptions,
    *,
    path: str | os.PathLike[str] | None,
    mode: int,
    group: str | int | None,
    epoch: int = 0,
    owner: int = -1,
    fill: Callable[[int, Sizes], object] = lambda fd, sizes: None,
) -> Segment:
    """Make a segment and give it its name. Raises `StoreExists`, or `StoreError` where memory or rights are missing.

    `epoch` is that of an earlier life; 0: a new one. `owner` is the uid to which root gives it. `fill` writes what the segment is
    to hold before any process can attach.
    """
    path = _file(path)
    if mode not in (0o600, 0o640, 0o660):
        raise ValueError(f"mode is {mode:#o}: give 0o600; or, with a group, 0o660, or 0o640 to let it look only")
    where = where_is(name, path)
    if os.path.lexists(where):
        raise _exists(name, where)
    sizes = layout.sizes(options.capacity, options.limit)
    gid = _group(group)
    directory = os.path.dirname(where) or "."
    try:
        fd = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, mode)
    except OSError as error:
        short = error.errno in (errno.ENOSPC, errno.EDQUOT)
        fix = "make space there" if short else "the directory must exist, be writable, and be on a local file system"
        raise refused(f"cannot create store {name!r} in {directory}", error, fix) from error
    try:
        try:
            os.fchown(fd, owner if os.geteuid() == 0 else -1, gid)
        except OSError as error:
            raise StoreError(f"cannot give store {name!r} to group {group!r}: {error.strerror}; be a member of it") from error
        os.fchmod(fd, mode)
        try:
            take_memory(fd, sizes.total, in_memory=path is None)
        except OSError as error:
            fix = "choose a smaller capacity or memory unit"
            if path is None and error.errno == errno.ENOSPC:
                fix += ", make /dev/shm larger (a container's with `--shm-size`), or keep the ring in a file (`path`)"
            raise StoreError(f"store {name!r} needs {sizes.total:,} bytes in {directory}; {error.strerror}: {fix}") from error
        os.pwrite(fd, _first_header(options, sizes, epoch or new_epoch()), 0)
        os.pwrite(fd, _first_entries(options), layout.HEADER.itemsize)
        fill(fd, sizes)
        _write_word(fd, "version", layout.VERSION)  # last: now it is a store
        try:
            remains = _remains(name, path)  # listed while the name is free: of no living process
            # src_dir_fd only makes Python call linkat(2) with AT_SYMLINK_FOLLOW; the path is absolute.
            os.link(f"/proc/self/fd/{fd}", where, src_dir_fd=fd, follow_symlinks=True)
        except FileExistsError:
            raise _exists(name, where) from None
        except OSError as error:
            raise refused(f"store {name!r} cannot be given its name, {where}", error, "make space there") from error
    except BaseException:
        os.close(fd)
        raise
    for left in remains:  # by a process killed while it removed a store
        with suppress(OSError):
            remove_file(left)
    try:
        return Segment(name, path, fd)
    except BaseException:  # it cannot even be mapped, as with `ulimit -v`: no process has it
        with suppress(OSError):
            remove_file(where)
        raise


def take_memory(fd: int, size: int, *, in_memory: bool) -> None:
    """Take all of a file's `size` bytes now: later a full file system would be a SIGBUS. Raises OSError that says why not."""
    there = os.fstatvfs(fd)
    free = there.f_bavail * there.f_frsize if there.f_blocks else size  # a tmpfs may have no limit
    if size > free:
        raise OSError(errno.ENOSPC, f"its file system has {free:,} free")
    if in_memory and size > (free := free_memory()):
        raise OSError(errno.ENOMEM, f"the host, or a control group that this process is in, has {free:,} left")
    os.posix_fallocate(fd, 0, size)


def check_memory(found: Segment, size: int) -> None:
    """Raise `StoreError` where a segment cannot be made again with `size` bytes."""
    directory = os.path.dirname(found.where) or "."
    there = os.statvfs(directory)
    free = there.f_bavail * there.f_frsize if there.f_blocks else size
    free = free if found.path is not None else min(free, free_memory())
    if size > free + found.sizes.total:
        raise StoreError(
            f"store {found.name!r} would need {size:,} bytes in {directory}, and has {found.sizes.total:,}; {free:,} more are free: choose a "
            "smaller capacity or memory unit"
        )


def _group(group: str | int | None) -> int:
    if not isinstance(group, str):
        return -1 if group is None else group
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise ValueError(f"group {group!r} does not exist on this host: see getent group") from None


def _exists(name: str, where: str) -> StoreExists:
    return StoreExists(
        f"store {name!r} exists already ({where}): attach to it, choose another name, or remove it with `shmstore rm {name}`"
    )


def attach(name: str, *, path: str | os.PathLike[str] | None, read_only: bool = False) -> Segment:
    """Map the segment of that name. Raises `StoreNotFound`, `LayoutMismatch`, or `StoreError` where rights are missing."""
    path = _file(path)
    where = where_is(name, path)
    try:
        fd = open_file(where, read_only=read_only)
    except FileNotFoundError:
        raise StoreNotFound(f"no store {name!r} ({where}): `shmstore ls` lists the stores of this host") from None
    except OSError as error:
        fix = f"it belongs to uid {owner_of(where)}: be that user, or create it for a group of both"
        raise refused(f"cannot open store {name!r} ({where})", error, fix) from error
    status = os.fstat(fd)
    if _is_foreign(status):
        os.close(fd)
        raise StoreError(
            f"store {name!r} ({where}) belongs to uid {status.st_uid}, with mode {stat_module.S_IMODE(status.st_mode):04o}: it is used if it "
            f"is this user's (uid {os.geteuid()}), root's, or with 0640 or 0660 that of a group of both; let its owner, or root, remove it"
        )
    return Segment(name, path, fd, read_only=read_only)


def _is_foreign(status: os.stat_result) -> bool:
    """True where a file is neither this user's, nor root's, nor shared as a store is: with a group that this user is in, and no other user.

    Any user may put a file into shared memory, under any name, and wait for a process that takes it for a store. Root may use every user's store, but
    none that all may write to.
    """
    user = os.geteuid()
    if status.st_uid in (user, 0):
        return False
    if status.st_mode & 0o007:
        return True
    shared = bool(status.st_mode & 0o040) and status.st_gid in (os.getegid(), *os.getgroups())
    return user != 0 and not shared


def is_own(name: str) -> bool:
    """True where what has a store's name in shared memory is for this user to put right: not another user's file that is no store."""
    where = where_is(name, None)
    try:
        status = os.stat(where, follow_symlinks=False)
        return not _is_foreign(status) and (status.st_uid == os.geteuid() or _looks_like_a_store(where, status.st_size))
    except OSError:
        return False


def has_users(where: str) -> bool:
    """True where a process is the producer or a reader of the segment in that file, whatever its layout."""
    try:
        fd = open_file(where, read_only=True)
    except OSError:
        return False
    try:
        return is_locked(fd)
    finally:
        os.close(fd)


def unlink(name: str, *, path: str | os.PathLike[str] | None, force: bool) -> None:
    """Remove a store: its name and all else that it has. Those attached find out. Raises `StoreNotFound`, and `LayoutMismatch` where they
    could not find out, because the segment is not one that this version can write to; unless `force`."""
    path = _file(path)
    where = where_is(name, path)
    segment = None
    try:
        segment = attach(name, path=path)
    except LayoutMismatch as error:
        if path is not None and not _begins_like_a_store(path):
            raise  # a mistyped path must not cost a file; below /dev/shm the name says enough
        if not force and has_users(where):
            raise LayoutMismatch(
                f"{error}. A process uses it (`fuser {where}` shows which): stop that first, or remove the store anyway with "
                f"`shmstore rm {name} --force`"
            ) from error
    except StoreNotFound:
        pass
    found = True
    try:
        remove_file(where)
    except FileNotFoundError:
        found = False
    except OSError as error:
        raise refused(
            f"cannot remove store {name!r} ({where})", error, f"it belongs to uid {owner_of(where)}: be that user"
        ) from error
    epoch = "[0-9a-f]+"  # of what is not a store any more, or was half removed before: all
    if segment is not None:
        segment.words[header_word("state")] = StoreState.REMOVED  # the next put, and the next wait, sees it
        epoch = f"{segment.epoch:x}"
        segment.close()
    kept = []
    for left in _remains(name, path, epoch):
        found = True
        try:
            remove_file(left)
        except FileNotFoundError:
            pass  # freed by an ack meanwhile
        except PermissionError:  # another member's of the group, in a directory where only its owner may remove it
            kept.append(f"{left} (uid {owner_of(left)})")
    if kept:
        raise StoreError(
            f"store {name!r} is removed, except files of other users next to it: remove {', '.join(kept)} as that user"
        )
    if not found:
        raise StoreNotFound(f"no store {name!r} ({where}): `shmstore ls` lists the stores of this host")


def _remains(name: str, path: str | None, epoch: str = "[0-9a-f]+") -> list[str]:
    """Paths of the overflow segments of the store of that epoch, or of all that had that name."""
    directory, base = os.path.split(where_is(name, path))
    kind = re.compile(rf"{re.escape(base)}@{epoch}\.\d+")
    return [f"{directory}/{entry}" for entry in entries(directory) if kind.fullmatch(entry)]


def _begins_like_a_store(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(len(layout.MAGIC)) == layout.MAGIC


def _looks_like_a_store(path: str, size: int) -> bool:
    """Whether a file's header, of any layout version, can be that of a store of that size: more than the first bytes, which any user may write."""
    with open(path, "rb") as file:
        head = file.read(layout.HEADER.itemsize)
    if len(head) < layout.HEADER.itemsize or head[: len(layout.MAGIC)] != layout.MAGIC:
        return False
    header = np.frombuffer(head, dtype=layout.HEADER)[0]
    version, epoch, capacity, unit, limit = (int(header[field]) for field in layout.SINCE_EVER)
    return version > 0 and epoch > 0 and capacity > 0 and unit > 0 and limit == capacity * unit <= size


def entries(directory: str) -> list[str]:
    """What is in a directory. Raises `StoreError` where it cannot be read."""
    try:
        return os.listdir(directory)
    except OSError as error:
        raise refused(f"{directory} cannot be listed", error, "it must be there, for this user to read and write") from error


def names() -> list[str]:
    """Names of the stores in this host's shared memory, sorted. A file whose name no store can have is none, no matter who made it."""
    found = (entry[len(PREFIX) :] for entry in entries(DIRECTORY) if entry.startswith(PREFIX))
    return sorted(name for name in found if _NAME.fullmatch(name))


def owner_of(where: str) -> int:
    """Return the uid to which a file belongs; -1 where that cannot be seen."""
    try:
        return os.stat(where).st_uid
    except OSError:
        return -1


# ---------------------------------------------------------------- header


def _first_header(options: CreateOptions, sizes: Sizes, epoch: int) -> bytes:
    header = np.zeros(1, dtype=layout.HEADER)
    pid = os.getpid()
    header["magic"] = layout.MAGIC
    header["epoch"] = epoch
    header["capacity"] = options.capacity
    header["memory_unit"] = options.memory_unit
    header["limit"] = options.limit
    header["arena"] = sizes.arena_size
    header["batch_mode"] = options.batch_mode
    header["flags"] = options.flags
    header["evict_after"] = options.evict_after
    header["first"] = options.first
    header["created_ms"] = calendar_ms()
    header["creator_pid"] = pid
    header["creator_start"] = start_time(pid)
    header["state"] = StoreState.LIVE
    header["entries"] = 1
    header["put"] = header["floor"] = header["oversized"] = options.first - 1
    header["ack_wanted"] = layout.DISARMED
    header["log_first"], header["synced"], header["sync_wanted"] = options.first, options.first - 1, options.first - 1
    header["log_size"], header["log_keep_ms"] = options.log_size, round(options.log_keep * 1000)
    header["home"] = options.home.encode()
    return header.tobytes()


def _first_entries(options: CreateOptions) -> bytes:
    table = np.zeros(layout.SUBSCRIPTIONS, dtype=layout.SUBSCRIPTION)
    table["wanted"] = layout.DISARMED
    table["get"] = table["ack"] = options.first - 1
    table["state"][0] = SubscriptionState.ACTIVE  # entry 0 holds everything until there is a subscription
    return table.tobytes()


def _write_word(fd: int, field: str, value: int) -> None:
    os.pwrite(fd, value.to_bytes(8, "little", signed=True), header_word(field) * 8)


def _checked_header(head: bytes, size: int, where: str) -> np.void:
    if len(head) < layout.HEADER.itemsize or head[: len(layout.MAGIC)] != layout.MAGIC:
        raise LayoutMismatch(f"{where} is not a store: {size} bytes that start with {head[:8]!r}, wanted {layout.MAGIC!r}")
    header: np.void = np.frombuffer(head, dtype=layout.HEADER)[0]
    version = int(header["version"])
    if version != layout.VERSION:
        raise LayoutMismatch(
            f"{where} has layout version {version}, this shmstore reads version {layout.VERSION}: "
            "use the shmstore that created it, or remove it with `shmstore rm` and start its producer again"
        )
    capacity, unit, limit, first = (int(header[field]) for field in ("capacity", "memory_unit", "limit", "first"))
    sane = (
        0 < capacity <= layout.MAX_CAPACITY
        and capacity & (capacity - 1) == 0
        and 0 < unit <= layout.MAX_ARENA
        and limit == capacity * unit <= layout.MAX_ARENA
        and int(header["batch_mode"]) in tuple(BatchMode)
        and 0 <= int(header["flags"]) < 2 * max(StoreFlag)
        and 0 <= first <= layout.MAX_SEQUENCE
        and float(header["evict_after"]) >= 0
        and 1 <= int(header["entries"]) <= layout.SUBSCRIPTIONS
        and bool(int(header["flags"]) & StoreFlag.LOG) == bool(header["home"])
        and (not header["home"] or int(header["log_size"]) > 0 <= int(header["log_keep_ms"]))
    )
    if not sane:
        raise LayoutMismatch(
            f"{where} has a header that contradicts itself: remove it with `shmstore rm` and start its producer again"
        )
    wanted = layout.sizes(capacity, limit)
    if size != wanted.total or int(header["arena"]) != wanted.arena_size:
        raise LayoutMismatch(
            f"{where} has {size} bytes, its header asks for {wanted.total}: it was cut off or changed; "
            "remove it with `shmstore rm` and start its producer again"
        )
    return header
