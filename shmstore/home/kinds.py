"""The table of what is in a home: each kind of file, which name it has, who reads it back. Removal, listing and checking walk this table.

Whatever a home is to hold besides is a row here, or it outlives its store.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NamedTuple

from shmstore.atomic_file import sync
from shmstore.errors import StoreError, refused
from shmstore.home import acks, audit, control, definitions, identity, pauses, reader_state, snapshots
from shmstore.home.home import FIX, LOCK, Home
from shmstore.stored_json import parse_json, read_bytes, read_json

LOG_REMOVED: Final = "log.removed-"
TEMPORARY: Final = "_*.tmp"


# What a backup does with a kind: after a crash it is never ahead of the log, or never behind it; or it is of the moment, and in no backup.
NEVER_AHEAD: Final = "never ahead"
NEVER_BEHIND: Final = "never behind"
MOMENT: Final = "moment"


class FileKind(NamedTuple):
    """One kind of file. `pattern` matches its name; `what` it is. `of_source`: it is also in the folder of each of several sources.
    `check` raises where one that is there cannot be read back."""

    what: str
    pattern: str
    check: Callable[[Home, Path], object] | None = None
    of_source: bool = False
    of_reader: bool = False  # the name begins with the subscription's, with which it goes
    folder: bool = False
    order: str = ""  # in a backup, where it is not what most are

    @property
    def backup(self) -> str:
        """Whether, after a crash, it may be behind the log or ahead of it: what readers keep follows what they read."""
        return self.order or (NEVER_AHEAD if self.of_reader else NEVER_BEHIND)


def _read_history(home: Home, path: Path) -> None:
    for line in read_bytes(path).splitlines()[:1]:
        parse_json(line)["shmstore_schema_history"]


def _read_request(home: Home, path: Path) -> None:
    if not path.is_file():
        raise StoreError(f"{path} is not a regular file: remove it")
    found = dict(snapshots.ProgressFile(home).asked())
    if path in found and found[path].problem:
        raise StoreError(found[path].problem)


KINDS: Final = (
    FileKind("log", "log", lambda home, _: identity.read(home), folder=True, order=MOMENT),
    FileKind("removed log", f"{LOG_REMOVED}*", folder=True, order=MOMENT),
    FileKind(
        "checkpoint",
        f"*{acks.ENDING}",
        lambda home, at: acks.CheckpointFile.of(home, at.name.removesuffix(acks.ENDING)).load(),
        of_reader=True,
    ),
    FileKind("copies set aside", f"*{reader_state.ASIDE}", lambda _, at: reader_state.tables_in(at), of_reader=True),
    FileKind("planned micro-batch", f"*{reader_state.PLANNED}", lambda _, at: reader_state.planned_in(at), of_reader=True),
    FileKind("batch of copies", f"*{reader_state.BATCH}", lambda _, at: reader_state.batch_in(at), of_reader=True),
    FileKind("filter of a client", f"*{reader_state.FILTER}", lambda _, at: reader_state.filter_in(at), of_reader=True),
    # A client that was forgotten may come again, with batches of before in its hands: their ids must not be given again.
    FileKind("batches of a client", f"*{reader_state.BATCHES}", order=NEVER_AHEAD),
    FileKind("name of the server", "origin", lambda _, at: read_json(at)["version"], of_source=True),
    FileKind(
        "definitions of tables",
        definitions.NAME,
        lambda home, at: definitions.DefinitionsFile(home, _source_of(home, at)).read(),
        of_source=True,
    ),
    FileKind("schema history", "schemas-*.jsonl", _read_history, of_source=True),
    FileKind("schema history put aside", "schemas-*.old", of_source=True),
    FileKind("snapshot progress", snapshots.NAME, lambda home, _: snapshots.ProgressFile(home).load(), order=NEVER_AHEAD),
    FileKind("snapshot request", f"snapshot-*{snapshots.REQUEST}", _read_request, order=MOMENT),
    FileKind("filters in force", "filters.in-force", lambda _, at: read_json(at)["version"], of_source=True),
    FileKind("open problems", "problems.open", lambda _, at: read_json(at)["version"], of_source=True, order=MOMENT),
    FileKind("request to the producer", f"control-*{control.REQUEST}", control.check_request, order=MOMENT),
    FileKind("answers of the producer", control.NAME, lambda _, at: control.read_answers(at), order=MOMENT),
    FileKind("pause of the producer", pauses.PRODUCER, lambda _, at: pauses.read(at)),
    FileKind(
        "pause of a subscription", f"*{pauses.SUBSCRIPTION}", lambda _, at: pauses.read(at), of_reader=True, order=NEVER_BEHIND
    ),
    FileKind("audit log", audit.NAME, lambda home, _: audit.lines(home)),
    FileKind("digests of verify", "verify", folder=True, order=MOMENT),
    FileKind("file of a writer that was killed", TEMPORARY, of_source=True, order=MOMENT),
)


def _source_of(home: Home, path: Path) -> str:
    return next((source for source in home.sources() if home.of_source(source) == path.parent), "")


def files_of(home: Home) -> Iterator[tuple[FileKind, Path]]:
    """Yield what is in a home, with its kind; what is of no kind, and the lock, are left out. Raises `StoreError`."""
    for folder in (home.path, *map(home.of_source, home.sources())):
        try:
            names = sorted(os.listdir(folder))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise refused(
                f"the home {home.path} cannot be read", error, f"do this as the user whom it belongs to, or {FIX}"
            ) from error
        kinds = [kind for kind in KINDS if kind.of_source or folder == home.path]
        for name in names:
            kind = next((kind for kind in kinds if fnmatchcase(name, kind.pattern)), None)
            if kind is not None and kind.folder == (folder / name).is_dir():
                yield kind, folder / name


def problems(home: Home) -> list[str]:
    """Return a line for each file of a home that cannot be read back. Nothing is changed. Raises `StoreError`."""
    found = []
    for kind, path in files_of(home):
        try:
            if kind.check is not None:
                kind.check(home, path)
        except StoreError as error:
            found.append(f"{kind.what}: {error}")
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            found.append(f"{kind.what} {path} cannot be read: {error!r}")
    return found


def remove_log(home: Home, epoch: int) -> None:
    """Remove the log of a home, where it is of that `epoch`, or was not begun; call it with the right to append. Raises `StoreError`."""
    with _removing(home) as there:
        if there and home.epoch_there() in (None, epoch) and home.log.is_dir():
            _take_away(home.log)
        if there and os.listdir(home.path) == [LOCK]:
            _drop(home)


def remove(home: Home) -> bool:
    """Remove a home with all that is of some kind in it; return whether there was anything. Raises `StoreError`.

    The log is renamed first: from then on no process finds the store, whole or half, and its writers are refused. What a removal that was
    killed left, the next one removes.
    """
    with _removing(home) as there:
        if not there:
            return False
        found = list(files_of(home))
        for _, path in sorted(found, key=lambda each: each[1] != home.log):
            _take_away(path)
        _drop(home)
    return bool(found)


def forget(home: Home, subscription: str) -> None:
    """Remove what is kept of one subscription. Raises `StoreError`."""
    for kind in KINDS:
        if kind.of_reader:
            home.remove(home.path / f"{subscription}{kind.pattern.removeprefix('*')}", kind.what)


def tidy(home: Home) -> None:
    """Remove the files of writers that were killed. Call it while all bytes of the home are locked. Raises `StoreError`."""
    for kind, path in files_of(home):
        if kind.pattern == TEMPORARY:
            _take_away(path)


@contextmanager
def _removing(home: Home) -> Iterator[bool]:
    """Keep all writers of the home away; False where there is no such folder. Raises `StoreError`."""
    try:
        try:
            os.stat(home.path)
        except FileNotFoundError:
            yield False
            return
        with home.locked():
            yield True
    except StoreError:
        raise
    except OSError as error:
        fix = f"remove it as the user whom it belongs to, or {FIX}"
        raise refused(f"the home {home.path} cannot be removed", error, fix) from error


def _take_away(path: Path) -> None:
    """Remove a file or a folder; a folder gets another name first, so that it is not found half removed. Raises OSError."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    if not path.name.startswith(LOG_REMOVED):
        renamed = path.with_name(f"{LOG_REMOVED}{os.urandom(4).hex()}")
        path.rename(renamed)
        sync(path.parent)
        path = renamed
    shutil.rmtree(path)


def _drop(home: Home) -> None:
    """Remove the folder, but for what is not ours in it, and the lock: a process that waits for it sees that it is no longer the home's."""
    (home.path / LOCK).unlink(missing_ok=True)
    with suppress(OSError):
        for source in home.sources():
            home.of_source(source).rmdir()
    with suppress(OSError):
        home.path.rmdir()
