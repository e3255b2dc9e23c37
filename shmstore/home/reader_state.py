"""What a reader keeps for itself in the store's home, for its own next run and for viewers.

SUBSCRIPTION.copies-aside    written by a query that keeps copies: those that do not follow their tables now
SUBSCRIPTION.planned         written by a typed query of Spark 4.0 or 4.1: the end of a micro-batch in front of a DDL
SUBSCRIPTION.copies-batch    written by the process that keeps copies (`shmstore.consumer.copies.copying`): the batch that it applies, or applied last
SUBSCRIPTION.filter          written by the server of canal's protocol: which tables the client has asked for
SUBSCRIPTION.batches         written by the server of canal's protocol, in place: the batches that a client was given
                             (`shmstore.consumer.wire.session.unacked` draws it)
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from shmstore.errors import StoreError, refused
from shmstore.home.home import FIX, Home, May
from shmstore.memory.segment import check_name
from shmstore.stored_json import read_json

ASIDE: Final = ".copies-aside"
PLANNED: Final = ".planned"
BATCH: Final = ".copies-batch"
BATCHES: Final = ".batches"
FILTER: Final = ".filter"
FORMAT: Final = 1


class CopiesAside(NamedTuple):
    """The tables (``database.table``) whose copies do not follow them now, and those of them whose copies could not be read, and so have no mark of it."""

    tables: frozenset[str] = frozenset()
    damaged: frozenset[str] = frozenset()


def keep_aside(home: Home, subscription: str, tables: Iterable[str], damaged: Iterable[str] = ()) -> None:
    """Write `CopiesAside` of the query with this subscription. Raises `StoreError`."""
    content = json.dumps({"shmstore_copies_aside": FORMAT, "tables": sorted(tables), "damaged": sorted(damaged)}).encode()
    home.replace(home.path / f"{check_name(subscription)}{ASIDE}", content, "list of copies set aside")


def kept_aside(home: Home, subscription: str) -> CopiesAside:
    """Return what `keep_aside` wrote. Raises `StoreError` where it cannot be read: a copy that is in it would follow with what it has missed left out."""
    path = home.path / f"{check_name(subscription)}{ASIDE}"
    try:
        value = read_json(path)
        return CopiesAside(
            frozenset(_tables(value)), frozenset(map(str, value.get("damaged", ()) if isinstance(value, dict) else ()))
        )
    except FileNotFoundError:
        return CopiesAside()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{path}, which says which copies of subscription {subscription!r} do not follow their tables, cannot be read: {error!r}; "
            "let this user read it; where its content is lost, remove the file, and prove the copies with `shmstore verify`"
        ) from error


def copies_aside(home: Home) -> dict[str, list[str]]:
    """Return the tables that `keep_aside` wrote, by subscription; nothing of what this user may not read, or is damaged."""
    return _by_subscription(home, ASIDE, tables_in)


def _by_subscription(home: Home, ending: str, read: Callable[[Path], list[str]]) -> dict[str, list[str]]:
    """What `read` finds in the files of this ending, by subscription."""
    found: dict[str, list[str]] = {}
    with suppress(OSError):
        for path in sorted(home.path.glob(f"*{ending}")):
            with suppress(OSError, ValueError, KeyError, TypeError):
                found[path.name.removesuffix(ending)] = read(path)
    return found


def tables_in(path: Path) -> list[str]:
    """Return the tables in one such file. Raises OSError, and what a damaged one raises: ValueError, KeyError, TypeError."""
    return _tables(read_json(path))


def _tables(value: Any) -> list[str]:
    if isinstance(value, dict):  # the first ones were a list alone
        if value["shmstore_copies_aside"] != FORMAT:
            raise ValueError(f"it is not of format {FORMAT}")
        value = value["tables"]
    return [str(table) for table in value]


def keep_planned(home: Home, subscription: str, end: tuple[int, int] | None) -> None:
    """Write the epoch and the last event of a micro-batch that a query planned in front of a DDL; None for none. Raises `StoreError`."""
    path = home.path / f"{check_name(subscription)}{PLANNED}"
    if end is None and not path.exists():
        return
    epoch, sequence = end or (0, -1)
    home.replace(path, json.dumps({"epoch": epoch, "sequence": sequence}).encode(), "end of a planned micro-batch")


def planned_end(home: Home, subscription: str, epoch: int) -> int:
    """Return the last event that `keep_planned` wrote in this epoch; -1 where there is none, or what exists cannot be read."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        found, sequence = planned_in(home.path / f"{check_name(subscription)}{PLANNED}")
        return sequence if found == epoch else -1
    return -1


