"""Try every schedule of a few processes on shared memory, with the store buffers of x86.

Plan. Each process is a greenlet that runs real code of the store, until it stops. Its loads and stores go to
`Memory`, as on x86-64 (total store order): a store waits in its process's own buffer, in order, until it is flushed; a load
sees the own buffer first, then memory. A fence flushes the own buffer; a heavy fence (membarrier) everybody's. So a store
that is overtaken by a later load, the one reordering x86 makes, is a schedule like any other.

A process stops before each load of a word that another process writes, before each fence, and before each operation on a
lock or semaphore; where heavy fences are used, before each store that others see as well. There the scheduler chooses who
goes on, or whose oldest store is flushed. `explore` takes all choices, depth first, by running the scenario again and
again. It turns back where it has been before: in the same memory, with the same buffers, and with processes that have seen
the same. Which words are shared is learnt on the way: when that changes, it begins again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from greenlet import getcurrent, greenlet

Place = Hashable
Action = tuple[str, str]  # "step" or "flush", and whose
HEAVY = "heavy fences are used"


class Abandoned(BaseException):
    """Ends a process whose run is of no further interest."""


class Explosion(Exception):
    """More runs than allowed: make the scenario smaller."""


@dataclass(slots=True)
class Process:
    """One side of a scenario: its store buffer, and what it wants to do next."""

    name: str
    body: Callable[[], Any]
    buffer: deque[tuple[Place, Any]] = field(default_factory=deque)
    kind: str = ""
    place: Place = None
    run: greenlet | None = None
    done: bool = False
    seen: int = 0  # hash of all it has loaded
    result: Any = None
    error: BaseException | None = None


class Memory:
    """The words all processes share, and the scheduler's side of each access."""

    def __init__(self, known: dict[Place, tuple[set[str], set[str]]]) -> None:
        self.cells: dict[Place, Any] = {}
        self.changes: dict[Place, Any] = {}  # of the cells, since the processes run
        self.known = known  # place: (who accesses it, who writes it), over all runs so far
        self.news = False
        self.processes: list[Process] = []
        self.current: Process | None = None
        self.scheduler = getcurrent()
        self.abandoned = False
        self.counts: dict[Place, int] = {}
        self.held: dict[Place, str] = {}
        self.last = ""  # who went on last
        self.bounded = False
        self.switches = 0  # how often somebody was made to wait who could have gone on

    # ------------------------------------------------------------ the processes' side

    def shared(self, place: Place) -> bool:
        who, writers = self.known.get(place, ((), ()))
        return len(who) > 1 and bool(writers)

    def note(self, process: Process, place: Place, *, write: bool) -> None:
        who, writers = self.known.setdefault(place, (set(), set()))
        if process.name in (writers if write else who):
            return
        who.add(process.name)
        if write:
            writers.add(process.name)
        self.news |= self.shared(place)

    def load(self, place: Place) -> Any:
        process = self.current
        if process is None or self.abandoned:
            return self.cells.get(place, 0)
        self.note(process, place, write=False)
        if self.known[place][1] - {process.name}:
            self.stop("load", place)
        value = next((value for where, value in reversed(process.buffer) if where == place), None)
        if value is None:
            value = self.cells.get(place, 0)
        process.seen = hash((process.seen, value))
        return value

    def store(self, place: Place, value: Any) -> None:
        process = self.current
        if process is None or self.abandoned:
            self.cells[place] = value
            return
        self.note(process, place, write=True)
        if HEAVY in self.known and self.shared(place):
            self.stop("store", place)  # it matters whether a store is buffered before or after a heavy fence
        process.buffer.append((place, value))

    def fence(self) -> None:
        if self.current is not None and self.current.buffer:
            self.stop("fence", None)

    def heavy_fence(self) -> None:
        if self.current is not None:
            self.news |= HEAVY not in self.known
            self.known[HEAVY] = (set(), set())
            self.stop("heavy", None)

    def wait(self, semaphore: Place) -> None:
        self.stop("wait", semaphore)

    def post(self, semaphore: Place) -> None:
        self.stop("post", semaphore)

    def lock(self, place: Place) -> None:
        self.stop("lock", place)

    def unlock(self, place: Place) -> None:
        self.stop("unlock", place)

    def stop(self, kind: str, place: Place) -> None:
        """Hand control to the scheduler; come back when this step was chosen and done."""
        process = self.current
        if process is None or self.abandoned:
            return
        process.kind, process.place = kind, place
        self.scheduler.switch()
        if self.abandoned:
            raise Abandoned

    # ------------------------------------------------------------ the scheduler's side

    def start(self, process: Process) -> None:
        def run() -> None:
            try:
                process.result = process.body()
            except Abandoned:
                pass
            except BaseException as error:  # an outcome like others
                process.error = error
            process.done, process.kind = True, ""

        process.run = greenlet(run)
        self.processes.append(process)
        self.resume(process)

    def resume(self, process: Process) -> None:
        self.current = process
        process.run.switch()
        self.current = None
        self.flush_private()

    def flush_private(self) -> None:
        for process in self.processes:
            while process.buffer and not self.shared(process.buffer[0][0]):
                self.flush(process)

    def flush(self, process: Process) -> None:
        place, value = process.buffer.popleft()
        self.cells[place] = self.changes[place] = value

    def actions(self, switches: int) -> list[Action]:
        """What can be done next; nobody who could go on is interrupted when `switches` are used up."""
        found = []
        for process in self.processes:
            ready = not process.done
            if process.kind == "wait":
                ready &= self.counts.get(process.place, 0) > 0
            if process.kind == "lock":
                ready &= process.place not in self.held
            if ready:
                found.append(("step", process.name))
            if process.buffer:
                found.append(("flush", process.name))
        if self.switches >= switches and ("step", self.last) in found:
            found = [(what, name) for what, name in found if what == "flush" or name == self.last]
        return found

    def of(self, name: str) -> Process:
        return next(process for process in self.processes if process.name == name)

    def state(self) -> Hashable:
        """All that what follows depends on."""
        return (
            self.last,
            self.switches,
            frozenset(self.changes.items()),
            frozenset(self.counts.items()),
            frozenset(self.held.items()),
            tuple((tuple(p.buffer), p.seen, p.kind, p.place, p.done) for p in self.processes),
        )

    def perform(self, action: Action) -> None:
        what, name = action
        process = self.of(name)
        if what == "flush":
            self.flush(process)
            self.flush_private()
            return
        if name != self.last and self.bounded:
            self.switches += ("step", self.last) in self.actions(10**9)
            self.last = name
        if process.kind not in ("load", "store"):
            for each in self.processes if process.kind == "heavy" else [process]:
                while each.buffer:
                    self.flush(each)
        match process.kind:
            case "wait":
                self.counts[process.place] -= 1
            case "post":
                self.counts[process.place] = self.counts.get(process.place, 0) + 1
            case "lock":
                self.held[process.place] = name
            case "unlock":
                del self.held[process.place]
        if process.kind != "load":
            process.seen = hash((process.seen, process.kind))
        self.resume(process)

    def abandon(self) -> None:
        self.abandoned = True
        for process in self.processes:
            if not process.done:
                process.run.switch()


