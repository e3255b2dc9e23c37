"""Copy: one table's copy, and what becomes of it when it cannot follow its table on its own.

    follows ──Reread──► aside ──First──► filling ──Last──► follows
       ▲                  │ ▲               │
       └──── Empty ───────┘ └──── Reread ───┘

aside     The copy stays as it was before the change that it could not follow, and takes no rows: its rows are being read again, or a person
          has to act before they can be. So does a copy that could not even be created; that it is aside is kept in the store's home.
filling   A snapshot of the table goes by. Its rows, and all changes between them, go into another copy next to this one.
          At its end that has every row, and its rows replace those of this one in one step.
          TRUNCATE and DROP leave no row that would have to be read, so the copy follows again. A dropped table's copy is removed where that is asked for.

A snapshot after a gap, where the server had purged what was to be read next, fills a copy that follows, too.

Steps follow from the events alone, and each is committed together with marks: numbers by name, kept with the copy itself. One says
how far the query is, the others in which state the copy is. So a batch that is run again, whatever line the crash came at, finds
the steps that are done, and the state after them.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence

from shmstore.consumer.copies.change_reduction import (
    HISTORY,
    OF_ONE_TABLE,
    Alter,
    CannotFollow,
    CopyDamaged,
    CopyDiffers,
    CopyRefuses,
    Empty,
    First,
    Last,
    Leave,
    Merge,
    Replace,
    Reread,
    RowsElsewhere,
    Step,
    Versions,
)
from shmstore.consumer.copies.target import Target, TargetFailed, TargetTable

ASIDE, FILLING, SNAPSHOT = "shmstore.aside", "shmstore.filling", "shmstore.snapshot"
FOLLOWS = {ASIDE: 0, FILLING: 0, SNAPSHOT: 0}
_NEEDS_HELP = 1  # as the mark ASIDE: reading the rows again is no use yet
_STEPS = 1 << 16  # most steps of a batch
_log = logging.getLogger(__name__)


class Copy:
    """The copy of table `name` at `path` in `target`.

    `aside`: the run before left it so, and it may have no target that says it. `missed`: it could not be read for a while, so that it lacks changes
    and has no mark that says it. `reads_again`: the producer can be asked for rows. With `remove_dropped` a copy goes with its table.

    All methods raise `CopyDamaged` where the copy cannot be read.
    """

    def __init__(
        self,
        target: Target,
        path: str,
        name: str,
        *,
        history: bool = False,
        store: str = "STORE",
        aside: bool = False,
        missed: bool = False,
        reads_again: bool = True,
        remove_dropped: bool = False,
    ) -> None:
        self._all, self._path, self._name, self._history = target, path, name, history
        self._command = f"shmstore snapshot {store} --tables '{name}'"
        self._target = target.table(path, name)
        self._next: tuple[int, TargetTable] | None = None
        self._missing = 0  # a request's number, where rows are wanted of a table without a copy
        self._reads_again, self._remove_dropped = reads_again, remove_dropped
        # aside, and without a target that could say it. A history begins with the rows that come: one that was moved away begins again
        self._homeless = aside and not history and not self._target.exists
        self._missed = missed and self._target.exists
        self._troubles: set[str] = set()  # that were reported

    # ---------------------------------------------------------------- state

    @property
    def target(self) -> TargetTable:
        """What holds its rows."""
        return self._target

    @property
    def aside(self) -> bool:
        """Whether the copy does not follow its table now."""
        return self._homeless or self._target.mark(ASIDE) > 0

    @property
    def wanted(self) -> str:
        """The id of the snapshot that the copy waits for; empty where it waits for none, or where one is going by."""
        number = self._missing or self._target.mark(ASIDE)
        if number <= _NEEDS_HELP or self._target.mark(FILLING) > 0 or self._target.keeps_history:
            return ""
        return f"{number & 0xFFFFFFFF:08x}"

    def _filling(self) -> TargetTable | None:
        number = self._target.mark(FILLING)
        if number <= 0:
            return None
        if self._next is None or self._next[0] != number:
            self._next = number, self._all.table(self._all.next_path(self._path, number), self._name)
        return self._next[1]

    # ---------------------------------------------------------------- steps

    def done(self, query: str, batch: int) -> bool:
        """True when all of this batch of this query is in the copy."""
        return self._target.mark(query) >= batch * _STEPS + _STEPS - 1

    def apply(self, steps: Sequence[Step | None], query: str, batch: int) -> None:
        """Bring the copy up to date, a commit for each step that is not None. Raises `CannotFollow`."""
        if len(steps) > _STEPS:  # their numbers would be those of the next batch
            steps = [Reread(f"its batch has {len(steps):,} steps, and can have {_STEPS:,}")]
        before = batch * _STEPS - 1  # the mark of all batches before this one
        if self._missed and (self._target.mark(query) < before or not batch):
            self._do(Reread("it could not be read, and lacks what changed meanwhile"), query, before)
        self._missed = False
        for number, step in enumerate(steps):
            if step is None:
                continue
            # the batch's last step has the highest number that the batch can have: `done` then knows it is whole
            version = batch * _STEPS + (_STEPS - 1 if number == len(steps) - 1 else number)
            other = self._filling()
            if max(self._target.mark(query), -1 if other is None else other.mark(query)) < version:
                try:
                    self._do(step, query, version)
                except (CannotFollow, TargetFailed):
                    raise
                except OF_ONE_TABLE as error:
                    self._give_up(step, error, query, version)  # on the way back nothing was committed

    def _give_up(self, step: Step, error: Exception, query: str, version: int) -> None:
        """Keep that the copy does not follow, and why. Raises `CopyDamaged` where the target takes not even that."""
        try:
            self._do(_reread(step, error), query, version)
        except (CannotFollow, TargetFailed):
            raise
        except OF_ONE_TABLE as again:
            raise CopyDamaged(f"the copy {self._path} of {self._name} takes neither rows nor a mark: {_line(again)}") from again

    def _do(self, step: Step, query: str, version: int) -> None:
        target, at = self._target, {query: version}
        # not the number of the step: another query, begun again at batch 0, must not find what this one left
        token = int.from_bytes(hashlib.sha256(f"{self._path}\0{query}\0{version}".encode()).digest()[:7], "big") | 2
        if isinstance(step, Reread):
            self._report(step)
            if target.exists:
                self._commit(None, {**at, **FOLLOWS, ASIDE: _NEEDS_HELP if step.help else token})
            elif not step.help:
                self._missing = token
            else:
                self._create_aside(step, at)
        elif isinstance(step, Empty):
            self._homeless = False
            if step.dropped and self._remove_dropped and not self._history:
                self._remove("was dropped", at)
                return
            if step.dropped and target.exists:
                self._say_kept()
            self._commit(step, {**at, **(FOLLOWS if self.aside else {})})
        elif isinstance(step, Leave):
            self._leave(step, at)
        elif self._homeless:
            if isinstance(step, First):
                self._follow(step, at)
        elif isinstance(step, First) and target.exists and (self.aside or step.gap):
            if not target.keeps_history:
                aside = {} if self.aside else {ASIDE: token}
                self._commit(None, {**at, **aside, FILLING: token, SNAPSHOT: step.snapshot})
        elif not self.aside:
            self._follow(step, at)
        elif (other := self._filling()) is None:
            pass  # the rows will be read again, and with them what this step does
        elif not isinstance(step, Last):
            other.commit(step, _first(other, at, history=False))
        elif step.snapshot == target.mark(SNAPSHOT):
            place = self._all.next_path(self._path, target.mark(FILLING))
            self._commit(Replace(place, step.schema, step.keys), {**at, **FOLLOWS})
            _log.info("the rows of %s were read again, and its copy follows it", self._name)

    def _commit(self, step: Step | None, marks: Mapping[str, int]) -> None:
        """Commit to the copy itself. What was to replace it goes where it is no longer to."""
        other = self._filling()
        self._target.commit(step, marks)
        if other is not None and FILLING in marks:
            self._next = None
            other.remove({})  # after a crash before this line it stays, and no process looks at it

    def _create_aside(self, step: Reread, at: Mapping[str, int]) -> None:
        """A copy without rows that says it is aside; where there can be none, this object and the store's home say it."""
        self._homeless = not self._history
        if step.schema is not None and not self._history:
            try:
                self._target.create(step.schema, step.keys, {**at, ASIDE: _NEEDS_HELP, HISTORY: 0})
            except (CannotFollow, TargetFailed):
                raise
            except OF_ONE_TABLE:
                return
            self._homeless = False

    def _remove(self, why: str, at: Mapping[str, int]) -> None:
        """The table is no more, and its copy goes, but for the mark `at`: no batch before it makes the copy again."""
        other = self._filling()
        self._target.remove(at)
        if other is not None:
            other.remove({})
        self._next = None
        _log.info("%s %s, and its copy %s is removed", self._name, why, self._path)

    def _leave(self, step: Leave, at: Mapping[str, int]) -> None:
        """The producer reads the table no further: its copy goes where that was asked for, or stays as it is."""
        if self._remove_dropped and not self._history:
            self._remove("is not read by the producer any more", at)
        elif self._target.exists:
            _log.warning(
                "the producer's filters leave out %s from %s on: its copy %s stays as it was there; remove_dropped=True removes it",
                *(self._name, step.place, self._path),
            )
            self._commit(None, at)

    def _say_kept(self) -> None:
        if "dropped" not in self._troubles:
            self._troubles.add("dropped")
            kept = (
                "keeps its history"
                if self._history
                else "has no rows any more, and is not removed: remove_dropped=True does that"
            )
            _log.info("%s was dropped or renamed: its copy %s %s", self._name, self._path, kept)

    def _follow(self, step: Step, at: Mapping[str, int]) -> None:
        at = _first(self._target, at, history=self._history)
        if isinstance(step, First | Last):
            self._missing, self._homeless = 0, False
            if not self._target.exists and not self._history:
                self._target.create(step.schema, step.keys, at)
        elif isinstance(step, Merge | Versions | RowsElsewhere) or self._target.exists:
            self._target.commit(step, at)

    def _report(self, step: Reread) -> None:
        if step.reason in self._troubles:
            return
        self._troubles.add(step.reason)
        by = (
            f": {self._command}"
            if self._reads_again
            else " TRUNCATE, or when the copy is removed: a store with several sources has no snapshots"
        )
        if step.help:
            end = f"put that right; then its rows are read again by{by}"
        elif self._target.keeps_history:
            end = f"its history ends there: move it away, and a new one begins by{by}"
        elif not self._reads_again:
            end = f"it follows again by{by}"
        else:
            _log.info("re-reading %s: %s; until its rows have come, its copy stays as it was", self._name, step.reason)
            return
        _log.warning("the copy of %s is set aside, and the others continue: %s; %s", self._name, step.reason, end)


def _first(target: TargetTable, marks: Mapping[str, int], *, history: bool) -> Mapping[str, int]:
    """`marks`, and, where they are a target's first ones, whether it keeps a history."""
    return marks if target.exists else {**marks, HISTORY: int(history)}


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def _reread(step: Step, error: Exception) -> Reread:
    """What becomes of a step that a copy cannot do."""
    ours = isinstance(error, CopyDiffers)
    text = str(error) if ours else _line(error)
    help = not ours or isinstance(error, CopyRefuses)
    if isinstance(step, Empty | Alter | Leave):
        return Reread(text, help)
    return Reread(text, help, step.schema, step.keys)
