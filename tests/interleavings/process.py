"""One side of a scenario: real code of the store in a greenlet that stops wherever another process could matter.

A process acts on nothing but its memory, so what it does next depends only on the values it was given so far. `Steps` writes
that down as a tree: each node is an operation, each edge the value it was answered. The code runs once for each branch of the
tree, alone and on a stage of its own; the scheduler then walks through the trees of all processes, without running
anything. `Side` is a process that runs, for a new branch, or for all sides together when a schedule is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from greenlet import getcurrent, greenlet

Place = Hashable
Bodies = dict[str, Callable[[], Any]]

# ACQUIRE and RELEASE are a load and a store that keep an order where others do not: see the scheduler's plan.
LOAD, STORE, ACQUIRE, RELEASE, FENCE, HEAVY, WAIT, POST, LOCK, UNLOCK, TRY, LOOK, LEAVE, DONE = range(14)
NAMES = (
    *("load", "store", "acquire", "release", "fence", "heavy fence"),
    *("wait", "post", "lock", "unlock", "try", "look", "leave", "done"),
)
LONGEST = 2000  # steps of one process
#: What can be done at a place, as bits: one of each kind for each place.
LOOKS, TAKES, CHANGES = 1, 1 << 100, 1 << 200
DOES = {
    LOAD: LOOKS,
    ACQUIRE: LOOKS,
    LOOK: LOOKS,
    HEAVY: LOOKS,
    TRY: LOOKS | TAKES | CHANGES,
    WAIT: TAKES,
    LOCK: TAKES,
    STORE: CHANGES,
    RELEASE: CHANGES,
    POST: CHANGES,
    UNLOCK: CHANGES,
}
#: What no other process may do there when a step is to be made alone.
FORBIDS = {
    LOAD: CHANGES,
    ACQUIRE: CHANGES,
    LOOK: TAKES | CHANGES,
    TRY: LOOKS | TAKES | CHANGES,
    WAIT: LOOKS | TAKES,
    LOCK: LOOKS | TAKES,
    POST: LOOKS,
    UNLOCK: LOOKS,
}
BUFFERED = (STORE, RELEASE, POST, UNLOCK)  # the last two in the weaker model only
ANY_HEAVY = 0  # stands among the places for "a heavy fence"


class Op(NamedTuple):
    """What a process wants to do next, at which place (its number), with which value."""

    kind: int
    place: int
    value: Any


class End(NamedTuple):
    """What a process leaves: its result, or its error, and its own last word on each place."""

    result: Any
    error: tuple[str, str] | None
    own: dict[Place, Any]


class Abandoned(BaseException):
    """Ends a process whose run is of no further interest."""


class Explosion(Exception):
    """More steps or states than allowed: make the scenario smaller."""


class Learnt(Exception):
    """A place that was thought to be one process's own is not: what was found so far counts for nothing."""


@dataclass(slots=True)
class Sharing:
    """Which process touches which place, learnt on the way; and the number of each place that matters.

    A load of what no other writes, and a store to what no other touches, are no operations: no process can see when
    they happen. With `everything`, they are.
    """

    everything: bool = False
    numbers: dict[Place, int] = field(default_factory=lambda: {"any heavy fence": ANY_HEAVY})
    users: dict[Place, tuple[set[str], set[str]]] = field(default_factory=dict)  # who touches it, who writes it
    locks: int = 0  # the places that are locks, as bits
    news: bool = False

    def number(self, place: Place) -> int:
        if (number := self.numbers.get(place)) is None:
            number = self.numbers[place] = len(self.numbers)
        return number

    def lock(self, place: Place) -> int:
        number = self.number(place)
        self.news |= not self.locks >> number & 1
        self.locks |= 1 << number
        return number

    def note(self, name: str, place: Place, write: bool) -> None:
        if (users := self.users.get(place)) is None:
            users = self.users[place] = (set(), set())
        who, writers = users
        if name not in (writers if write else who):
            who.add(name)
            if write:
                writers.add(name)
            self.news |= len(who) > 1 and bool(writers) and not self.everything

    def written_by_others(self, name: str, place: Place) -> bool:
        return self.everything or bool(self.users[place][1] - {name})

    def touched_by_others(self, name: str, place: Place) -> bool:
        return self.everything or bool(self.users[place][0] - {name})


class Memory:
    """The words all processes share. Before the scenario begins, the setup uses them; then, whichever side runs."""

    current: ClassVar[Memory]

    def __init__(self, sharing: Sharing) -> None:
        self.cells: dict[Place, Any] = {}  # as the scenario begins
        self.sharing = sharing
        self.side: Side | None = None
        Memory.current = self

    def load(self, place: Place, *, acquire: bool = False) -> Any:
        side = self.side
        if side is None or side.over:
            return self.cells.get(place, 0)
        self.sharing.note(side.name, place, False)
        if self.sharing.written_by_others(side.name, place):
            return side.ask(ACQUIRE if acquire else LOAD, self.sharing.number(place))
        return side.own[place] if place in side.own else self.cells.get(place, 0)

    def store(self, place: Place, value: Any, *, release: bool = False) -> None:
        side = self.side
        if side is None:
            self.cells[place] = value
        elif not side.over:
            self.sharing.note(side.name, place, True)
            side.own[place] = value
            if self.sharing.touched_by_others(side.name, place):
                side.ask(RELEASE if release else STORE, self.sharing.number(place), value)

    def watch(self, *places: Place) -> None:
        """Let these be read at the end even where who wrote them was killed."""
        for place in places:
            self.sharing.note("whoever reads the end", place, False)

    def fence(self) -> None:
        self._ask(FENCE, ANY_HEAVY)

    def heavy_fence(self) -> None:
        self._ask(HEAVY, ANY_HEAVY)

    def post(self, semaphore: Place) -> None:
        if self.side is None:
            self.cells["semaphore", semaphore] = self.cells.get(("semaphore", semaphore), 0) + 1
        self._ask(POST, self.sharing.number(("semaphore", semaphore)))

    def wait(self, semaphore: Place) -> bool:
        """Take one; False where the time-out came first, which it does only when no other process can continue."""
        return bool(self._ask(WAIT, self.sharing.number(("semaphore", semaphore))))

    def value(self, semaphore: Place) -> int:
        return int(self._ask(LOOK, self.sharing.number(("semaphore", semaphore))) or 0)

    def lock(self, place: Place) -> None:
        self._ask(LOCK, self.sharing.lock(("lock", place)))

    def unlock(self, place: Place) -> None:
        self._ask(UNLOCK, self.sharing.lock(("lock", place)))

    def try_lock(self, place: Place) -> bool:
        return bool(self._ask(TRY, self.sharing.lock(("lock", place))))

    def taken(self, place: Place) -> bool:
        return bool(self._ask(LOOK, self.sharing.lock(("lock", place))))

    def _ask(self, kind: int, number: int) -> Any:
        return 1 if self.side is None or self.side.over else self.side.ask(kind, number)