Scenario = Callable[[Memory], tuple[dict[str, Callable[[], Any]], Callable[[Memory], Any]]]


def explore(scenario: Scenario, switches: int = 10**9, most: int = 40_000) -> dict[Any, int]:
    """Run `scenario` in every schedule; return in how many runs each outcome came.

    `switches` bounds how often a process that could go on is interrupted for another; most errors need one or two. Waiting
    and the flushing of buffers are not bounded.

    `scenario` sets up memory and returns the processes' bodies by name, and a function that reads the outcome at the end.
    A run in which nobody can go on has the outcome ("stuck", who waits); an exception is ("error", what).
    """
    known: dict[Place, tuple[set[str], set[str]]] = {}
    while True:
        outcomes, again = _explore(scenario, known, switches, most)
        if not again:
            return outcomes


def _explore(scenario: Scenario, known: Any, switches: int, most: int) -> tuple[dict[Any, int], bool]:
    choices: list[tuple[list[Action], int]] = []  # at each depth: what could be done, and which of it is being done
    visited: set[Hashable] = set()
    outcomes: dict[Any, int] = {}
    for _ in range(most):
        memory = Memory(known)
        memory.bounded = switches < 10**9
        bodies, read = scenario(memory)
        for name, body in bodies.items():
            memory.start(Process(name, body))
        depth, fresh = 0, True
        while not memory.news and fresh and (actions := memory.actions(switches)):
            if depth == len(choices):
                state = memory.state()
                fresh = state not in visited
                visited.add(state)
                choices.append((actions if fresh else [], 0))
            if fresh:
                actions, which = choices[depth]
                memory.perform(actions[which])
                depth += 1
        if memory.news:
            memory.abandon()
            return {}, True
        if fresh:
            outcome = _outcome(memory, read)
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
        memory.abandon()
        while choices and choices[-1][1] + 1 >= len(choices[-1][0]):
            choices.pop()
        if not choices:
            return outcomes, False
        choices[-1] = choices[-1][0], choices[-1][1] + 1
    raise Explosion(f"more than {most} runs")


def _outcome(memory: Memory, read: Callable[[Memory], Any]) -> Any:
    for process in memory.processes:
        if process.error is not None:
            return "error", process.name, type(process.error).__name__, str(process.error)[:120]
    waiting = tuple(process.name for process in memory.processes if not process.done)
    return ("stuck", *waiting) if waiting else read(memory)
