"""GTID sets against plain Python sets, and against MySQL itself."""

from __future__ import annotations

import contextlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmstore.producer.gtid import ExecutedSet, GtidSet, MariadbGtids, parse
from tests.servers.server import Server

UUIDS = [f"{i:08x}-0000-4000-8000-00000000000{i}" for i in range(3)]
TAGS = ["", "", "blue", "_x1"]
members = st.frozensets(st.tuples(st.sampled_from(UUIDS), st.sampled_from(TAGS), st.integers(1, 30)), max_size=40)
untagged = st.frozensets(st.tuples(st.sampled_from(UUIDS), st.just(""), st.integers(1, 30)), max_size=40)
Model = frozenset[tuple[str, str, int]]


def build(model: Model, seed: int = 0) -> GtidSet:
    """The set of `model`, added one by one in some order."""
    result = GtidSet()
    order = sorted(model)
    random.Random(seed).shuffle(order)
    for uuid, tag, number in order:
        result.add(f"{uuid}:{tag}:{number}" if tag else f"{uuid}:{number}")
    return result


@given(members, st.integers(0, 9))
def test_order_does_not_matter(model: Model, seed: int) -> None:
    """However transactions arrive, the set is the same, and so is its text."""
    assert build(model, seed) == build(model, seed + 1)
    assert str(build(model, seed)) == str(build(model, seed + 1))


@given(members)
def test_text_and_bytes_come_back(model: Model) -> None:
    """Text and binary form both give the set back."""
    one = build(model)
    assert GtidSet(str(one)) == one
    assert GtidSet.decode(one.encode()) == one
    assert str(GtidSet.decode(one.encode())) == str(one)
    assert bool(one) == bool(model)


@given(members, members)
def test_algebra_is_that_of_sets(a: Model, b: Model) -> None:
    """Difference, union, cover and membership are those of sets of transactions."""
    one, other = build(a), build(b)
    assert one - other == build(a - b)
    assert one.covers(other) == (b <= a)
    assert one.shared(other) == build(a & b)
    union = one.copy()
    union.update(other)
    assert union == build(a | b)
    assert one == build(a), "the copy is independent"
    for uuid, tag, number in list(b)[:3]:
        assert ((f"{uuid}:{tag}:{number}" if tag else f"{uuid}:{number}") in one) == ((uuid, tag, number) in a)


def test_contained_intervals_do_not_shrink_a_set() -> None:
    """Adding known transactions, in any shape, changes nothing (Canal takes the later interval's end)."""
    one = GtidSet(f"{UUIDS[0]}:1-100")
    one.add_interval(UUIDS[0], "", 5, 7)
    one.add(f"{UUIDS[0]}:50")
    assert str(one) == f"{UUIDS[0]}:1-100"
    assert str(GtidSet(f"{UUIDS[0]}:5-9:1-2:3:20-19")) == f"{UUIDS[0]}:1-3:5-9"


@pytest.mark.parametrize(
    "text",
    ["x", f"{UUIDS[0]}", f"{UUIDS[0]}:", f"{UUIDS[0]}:0", f"{UUIDS[0]}:1-x", f"{UUIDS[0]}:9tag:1", f"{UUIDS[0]}:1,,y:1", "0-1-2"],
)
def test_bad_text_is_refused(text: str) -> None:
    """What is not a GTID set raises ValueError."""
    with pytest.raises(ValueError, match="GTID set"):
        GtidSet(text)


@given(st.binary(max_size=80))
def test_bad_bytes_are_refused(body: bytes) -> None:
    """Any bytes are a set or a ValueError, at once."""
    with contextlib.suppress(ValueError):
        assert GtidSet.decode(GtidSet.decode(body).encode()) == GtidSet.decode(body)


