"""Try every schedule of a few processes on shared memory, with the store buffers of x86, or with the weaker order of ARM.

Model. Loads and stores go as on x86-64 (total store order): a store waits in its process's own buffer, in order, until it is
flushed to memory, at any later moment; a load sees the own buffer first, then memory. So a store that is overtaken by a later
load, the one reordering x86 makes, is a schedule like any other. A fence, and each operation on a lock or semaphore, is
done when the own buffer is empty; a heavy fence (membarrier) when moreover each other process has emptied its buffer at
some moment since it began, not all at the same one. A `mortal` process may be killed at any moment: what it stored is flushed
yet, its locks are free, and it does no more. With `timeouts`, a process that waits where no process at all can continue
returns from its wait without what it waited for, that many times.

The weaker model (`weak`). Stores leave the buffer in any order, but those to one place in theirs, and a release after
everything before it. A load may be as old as the process's last acquire: it gives what the place held at any moment since then,
but never goes back in the history of one place; an acquire brings that moment up to the store that it saw. A fence, a wait, a
lock and a try bring it up to now. A post and an unlock are releases, which wait in the buffer; a fence waits until that is empty;
a heavy fence is a fence in each process, at some moment since it began. So stores overtake stores, loads overtake stores and
loads, and an acquire overtakes the loads before it. All see stores in one order, as on ARM. Addresses and conditions that hang on
what was loaded keep no order, though they do on ARM. What is not there: a load that sees what was stored after a later store of
its own process was seen (load buffering). No release is such a store, and an acquire no such load; so it would take a plain load
before a plain store, and the rings are written by one process, which acquires an ack before.

Plan. `explore` walks depth first through all states: memory, buffers, and how far each process is in its `Steps`. A
state that was met before is not entered again: what can follow depends on nothing else.

Reduction. Where one process can make a step that no other can ever tell from the same step made earlier, only that step
is tried. A step `a` is such a one where, whatever the others do first, `a` stays possible and does the same, and
what they did is possible after `a` and does the same. Then each full schedule from here contains `a`, since nothing stops it,
and with `a` moved to its beginning it has the same end; outcomes are read at the end alone. Which steps they are:

- a load, where no other process has stored, or may yet store, to that place, and nothing older can be seen there;
- a flush, where none may yet look at the place, and none has stored or may yet store there. The own process's
  loads see the value in either place;
- a store into the buffer, where no other may yet begin a heavy fence: it is the only thing that looks at whole buffers;
- a fence whose buffer is empty (earlier, it lets more that is old be seen later), and the beginning and the end of a heavy fence. It
  begins at once: a later beginning waits for more of the others' stores, allows nothing that this one does not, and the process
  does nothing in between. For the same reason each other process counts as having emptied its buffer as soon as what it held at the
  beginning is flushed, unless it could see something old then: that ends at a moment when its buffer is empty;
- a post and an unlock, unless a process may yet look whether they happened other than by waiting: the one that waits can continue
  just as well earlier;
- a wait and a lock that can continue, where no other may yet take the same one or look at it; a try, where moreover none may release it.

For a mortal process, being killed is one more thing that may happen before each step. Killed before a step that no other process
sees, and right after it, come to the same, so this is tried before its stores, posts, waits and locks, which are then never made alone, and at its end;
and its death may release any lock.

What a process may yet do is what it was seen to do from that node of its steps on. While that grows, the walk is repeated. This
does not miss anything when it is stable: take a schedule in which another process does, before `a`, something that
forbids to move `a`, and let it be the first such thing. All before it moves behind `a`, so the walk has come to that very
thing after `a`, has seen it, and knew of it here. All walks end, since each step continues in some process's tree.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.interleavings.process import (
    ACQUIRE,
    CHANGES,
    DONE,
    FENCE,
    HEAVY,
    LEAVE,
    LOAD,
    LOCK,
    LOOK,
    LOOKS,
    NAMES,
    POST,
    RELEASE,
    STORE,
    TRY,
    UNLOCK,
    WAIT,
    End,
    Explosion,
    Learnt,
    Memory,
    Op,
    Place,
    Scenario,
    Sharing,
    Side,
    Steps,
)

STEP, FLUSH, KILL, LATE, TOLD = range(5)
Action = tuple[int, int, int]  # whose, which of the above, and which of several: what to flush, or what to see
Buffer = tuple[tuple[int, Any, int], ...]  # place, value, kind
Unseen = tuple[tuple[int, Any], ...]  # place, and what it held before: stores that a process need not have seen
DEAD = -1
FENCED, UNTOLD = -1, -2  # instead of how many of its stores a heavy fence still awaits
KILLED = "killed"
REPEATED = 30  # schedules of each scenario that are run once more with all sides together


class State(NamedTuple):
    """All that what follows depends on."""

    cells: tuple[Any, ...]  # by number; of a semaphore its count, of a lock who holds it
    nodes: tuple[int, ...]  # of each process
    buffers: tuple[Buffer, ...]
    unseen: tuple[Unseen, ...]
    awaited: tuple[tuple[int, ...] | None, ...]  # of each that is in a heavy fence: how many stores of each other it awaits
    late: tuple[int, ...]  # how often each was released by a time-out


class Moment:
    """A state on its way to the next."""

    __slots__ = ("awaited", "buffers", "cells", "late", "nodes", "unseen")

    def __init__(self, state: State) -> None:
        self.cells, self.nodes, self.buffers, self.unseen, self.awaited, self.late = map(list, state)

    def state(self) -> State:
        return State(
            tuple(self.cells),
            tuple(self.nodes),
            tuple(self.buffers),
            tuple(self.unseen),
            tuple(self.awaited),
            tuple(self.late),
        )


@dataclass(slots=True)
class Ended:
    """The end of one schedule, for the scenario to read."""

    results: dict[str, Any]
    cells: dict[Place, Any]

    def __getitem__(self, name: str) -> Any:
        return self.results[name]


@dataclass(slots=True)
class Findings:
    """What came of a scenario: a schedule for each outcome, and how much was looked at."""

    outcomes: dict[Any, list[str]] = field(default_factory=dict)
    states: int = 0  # in which a process had a choice
    schedules: int = 0  # that these stand for
    runs: int = 0  # of the processes' code


class Walk:
    """One process's steps each, and the states they reach together."""

    def __init__(
        self, scenario: Scenario, sharing: Sharing, mortal: Collection[str], timeouts: int, most: int, weak: bool
    ) -> None:
        self.scenario, self.sharing, self.timeouts, self.most, self.weak = scenario, sharing, timeouts, most, weak
        memory = Memory(sharing)
        bodies, self.read = scenario(memory)
        self.first = memory.cells
        self.names = list(bodies)
        self.mortal = [name in mortal for name in self.names]
        self.steps = [Steps(scenario, sharing, name, name in mortal) for name in self.names]
        self.alone = not sharing.everything
        self.everybody = range(len(self.names))

    # ------------------------------------------------------------ one step

    def start(self) -> State:
        n = len(self.names)
        cells = tuple(self.first.get(place, 0) for place in self.sharing.numbers)
        return State(cells, (0,) * n, ((),) * n, ((),) * n, (None,) * n, (0,) * n)

    def perform(self, now: Moment, action: Action) -> None:
        who, what, which = action
        cells, buffers = now.cells, now.buffers
        if what == FLUSH:
            self.flush(now, who, which)
            return
        if what == TOLD:
            awaited = now.awaited[who] or ()
            now.awaited[who], now.unseen[which] = (*awaited[:which], FENCED, *awaited[which + 1 :]), ()
            return
        if what == KILL:
            now.cells = [0 if held == self.names[who] and self.sharing.locks >> i & 1 else held for i, held in enumerate(cells)]
            now.nodes[who], now.awaited[who], now.unseen[who] = DEAD, None, ()
            return
        steps, node = self.steps[who], now.nodes[who]
        kind, place, value = steps.ops[node]
        answer = None
        if what == LATE:
            answer = 0
            now.late[who] += 1
        elif kind in (LOAD, ACQUIRE):
            answer = next((there for at, there, _ in reversed(buffers[who]) if at == place), None) if buffers[who] else None
            answer = self.see(now, who, which, kind, place) if answer is None else answer
        elif kind in (STORE, RELEASE) or (self.weak and kind in (POST, UNLOCK)):
            buffers[who] += ((place, value, kind),)
            answer = 1 if kind == POST else None
        elif kind == FENCE:
            now.unseen[who] = ()
        elif kind == HEAVY:
            if now.awaited[who] is None:
                now.awaited[who] = tuple(
                    FENCED if i == who else UNTOLD if now.unseen[i] else len(buffer) or FENCED for i, buffer in enumerate(buffers)
                )
                return
            now.awaited[who], now.unseen[who] = None, ()
        elif kind == LOOK:
            answer = cells[place]
        elif kind == WAIT:
            answer = 1
            cells[place] -= 1
        elif kind == POST:
            answer = 1
            cells[place] += 1
        elif kind == UNLOCK:
            cells[place] = 0
        elif kind in (LOCK, TRY):
            answer = 0 if cells[place] else 1
            cells[place] = cells[place] or self.names[who]
        if kind in (WAIT, LOCK, TRY) and what != LATE:
            now.unseen[who] = ()
        now.nodes[who] = steps.after(node, answer)
        if now.unseen[who]:  # of what it looks at no more it cannot see an old state
            looks = steps.may[now.nodes[who]]
            now.unseen[who] = tuple(each for each in now.unseen[who] if looks & LOOKS << each[0])
        if missing := len(self.sharing.numbers) - len(cells):  # places learnt of just now
            cells += [self.first.get(place, 0) for place in list(self.sharing.numbers)[-missing:]]

    def flush(self, now: Moment, who: int, which: int) -> None:
        """Let all see one store of a process."""
        buffer = now.buffers[who]
        place, value, kind = buffer[which]
        if kind in (POST, UNLOCK):
            value = 0 if kind == UNLOCK else now.cells[place] + 1
        elif self.weak:
            now.unseen[who] = tuple(each for each in now.unseen[who] if each[0] != place)
            if now.cells[place] != value:
                for other in self.everybody:
                    node = now.nodes[other]
                    if other != who and node != DEAD and self.steps[other].may[node] & LOOKS << place:
                        now.unseen[other] += ((place, now.cells[place]),)
        now.cells[place], now.buffers[who] = value, buffer[:which] + buffer[which + 1 :]
        for i, awaited in enumerate(now.awaited):
            if awaited and which < awaited[who]:
                now.awaited[i] = (*awaited[:who], awaited[who] - 1 or FENCED, *awaited[who + 1 :])

    def see(self, now: Moment, who: int, which: int, kind: int, place: int) -> Any:
        """What a process sees at `place`: the state before the `which`-th of the stores there that it need not have seen, or the newest."""
        unseen = now.unseen[who]
        stores = [i for i, (at, _) in enumerate(unseen) if at == place]
        if not stores:
            return now.cells[place]
        if which and kind == ACQUIRE:
            now.unseen[who] = unseen[stores[which - 1] + 1 :]
        elif which:
            now.unseen[who] = tuple(each for i, each in enumerate(unseen) if i not in stores[:which])
        return unseen[stores[which]][1] if which < len(stores) else now.cells[place]

    def ready(self, now: Moment, who: int, kind: int, place: int) -> bool:
        """True where the next step of process `who` can be made."""
        if kind in (LOAD, STORE, ACQUIRE, RELEASE, LEAVE) or (self.weak and kind in (POST, UNLOCK)):
            return True
        if kind == DONE or any(at == place for at, _, _ in now.buffers[who]):
            return False
        if kind == LOOK:
            return True
        if now.buffers[who] and not (self.weak and kind in (WAIT, LOCK, TRY)):
            return False
        if kind == HEAVY:
            return all(left == FENCED for left in now.awaited[who] or ())
        if kind == WAIT:
            return bool(now.cells[place] > 0)
        return kind != LOCK or not now.cells[place]

    # ------------------------------------------------------------ what can be done

    def actions(self, now: Moment) -> list[Action]:
        """What can be done next; where one step need not be compared with the others, that one alone."""
        nodes, buffers = now.nodes, now.buffers
        may = [0 if node == DEAD else steps.may[node] for node, steps in zip(nodes, self.steps, strict=True)]
        for who, buffer in enumerate(buffers):
            for place, _, _ in buffer:
                may[who] |= CHANGES << place
            if self.mortal[who] and nodes[who] != DEAD:
                may[who] |= CHANGES * self.sharing.locks
        found: list[Action] = []
        for who in self.everybody:
            others = 0
            for other in self.everybody:
                if other != who:
                    others |= may[other]
            for which in self.flushable(buffers[who]):
                if self.alone and not others & (LOOKS | CHANGES) << buffers[who][which][0]:
                    return [(who, FLUSH, which)]
                found.append((who, FLUSH, which))
            node = nodes[who]
            if node == DEAD:
                continue
            for other, awaited in enumerate(now.awaited[who] or ()):
                if awaited == UNTOLD and not buffers[other]:
                    if not now.unseen[other]:
                        return [(who, TOLD, other)]
                    found.append((who, TOLD, other))
            kind, place, _ = self.steps[who].ops[node]
            dying = self.mortal[who] and kind in (STORE, RELEASE, POST, WAIT, LOCK, LEAVE)
            if self.ready(now, who, kind, place):
                old = 0
                if kind in (LOAD, ACQUIRE) and now.unseen[who] and all(at != place for at, _, _ in buffers[who]):
                    old = sum(at == place for at, _ in now.unseen[who])
                if self.alone and not dying and not old and not others & self.steps[who].forbids[node]:
                    return [(who, STEP, 0)]
                found += [(who, STEP, which) for which in range(old + 1)]
            if dying and not buffers[who]:
                found.append((who, KILL, 0))
        if self.timeouts and all(what == KILL for _, what, _ in found):
            found += [
                (who, LATE, 0)
                for who in self.everybody
                if nodes[who] != DEAD and self.steps[who].ops[nodes[who]].kind == WAIT and now.late[who] < self.timeouts
            ]
        return found

    def flushable(self, buffer: Buffer) -> list[int]:
        """Which stores may be seen next."""
        if not self.weak:
            return [0] if buffer else []
        places = [place for place, _, _ in buffer]
        return [i for i, (place, _, kind) in enumerate(buffer) if not i or (kind == STORE and place not in places[:i])]

    def settle(self, now: Moment) -> list[Action]:
        """Make steps while there is no choice; return what can be done where that ends."""
        while len(actions := self.actions(now)) == 1:
            self.perform(now, actions[0])
        return actions

    # ------------------------------------------------------------ all of them

    def all(self) -> Findings:
        findings = Findings()
        paths: dict[State, list[Action]] = {}
        counted: dict[State, int] = {}  # how many schedules continue from there
        now = Moment(self.start())
        actions, state = self.settle(now), now.state()
        stack = [(state, iter(actions), [0])]
        trail: list[Action] = []
        if not actions:
            paths[state] = []
            stack[0][2][0] = 1
        while stack:
            state, left, count = stack[-1]
            action = next(left, None)
            if action is None:
                counted[state] = count[0]
                stack.pop()
                if stack:
                    stack[-1][2][0] += count[0]
                    trail.pop()
                continue
            now = Moment(state)
            self.perform(now, action)
            actions = self.settle(now)
            after = now.state()
            if after in counted:
                count[0] += counted[after]
                continue
            trail.append(action)
            if not actions:
                paths[after] = trail.copy()
            elif len(counted) > self.most:
                raise Explosion(f"more than {self.most} states")
            stack.append((after, iter(actions), [0 if actions else 1]))
        findings.states, findings.schedules = len(counted), count[0]
        findings.runs = sum(steps.runs for steps in self.steps)
        if not any(steps.grown for steps in self.steps):
            repeated = 0
            for state, path in paths.items():
                outcome = self._outcome(state, [self._end(state, who) for who in self.everybody], self.read)
                if outcome not in findings.outcomes or repeated < REPEATED:
                    told, repeated = self.repeat(path, outcome), repeated + 1
                    findings.outcomes.setdefault(outcome, told)
        return findings

    def _end(self, state: State, who: int) -> End | None:
        node = state.nodes[who]
        op = self.steps[who].ops[node]
        return op.value if node != DEAD and op.kind == DONE else None

    def _outcome(self, state: State, ends: list[End | None], read: Callable[[Any], Any]) -> Any:
        results: dict[str, Any] = {}
        cells = dict(self.first)
        for name, end in zip(self.names, ends, strict=True):
            results[name] = KILLED if end is None else end.result
            cells |= end.own if end else {}
        cells |= dict(zip(self.sharing.numbers, state.cells, strict=False))
        error = next(((name, *end.error) for name, end in zip(self.names, ends, strict=True) if end and end.error), None)
        waiting = tuple(name for who, name in enumerate(self.names) if ends[who] is None and state.nodes[who] != DEAD)
        outcome = ("error", *error) if error else ("stuck", *waiting) if waiting else read(Ended(results, cells))
        return ("late", outcome) if any(state.late) else outcome

    def repeat(self, path: list[Action], expected: Any) -> list[str]:
        """Run a schedule once more, all sides together on one stage: it must come to the same. Return it, to be read."""
        memory = Memory(self.sharing)
        bodies, read = self.scenario(memory)
        sides = [Side(memory, name, bodies[name], mortal) for name, mortal in zip(self.names, self.mortal, strict=True)]
        ops = [side.go(None) for side in sides]
        told: list[str] = []
        now, left = Moment(self.start()), list(path)
        places = list(self.sharing.numbers)
        while True:
            actions = self.actions(now)
            if not actions:
                break
            who, what, which = action = actions[0] if len(actions) == 1 else left.pop(0)
            node, buffer = now.nodes[who], now.buffers[who]
            assert node == DEAD or ops[who] == self.steps[who].ops[node], f"{self.names[who]} does {ops[who]} beside others"
            op, answer = ops[who], None
            self.perform(now, action)
            if what in (STEP, LATE) and now.nodes[who] != node:
                answer = self.steps[who].before[now.nodes[who]][1]
                ops[who] = sides[who].go(answer)
            told.append(f"{self.names[who]}: {self._told(what, which, op, buffer, answer, places)}")
        state = now.state()
        ends = [self._end(state, who) and ops[who].value for who in self.everybody]
        for side in sides:
            side.abandon()
        outcome = self._outcome(state, ends, read)
        assert outcome == expected, f"{outcome} came of a schedule that had led to {expected}: the sides share more than memory"
        return told

    def _told(self, what: int, which: int, op: Op, buffer: Buffer, answer: Any, places: list[Place]) -> str:
        if what == FLUSH:
            return f"flush {NAMES[buffer[which][2]]} {places[buffer[which][0]]} = {buffer[which][1]}"
        if what == TOLD:
            return f"heavy fence, in {self.names[which]}"
        if what == KILL:
            return "is killed"
        where = "" if op.kind in (FENCE, HEAVY, LEAVE) else f" {places[op.place]}"
        return f"{NAMES[op.kind]}{where}" + (
            f" = {op.value}" if op.kind in (STORE, RELEASE) else "" if answer is None else f": {answer}"
        )

    def close(self) -> None:
        for steps in self.steps:
            steps.close()


def explore(
    scenario: Scenario,
    *,
    mortal: Collection[str] = (),
    timeouts: int = 0,
    weak: bool = False,
    reduced: bool = True,
    most: int = 2_000_000,
) -> Findings:
    """Run `scenario` in every schedule; return what came of it.

    `scenario` sets up memory and returns the processes' bodies by name, and a function that reads the outcome from an
    `Ended`. Where no process can continue, the outcome is ("stuck", who waits); an exception is ("error", whose, which); after a
    time-out it is ("late", outcome). Processes must share nothing but memory, and always do the same on the same values.
    """
    sharing = Sharing(everything=not reduced)
    while True:
        sharing.news = False
        walk = Walk(scenario, sharing, mortal, timeouts, most, weak)
        try:
            while not sharing.news:
                for steps in walk.steps:
                    steps.grown = False
                findings = walk.all()
                if not any(steps.grown for steps in walk.steps):
                    return findings
        except Learnt:
            continue
        finally:
            walk.close()