def planned_in(path: Path) -> tuple[int, int]:
    """Return the epoch and the event in one such file. Raises OSError, and what a damaged one raises: ValueError, KeyError, TypeError."""
    value = read_json(path)
    return int(value["epoch"]), int(value["sequence"])


class CopiesBatch(NamedTuple):
    """Batch `number` of the `query` that keeps copies in `target`: events `first` to `last` of the store's life `epoch`."""

    query: str
    target: str
    number: int
    epoch: int
    first: int
    last: int


def keep_batch(home: Home, subscription: str, batch: CopiesBatch, may: May | None = None) -> None:
    """Write which events the batch has that is to be applied now. Raises `StoreError`, and what `may` raises."""
    content = json.dumps({"shmstore_copies_batch": FORMAT, **batch._asdict()}).encode()
    home.replace(home.path / f"{check_name(subscription)}{BATCH}", content, "batch of copies", may)


def kept_batch(home: Home, subscription: str) -> CopiesBatch | None:
    """Return what `keep_batch` wrote; None where there is none. Raises `StoreError` where it cannot be read."""
    path = home.path / f"{check_name(subscription)}{BATCH}"
    try:
        return batch_in(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{path}, which says how far the copies of subscription {subscription!r} are, cannot be read: {error!r}; where the file is lost, "
            f"`shmstore unsubscribe` it, and begin again with new rows (--snapshot) in a new target"
        ) from error


def batch_in(path: Path) -> CopiesBatch:
    """Return the batch in one such file. Raises OSError, and what a damaged one raises: ValueError, KeyError, TypeError."""
    value = read_json(path)
    if value["shmstore_copies_batch"] != FORMAT:
        raise ValueError(f"it is not of format {FORMAT}")
    number, epoch, first, last = [int(value[name]) for name in ("number", "epoch", "first", "last")]
    return CopiesBatch(str(value["query"]), str(value["target"]), number, epoch, first, last)


def keep_filter(home: Home, subscription: str, expressions: list[str], may: May | None = None) -> None:
    """Write which tables a client of canal's protocol wants, as regular expressions on ``database.table``; none: it has not said. Raises `StoreError`,
    and what `may` raises."""
    path = home.path / f"{check_name(subscription)}{FILTER}"
    if not expressions:
        if path.exists():
            home.remove(path, "filter of a client", may)
        return
    with suppress(OSError, ValueError, KeyError, TypeError):
        if filter_in(path) == expressions:
            return
    content = json.dumps({"shmstore_client_filter": FORMAT, "expressions": expressions}).encode()
    home.replace(path, content, "filter of a client", may)


def filters_kept(home: Home) -> dict[str, list[str]]:
    """Return what `keep_filter` wrote, by subscription; nothing of what this user may not read, or is damaged."""
    return _by_subscription(home, FILTER, filter_in)


def filter_in(path: Path) -> list[str]:
    """Return the expressions in one such file. Raises OSError, and what a damaged one raises: ValueError, KeyError, TypeError."""
    value = read_json(path)
    if value["shmstore_client_filter"] != FORMAT:
        raise ValueError(f"it is not of format {FORMAT}")
    return [str(each) for each in value["expressions"]]


def batches_path(home: Home, subscription: str) -> Path:
    """Return where the batches are that a client of canal's protocol was given."""
    return home.path / f"{check_name(subscription)}{BATCHES}"


@contextmanager
def opened(home: Home, path: Path) -> Iterator[int]:
    """Open a file of the home that is written in place, for a moment, and make it where it is not there. Raises `StoreError`."""
    fd = -1
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        home.give_rights(fd, path.parent)
        yield fd
    except OSError as error:
        raise refused(f"{path} cannot be written", error, f"let this user write there, or {FIX}") from error
    finally:
        if fd >= 0:
            os.close(fd)
