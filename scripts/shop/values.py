"""Random values for the shop's columns, edge values among them."""

from __future__ import annotations

import json
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, TypeVar

_NAMES: Final = ("Zoë", "Jürgen", "王小明", "O'Brien", "Łukasz", "naïve 😀", "Ana", 'Q"uote\\')
_NOTES: Final = (
    "",
    "leave at the door",
    "Größe: L\nTab\there",
    "请小心 轻放",
    "emoji 🎁🎀",
    "NULL",
    "back\\slash 'n' \"quotes\"",
)


T = TypeVar("T")


class Rows:
    """Makes rows of the four tables from one random generator."""

    def __init__(self, random_: random.Random) -> None:
        self.random = random_

    def decimal(self, digits: int, scale: int) -> Decimal:
        """Return a number of at most `digits` digits, `scale` of them after the point; often an edge."""
        largest = 10**digits - 1
        edge = self.random.random() < 0.05
        number = (
            self.random.choice((0, largest, -largest)) if edge else self.random.randrange(10 ** self.random.randint(1, digits))
        )
        return Decimal(f"{number}E-{scale}")

    def moment(self, digits: int) -> str:
        """Return a time of the years 2001 to 2037 with `digits` fractional digits."""
        moment = datetime(2001, 1, 1, tzinfo=UTC) + timedelta(microseconds=self.random.randrange(36 * 365 * 86_400 * 10**6))
        text = moment.strftime("%Y-%m-%d %H:%M:%S.%f")
        return text[: 19 + (digits and digits + 1)]

    def span(self, digits: int) -> str:
        """Return a TIME: negative and above 24 hours too."""
        seconds = self.random.choice((0, self.random.randrange(86_400), self.random.randrange(838 * 3600)))
        sign = "-" if seconds and self.random.random() < 0.3 else ""
        fraction = f".{self.random.randrange(10**digits):0{digits}d}" if digits else ""
        return f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{fraction}"

    def maybe(self, value: T) -> T | None:
        """Return `value`, or NULL one time in eight."""
        return None if self.random.random() < 0.125 else value

    def document(self) -> str:
        """Return a JSON text."""
        return json.dumps(
            {
                "lang": self.random.choice(("de", "zh", "en")),
                "n": self.random.randrange(10**6),
                "tags": [True, None, "ü", 1.5],
                "deep": {},
            },
            ensure_ascii=False,
        )

    def note(self) -> str | None:
        """Return a note: empty, long, in many scripts, or NULL."""
        return self.maybe(self.random.choice(_NOTES))

    def customer(self, key: int) -> tuple[Any, ...]:
        """Return a row of customers, without `points`."""
        r = self.random
        day = date(1900, 1, 1) + timedelta(days=r.randrange(44_000))
        interests = ",".join(m for m in ("books", "music", "garden", "sport") if r.random() < 0.5)
        name = f"{r.choice(_NAMES)} {key}"
        person = (key, name, self.maybe(f"c{key}@example.org"), r.choice(("DE", "CN", "FR", "X")), self.maybe(day))
        numbers = (r.randint(-128, 127), self.decimal(12, 2), self.maybe(r.randrange(-1000, 1000) / 100))
        rest = (interests, self.maybe(self.span(0)), self.maybe(self.document()), self.maybe(r.randbytes(r.randrange(200))))
        return (*person, *numbers, *rest, self.moment(6))

    def order(self, key: int, customer: int) -> tuple[Any, ...]:
        """Return a row of orders."""
        r = self.random
        state = r.choice(("new", "paid", "sent"))
        season = r.randint(1990, 2155)
        return (key, customer, state, self.moment(6), season, self.decimal(14, 4), r.randrange(1024), self.note())

    def item(self, order: int, line: int) -> tuple[Any, ...]:
        """Return a row of order_items. `code` often ends in zero bytes, which the binlog leaves out."""
        r = self.random
        code = r.randbytes(r.randrange(7)).ljust(6, b"\0")
        weight = r.choice((r.uniform(-1e6, 1e6), r.random() * 1e-300, 0.1, 1 / 3, 1.7976931348623157e308))
        sku = f"SKU{r.randrange(10**8):08d}é"[: r.randint(3, 12)]
        tag = self.maybe(r.randbytes(r.randrange(25)))
        return (order, line, sku, r.randint(-8388607, 8388607), self.decimal(10, 2), self.maybe(weight), code, tag)

    def payment(self, order: int) -> tuple[Any, ...]:
        """Return a row of payments. Half of the card hashes do not fit a signed 64-bit number."""
        r = self.random
        money = (self.decimal(30, 10), r.choice(("EUR", "USD", "CNY")), r.getrandbits(64), r.getrandbits(64) - 2**63)
        times = (self.span(3), self.maybe(self.moment(3)), self.maybe(self.moment(0)))
        return (r.randbytes(16), order, *money, *times, self.maybe("receipt " * r.randrange(60)))
