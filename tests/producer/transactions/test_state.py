"""The state of a stream: its transitions, in Python and compiled."""

from __future__ import annotations

import random

import pytest

from shmstore import Position
from shmstore.producer.gtid import parse
from shmstore.producer.native_code import COMPILED
from shmstore.producer.transactions.state import HalfTransaction, TransactionState, new_state

UUID = "00000000-0000-4000-8000-000000000001"
FIELDS = (
    *("file", "file_number", "offset", "gtids", "tail", "in_transaction", "open", "transaction", "has_gtid", "unfinished"),
    *("order", "events", "rows", "differing", "marks", "props", "xa"),
)


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.skipif(not COMPILED, reason="no compiled code here"))])
def state(request: pytest.FixtureRequest) -> TransactionState:
    made = new_state(compiled_code=request.param)
    made.start(Position("binlog.000003", 100), parse(f"{UUID}:1-4"), None)
    made.advance(150)
    return made


def test_a_transaction(state: TransactionState) -> None:
    """It is named by its GTID, counts what is written, and is in the executed set once it is committed."""
    state.begin(f"{UUID}:5", 50)
    assert (state.in_transaction, state.open, state.transaction, state.begun) == (True, False, f"{UUID}:5", 100)
    state.opened()
    state.count(3)
    state.count(0)
    assert (state.open, state.events, state.rows) == (True, 2, 3)
    text = state.commit()
    assert (text, str(state.executed), state.gtids) == (f"{UUID}:1-5", f"{UUID}:1-5", f"{UUID}:1-4")
    state.gtids = text
    state.over()
    assert (state.in_transaction, state.open, state.transaction, state.events, state.rows) == (False, False, "", 0, 0)
    assert (state.file, state.file_number, state.offset, state.gtids) == ("binlog.000003", 3, 150, text)


def test_a_transaction_without_gtid(state: TransactionState) -> None:
    """It is named by where its first event begins, and changes no set."""
    state.begin("", 40)
    assert (state.transaction, state.has_gtid) == ("binlog.000003:110", False)
    assert state.commit() == state.gtids == str(state.executed) == f"{UUID}:1-4"


def test_a_rollback(state: TransactionState) -> None:
    """It leaves the transaction as it was when its first event had been read, though the stream is further on."""
    state.begin(f"{UUID}:5", 50)
    state.opened()
    state.order, state.xa, state.props = 7, "x", {"rows_query": "q"}
    state.mark("a")
    state.count(2)
    state.advance(700)
    state.restarted()
    assert (state.in_transaction, state.open, state.transaction, state.begun) == (True, False, f"{UUID}:5", 100)
    assert (state.offset, state.order, state.events, state.rows, state.xa, state.props, state.marks) == (700, 0, 0, 0, "", {}, {})


def test_savepoints(state: TransactionState) -> None:
    """What was counted since is taken back; the savepoint stays; order continues, because it counts what the binlog has."""
    state.begin(f"{UUID}:5", 50)
    state.opened()
    state.count(1)
    state.order, state.differing = 1, 77
    state.mark("a")
    for _ in range(2):
        state.count(5)
        state.order, state.differing = state.order + 1, 88
        state.rolled_back_to("a")
        assert (state.events, state.rows, state.differing) == (1, 1, 77)
    assert state.order == 3


def test_a_start_forgets_all_else(state: TransactionState) -> None:
    """The set that it is given is its own from then on, as a copy."""
    state.begin(f"{UUID}:5", 50)
    state.opened()
    given, tail = parse("0-1-7"), HalfTransaction("0-1-8", 2, 0)
    state.start(Position("binlog.000001", 4), given, tail)
    assert (state.in_transaction, state.open, state.gtids, state.tail) == (False, False, "0-1-7", tail)
    state.begin("0-1-8", 4)
    assert (state.commit(), str(given)) == ("0-1-8", "0-1-7")


@pytest.mark.skipif(not COMPILED, reason="no compiled code here")
def test_both_states_are_alike(seed: int) -> None:
    """Any transitions, in any order, leave the compiled state with the same fields as the one in Python."""
    chance = random.Random(seed)
    both = [new_state(compiled_code=False), new_state(compiled_code=True)]
    number = 4
    for _ in range(3000):
        number += 1
        transition, *arguments = chance.choice(
            [
                ("start", Position(chance.choice(["b.9", "ä.000012"]), chance.randrange(2**40)), parse(f"{UUID}:1-4"), None),
                ("set_executed", parse(f"0-1-{number}") if chance.random() < 0.2 else None),
                ("move", chance.choice(["b.9", "b.000010", "none"]), chance.randrange(2**33)),
                *[("advance", chance.randrange(2**32))] * 3,
                *[("begin", chance.choice([f"0-1-{number}", f"{UUID}:{number}", ""]), chance.randrange(2**16))] * 3,
                *[("opened",), ("count", chance.randrange(9)), ("mark", "a"), ("restarted",), ("commit",), ("over",)],
                *[("rolled_back_to", "a")] * ("a" in both[0].marks),
            ]
        )
        results = []
        for state in both:
            own = [one.copy() if transition == "set_executed" and one is not None else one for one in arguments]
            try:
                result = getattr(state, transition)(*own)
            except ValueError as error:  # a GTID of the other kind of server
                result = str(error)
            else:
                if transition == "commit":
                    state.gtids = result
            state.order += 1
            results.append((result, str(state.executed), [getattr(state, name) for name in FIELDS]))
        assert results[0] == results[1], transition