@pytest.mark.server
def test_mysql_agrees(mysql: Server, seed: int) -> None:
    """MySQL prints, subtracts and compares the same sets in the same way, tags included."""
    rng = random.Random(seed)
    universe = [(uuid, tag, n) for uuid in UUIDS for tag in ("", "blue", "_x1") for n in range(1, 12)]
    with mysql.connect() as connection, connection.cursor() as cursor:
        for _ in range(60):
            a, b = (frozenset(rng.sample(universe, rng.randrange(len(universe)))) for _ in range(2))
            one, other = build(a), build(b)
            cursor.execute(
                "SELECT GTID_SUBTRACT(%s, %s), GTID_SUBSET(%s, %s), GTID_SUBTRACT(%s, '')",
                (str(one), str(other), str(other), str(one), str(one)),
            )
            difference, subset, itself = cursor.fetchone()
            assert difference.replace("\n", "").replace(" ", "") == str(one - other)
            assert bool(subset) == one.covers(other)
            assert itself.replace("\n", "").replace(" ", "") == str(one)


@settings(max_examples=50)
@given(st.dictionaries(st.integers(0, 5), st.tuples(st.integers(1, 9), st.integers(1, 99)), max_size=4))
def test_mariadb_positions(domains: dict[int, tuple[int, int]]) -> None:
    """A position keeps the last transaction of each domain; it covers what is at or before it."""
    text = ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in domains.items())
    one = MariadbGtids(text)
    assert MariadbGtids(str(one)) == one
    assert one.covers(MariadbGtids())
    assert one.covers(one.copy())
    further = one.copy()
    further.add("3-1-100")
    assert further.covers(one)
    assert not one.covers(further)
    assert str(further) == str(MariadbGtids(str(further)))


positions = st.dictionaries(st.integers(0, 3), st.integers(1, 5), max_size=4)


@settings(max_examples=50)
@given(positions, positions)
def test_what_mariadb_positions_share(a: dict[int, int], b: dict[int, int]) -> None:
    """Two positions share of each domain what the one has that is less far; what one lacks of the other are the domains where it is."""
    one, other = (MariadbGtids(",".join(f"{domain}-1-{number}" for domain, number in model.items())) for model in (a, b))
    assert str(one.shared(other)) == ",".join(f"{domain}-1-{min(a[domain], b[domain])}" for domain in sorted(a.keys() & b.keys()))
    assert str(one - other) == ",".join(f"{domain}-1-{a[domain]}" for domain in sorted(a) if a[domain] > b.get(domain, 0))
    assert one.covers(other) == all(a.get(domain, 0) >= number for domain, number in b.items())
    assert one.covers(one.shared(other))
    assert other.covers(one.shared(other))


SETS: list[ExecutedSet] = [GtidSet(f"{UUIDS[0]}:1-5"), GtidSet(f"{UUIDS[0]}:3,{UUIDS[1]}:blue:9"), MariadbGtids("0-1-5,1-2-3")]


@pytest.mark.parametrize("one", SETS, ids=["mysql", "tagged", "mariadb"])
def test_what_both_kinds_promise(one: ExecutedSet) -> None:
    """Each kind: a set covers itself, the empty one and nothing of the other kind, its text and copy are equal, a run continues its text."""
    assert parse(str(one)) == one == one.copy()
    assert one.covers(one)
    assert one.shared(one) == one
    assert not one - one
    for other in SETS:
        if type(other) is not type(one):
            assert not one.covers(other)
            assert not one.shared(other)
            assert one - other == one
            assert one.covers(other - other)
    assert one.encode() == parse(str(one)).encode()
    assert one.tagged == ("blue" in str(one))
    if (single := one.single()) is not None:
        source, text, last = single
        one = one.copy()
        one.add_run(source, last + 1, last + 3)
        assert str(one) == f"{text}{last + 3}"


def test_parse_tells_the_kinds_apart() -> None:
    """`parse` reads either server's text; nonsense raises ValueError."""
    assert isinstance(parse("0-1-5,1-2-3"), MariadbGtids)
    assert isinstance(parse(f"{UUIDS[0]}:1-5"), GtidSet)
    for text in ("0-1", "0-1-5,x", "abc"):
        with pytest.raises(ValueError, match="GTID"):
            parse(text)