Scenario = Callable[[Memory], tuple[Bodies, Callable[[Any], Any]]]


class Side:
    """A process that runs: `go` lets it continue, with the answer to its last operation, up to its next."""

    def __init__(self, memory: Memory, name: str, body: Callable[[], Any], mortal: bool) -> None:
        self.memory, self.name, self.body, self.mortal = memory, name, body, mortal
        self.own: dict[Place, Any] = {}
        self.over = False
        self.scheduler = getcurrent()
        self.run = greenlet(self._run)

    def _run(self, _: Any) -> Op:
        result, error = None, None
        try:
            result = self.body()
        except Abandoned:
            pass
        except BaseException as caught:  # an outcome like others
            error = type(caught).__name__, str(caught)[:150]
        if self.mortal and not self.over:
            with suppress(Abandoned):
                self.ask(LEAVE, ANY_HEAVY)  # until then it can be killed
        return Op(DONE, ANY_HEAVY, End(result, error, self.own))

    def go(self, answer: Any) -> Op:
        self.memory.side, Memory.current = self, self.memory
        op: Op = self.run.switch(answer)
        self.memory.side = None
        return op

    def ask(self, kind: int, place: int, value: Any = None) -> Any:
        answer = self.scheduler.switch(Op(kind, place, value))
        if self.over:
            raise Abandoned
        return answer

    def abandon(self) -> None:
        self.over = True
        if self.run and not self.run.dead:
            self.memory.side = self
            self.run.switch(None)


class Steps:
    """All that one process was seen to do: a tree of operations and answers.

    For each node, `may` says what the process may do, and where, from there on. It grows while the tree does; `grown` says that it did.
    `forbids` is what no other may yet do for the next step to be made alone.
    """

    def __init__(self, scenario: Scenario, sharing: Sharing, name: str, mortal: bool) -> None:
        self.scenario, self.sharing, self.name, self.mortal = scenario, sharing, name, mortal
        self.ops: list[Op] = []
        self.next: list[dict[Any, int]] = []
        self.before: list[tuple[int, Any]] = []
        self.depth: list[int] = []
        self.sides: list[Side | None] = []
        self.may: list[int] = []
        self.forbids: list[int] = []
        self.grown = False
        self.runs = 0
        side = self._side()
        self._add(-1, None, side.go(None), side)

    def _side(self) -> Side:
        self.runs += 1
        memory = Memory(self.sharing)
        return Side(memory, self.name, self.scenario(memory)[0][self.name], self.mortal)

    def after(self, node: int, answer: Any) -> int:
        """Return the node that follows `node` when it is answered so."""
        found = self.next[node].get(answer)
        if found is not None:
            return found
        side, self.sides[node] = self.sides[node], None
        if side is None:  # it continued with another answer: a new run, up to here
            side = self._side()
            path = []
            at = node
            while at >= 0:
                at, given = self.before[at]
                path.append(given)
            for given, expected in zip(reversed(path), self._path(node), strict=True):
                op = side.go(given)
                if op != self.ops[expected]:
                    if self.sharing.news:
                        raise Learnt
                    raise AssertionError(
                        f"{self.name} did {op} where it had done {self.ops[expected]}: it depends on more than memory"
                    )
        op = side.go(answer)
        if self.sharing.news:
            side.abandon()
            raise Learnt
        return self._add(node, answer, op, side)

    def _path(self, node: int) -> list[int]:
        path = []
        while node >= 0:
            path.append(node)
            node = self.before[node][0]
        return path[::-1]

    def _add(self, before: int, answer: Any, op: Op, side: Side) -> int:
        node = len(self.ops)
        self.ops.append(op)
        self.next.append({})
        self.before.append((before, answer))
        self.depth.append(self.depth[before] + 1 if before >= 0 else 0)
        if self.depth[node] > LONGEST:
            raise Explosion(f"{self.name} has made {LONGEST} steps: does it go round in circles?")
        self.sides.append(None if op.kind == DONE else side)
        may = DOES.get(op.kind, 0) << op.place
        self.may.append(may)
        self.forbids.append((LOOKS << ANY_HEAVY if op.kind in BUFFERED else 0) | FORBIDS.get(op.kind, 0) << op.place)
        if before >= 0:
            self.next[before][answer] = node
        while before >= 0 and self.may[before] | may != self.may[before]:
            self.may[before] |= may
            self.grown = True
            before = self.before[before][0]
        return node

    def close(self) -> None:
        """Abandon what still runs."""
        for side in self.sides:
            if side is not None:
                side.abandon()
        self.sides = [None] * len(self.sides)
