"""shmstore.consumer.wire.session.outbox: what waits to be delivered, compared with a plain list of (sequence, entry, rows, alone)."""

from __future__ import annotations

import random

from shmstore.consumer.wire.session.outbox import Limit, Portion, Ready, Run

Item = tuple[int, bytes | None, int, bool]


def expected(items: list[Item], limit: Limit) -> Portion | None:
    """The same batch, item by item."""
    taken: list[bytes] = []
    size = rows = 0
    last = -1
    for sequence, entry, count, alone in items:
        if entry is not None:
            if taken and (len(taken) >= limit.entries or size > limit.bytes or size + len(entry) > limit.most or alone):
                break
            taken.append(entry)
            size += len(entry)
            rows += count
        last = sequence
        if alone and entry is not None:
            break
    return Portion(taken, rows, last) if taken else None


def test_like_a_plain_list(seed: int) -> None:
    """Whatever runs come and whatever limits are asked, batches are those of a plain list, and nothing is lost or doubled."""
    rng = random.Random(seed)
    for _ in range(300):
        ready, items, sequence = Ready(), [], rng.randrange(1000)
        holes, singles = rng.choice([0, 0.2, 0.9]), rng.choice([0, 0.1])
        for _ in range(rng.randrange(1, 30)):
            action = rng.random()
            if action < 0.4:
                run: list[Item] = []
                for n in range(sequence, sequence + rng.randrange(1, 8)):
                    hole = rng.random() < holes
                    run.append((n, None if hole else rng.randbytes(rng.randrange(1, 20)), n % 3, rng.random() < singles))
                ready.add(Run(sequence, [i[1] for i in run], [i[2] for i in run], frozenset(i[0] for i in run if i[3])))
                sequence += len(run)
                items += run
            elif action < 0.5:
                ready.skip()
                while items and items[0][1] is None:
                    items.pop(0)
            else:
                limit = Limit(rng.choice([1, 3, 1 << 62]), rng.choice([1, 30, 100, 1 << 40]), rng.choice([30, 1 << 40]))
                portion = ready.portion(limit)
                assert portion == ready.portion(limit) == expected(items, limit)
                if portion is not None and rng.random() < 0.8:
                    ready.drop(portion)
                    items = [item for item in items if item[0] > portion.last]
            entries = [item[1] for item in items if item[1] is not None]
            assert (ready.count, ready.bytes) == (len(entries), sum(map(len, entries)))
            assert ready.next == (items[0][0] if items else sequence if ready.next >= 0 else -1)


def test_cleared() -> None:
    """After a clear nothing is there, and what comes next may start anywhere."""
    ready = Ready()
    ready.add(Run(5, [b"a", None, b"b"], [1, 1, 1], frozenset((7,))))
    assert ready.has_alone
    ready.clear()
    assert (ready.count, ready.bytes, ready.has_alone, ready.portion(Limit(9, 9, 9))) == (0, 0, False, None)
    ready.add(Run(2, [b"c"], [4]))
    assert ready.portion(Limit(9, 9, 9)) == Portion([b"c"], 4, 2)
