"""Topics and partitions as Canal's MQ mode chooses them, by its own options: where a row went under Canal it goes here.

    dynamicTopic              REGEX;TOPIC:REGEX;...   the first that matches names the topic: TOPIC, or the table's (database's) own name
    dynamicTopicPartitionNum  TOPIC:NUMBER,...        partitions of topics, by name or regular expression
    partitionsNum             partitions of all others
    partitionHash             TABLE,TABLE:$pk$,TABLE:column^column,...   by the table's name, by its primary key, by columns
    database.hash             whether the name of the database is part of the hash

Source: ``MQMessageUtils`` and ``CanalKafkaProducer`` of Canal 1.1.7, which ``tests/consumer/queues/test_canal_routing.py`` asks for the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from shmstore.patterns.linear_regex import Name, PatternRefused, compile_pattern

_WILD: Final = frozenset("*?+|(){}[]\\$^")


class _Rule(NamedTuple):
    """A name or a regular expression, and what it means."""

    name: str
    meaning: str

    def matches(self, name: str) -> bool:
        if not self.wild:
            return self.name.lower() == name.lower()
        return _compiled(self.name)(name)

    @property
    def wild(self) -> bool:
        return not _WILD.isdisjoint(self.name)


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> Callable[[str], bool]:
    try:
        fits = compile_pattern(pattern, any_case=True)
    except PatternRefused as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
    return lru_cache(maxsize=4096)(lambda name: fits(Name(name)))


def _rules(text: str) -> list[str]:
    return [item.strip() for item in re.split("[,;]", text) if item.strip()]


def java_hash(text: str) -> int:
    """Return ``text.hashCode()`` of Java: over UTF-16 units, in 32 bits with sign."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def _reduced(value: int, partitions: int) -> int:
    """``Math.abs(Math.abs(value) % partitions)`` of Java, whose absolute of the least number is that number."""
    if value == -(1 << 31):
        return (1 << 31) % partitions
    return abs(value) % partitions


@dataclass(frozen=True, slots=True)
class CanalRouting:
    """Canal's options. Raises ValueError where one of them cannot be read."""

    topic: str
    dynamic_topic: str = ""
    partition: int = 0
    partitions_num: int = 1
    dynamic_topic_partition_num: str = ""
    partition_hash: str = ""
    database_hash: bool = True

    def __post_init__(self) -> None:
        if self.partitions_num < 1:
            raise ValueError(f"partitionsNum is {self.partitions_num}: it must be 1 or more")
        for item in _rules(self.dynamic_topic_partition_num):
            if not item.rpartition(":")[2].strip().isdecimal() or ":" not in item:
                raise ValueError(f"dynamicTopicPartitionNum has {item!r}: write TOPIC:NUMBER")
        rules = [*self._topics(), *self._counts(), *self._hashes()]
        for rule in rules:
            rule.matches("a.b")

    def _topics(self) -> list[_Rule]:
        found = []
        for item in _rules(self.dynamic_topic):
            topic, colon, pattern = item.partition(":")
            found.append(_Rule(pattern.strip(), topic.strip()) if colon else _Rule(item, ""))
        return found

    def _counts(self) -> list[_Rule]:
        return [
            _Rule(name.strip(), number.strip())
            for name, _, number in (i.rpartition(":") for i in _rules(self.dynamic_topic_partition_num))
        ]

    def _hashes(self) -> list[_Rule]:
        return [_Rule(item.partition(":")[0], item.partition(":")[2]) for item in _rules(self.partition_hash)]

    def topic_of(self, database: str, table: str) -> str:
        """Return the topic of a table's rows and statements."""
        if not self.dynamic_topic or (not database and not table):
            return self.topic
        return _topic(self, database, table)

    @property
    def partition_of_statements(self) -> int:
        """The partition of what has no rows to be hashed."""
        return 0 if self.partition_hash else self.partition

    def hashes_rows(self, database: str, table: str) -> bool:
        """Return whether values of a row decide its partition."""
        return bool(self.partition_hash) and bool(_hashed_by(self, database, table))

    def partition_of(self, topic: str, database: str, table: str, row: Mapping[str, str | None], key: Iterable[str]) -> int:
        """Return the partition of a row, given its values as Canal's text and the names of its primary key."""
        if not self.partition_hash:
            return self.partition
        columns = _hashed_by(self, database, table)
        if columns is None:
            return 0
        partitions = _partitions_of(self, topic)
        if columns == "":
            return _reduced(java_hash(table), partitions)
        value = java_hash(database) if self.database_hash else 0
        names: Sequence[str] = list(key) if columns == "$pk$" else columns.split("^")
        for name in names:
            value ^= java_hash(row.get(name) or "")
        return _reduced(value, partitions)


@lru_cache(maxsize=4096)
def _topic(routing: CanalRouting, database: str, table: str) -> str:
    name = f"{database}.{table}"
    for tried in (name, database):
        for rule in routing._topics():
            # An expression with an escaped dot is for tables, any other for databases; a plain name for whatever has it.
            if rule.wild and ("\\." in rule.name) != ("." in tried):
                continue
            if rule.matches(tried):
                return (rule.meaning or tried.lower()).replace(".", "_")
    return routing.topic.replace(".", "_")


@lru_cache(maxsize=4096)
def _partitions_of(routing: CanalRouting, topic: str) -> int:
    """How many partitions of a topic are counted on."""
    return next((int(rule.meaning) for rule in routing._counts() if rule.matches(topic)), routing.partitions_num)


@lru_cache(maxsize=4096)
def _hashed_by(routing: CanalRouting, database: str, table: str) -> str | None:
    """What decides a row's partition: "" the table's name, ``$pk$``, ``column^column``; None: nothing does."""
    name = f"{database}.{table}"
    return next((rule.meaning for rule in routing._hashes() if rule.matches(name)), None)
