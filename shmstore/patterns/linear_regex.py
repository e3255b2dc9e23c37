"""Regular expressions matched in bounded time: a pattern comes from a client or from another user, and must not stop a process.

Plan. Python's `re` backtracks, and some patterns take it years on a name of 60 letters. Here a node of the expression
takes the set of places in a name where it may begin and returns the set of places where it may end, each set the bits of
an int: a letter is one shift, a repetition continues until nothing new comes. No place is ever tried twice by one
repetition; what nesting can still multiply is bounded by counting steps. Single characters and classes are left to `re`.

Understood is what matching a whole name needs: letters, ``.``, escapes, classes, groups, ``|``, ``* + ? {m,n}`` (greedy or
not is the same here), ``^ $ \\b \\B \\A \\Z``, ``(?i)``, and looking ahead. Not: references back, looking behind, atomic groups.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

DEEPEST: Final = 50
MOST_STEPS: Final = 200_000
_ENDLESS: Final = 1 << 32
_TIMES: Final = re.compile(r"\{(\d{0,9})(,?)(\d{0,9})\}")
_GROUP: Final = re.compile(r"\?(?::|P<\w+>|<\w+>|([=!])|[aiLmsux]+\))")
_WORD: Final = re.compile(r"\w")
_CLASS_ITEM: Final = re.compile(r"\\.|[^\\]", re.DOTALL)


class PatternRefused(ValueError):
    """An expression that is not understood, or takes too long."""


class Name:
    """A name that is matched, and the steps that are left for it."""

    __slots__ = ("_masks", "all", "length", "steps", "text")

    def __init__(self, text: str, steps: int = MOST_STEPS) -> None:
        self.text = text
        self.length = len(text)
        self.all = (2 << len(text)) - 1
        self.steps = steps
        self._masks: dict[Callable[[str], bool], int] = {}

    def step(self, count: int = 1) -> None:
        """Count what is about to be done. Raises `PatternRefused` where it is too much."""
        self.steps -= count
        if self.steps < 0:
            raise PatternRefused(
                f"the filter takes more than {MOST_STEPS} steps for {self.text[:200]!r}: simplify its expressions"
            )

    def mask(self, fits: Callable[[str], bool]) -> int:
        """The places whose character fits."""
        found = self._masks.get(fits)
        if found is None:
            self.step(4 * self.length)
            found = self._masks[fits] = sum(1 << i for i, character in enumerate(self.text) if fits(character))
        return found

    def boundaries(self) -> int:
        """The places where a word begins or ends."""
        words = sum(1 << i for i, character in enumerate(self.text) if _WORD.match(character))
        return words ^ words << 1


# The places where it may end, of the places where it may begin.
_Node = Callable[[Name, int], int]


def _one(fits: Callable[[str], bool]) -> _Node:
    return lambda name, starts: (starts & name.mask(fits)) << 1


def _sequence(parts: list[_Node]) -> _Node:
    def ends(name: Name, starts: int) -> int:
        for part in parts:
            name.step()
            starts = part(name, starts)
            if not starts:
                break
        return starts

    return ends


def _either(branches: list[_Node]) -> _Node:
    def ends(name: Name, starts: int) -> int:
        found = 0
        for branch in branches:
            name.step()
            found |= branch(name, starts)
        return found

    return ends


def _repeat(part: _Node, least: int, most: int) -> _Node:
    def ends(name: Name, starts: int) -> int:
        for _ in range(least):
            name.step()
            before, starts = starts, part(name, starts)
            if starts in (0, before):
                break
        found = new = starts
        for _ in range(most - least):
            name.step()
            new = part(name, new) & ~found
            if not new:
                break
            found |= new
        return found

    return ends


def _any_number(name: Name, starts: int) -> int:
    """``.*``: all places from the first on."""
    return name.all & -(starts & -starts)


def _ahead(part: _Node, wanted: bool) -> _Node:
    def ends(name: Name, starts: int) -> int:
        found, place = 0, 1
        while place <= starts:
            if starts & place:
                name.step()
                if (part(name, place) != 0) is wanted:
                    found |= place
            place <<= 1
        return found

    return ends


_ANCHORS: Final[dict[str, _Node]] = {
    "^": lambda name, starts: starts & 1,
    "\\A": lambda name, starts: starts & 1,
    "$": lambda name, starts: starts & 1 << name.length,
    "\\Z": lambda name, starts: starts & 1 << name.length,
    "\\b": lambda name, starts: starts & name.boundaries(),
    "\\B": lambda name, starts: starts & ~name.boundaries(),
}


@lru_cache(maxsize=4096)
def _character(atom: str, any_case: bool) -> Callable[[str], bool]:
    """What tells whether a character is `atom`: a letter, an escape or ``.``."""
    flags = re.DOTALL | (re.IGNORECASE if any_case else 0)
    match = re.compile(re.escape(atom) if len(atom) == 1 and atom != "." else atom, flags).fullmatch
    return lambda character: match(character) is not None


@lru_cache(maxsize=1024)
def _member(text: str, negative: bool, any_case: bool) -> Callable[[str], bool]:
    """The same of a class. Not with `re.IGNORECASE`, which would go through a range letter by letter."""
    match = re.compile(text).fullmatch

    def fits(character: str) -> bool:
        cases = (character, character.lower(), character.upper()) if any_case else (character,)
        return any(map(match, cases)) is not negative

    return fits


class _Parser:
    """Reads one expression, from left to right."""

    def __init__(self, text: str, any_case: bool) -> None:
        self.text = text
        self.any_case = any_case
        self.at = 0

    def refuse(self, what: str) -> PatternRefused:
        return PatternRefused(
            f"filter {self.text[:100]!r} is no regular expression that is understood: {what} at character {self.at + 1}"
        )

    def parse(self) -> _Node:
        node = self.branches(0)
        if self.at < len(self.text):
            raise self.refuse("a ')' without its '('")
        return node

    def branches(self, depth: int) -> _Node:
        if depth > DEEPEST:
            raise self.refuse(f"groups are nested more than {DEEPEST} deep")
        branches: list[_Node] = []
        parts: list[_Node] = []
        while self.at < len(self.text) and self.text[self.at] != ")":
            if self.text[self.at] == "|":
                self.at += 1
                branches.append(_sequence(parts))
                parts = []
            else:
                parts += self.repeated(depth)
        branches.append(_sequence(parts))
        return branches[0] if len(branches) == 1 else _either(branches)

    def repeated(self, depth: int) -> list[_Node]:
        began = self.at
        node = self.atom(depth)
        times = self.times()
        if times is None:
            return [] if node is None else [node]
        if node is None or self.text[began] in "^$" or self.text[began : began + 2] in _ANCHORS:
            raise self.refuse("nothing to repeat")
        if self.text[self.at : self.at + 1] == "?":
            self.at += 1
        elif self.text[self.at : self.at + 1] == "+":
            raise self.refuse("possessive repetition is not supported")
        if self.times() is not None:
            raise self.refuse("a repetition of a repetition")
        return [_any_number if self.text[began] == "." and times == (0, _ENDLESS) else _repeat(node, *times)]

    def times(self) -> tuple[int, int] | None:
        sign = self.text[self.at : self.at + 1]
        if sign and sign in "*+?":
            self.at += 1
            return int(sign == "+"), 1 if sign == "?" else _ENDLESS
        found = _TIMES.match(self.text, self.at)
        if found is None or found[0] == "{}":
            return None
        self.at = found.end()
        least = int(found[1] or 0)
        most = least if not found[2] else int(found[3] or _ENDLESS)
        if most < least or (not found[2] and found[3]):
            raise self.refuse("the least of a repetition is more than its most")
        return least, most

    def atom(self, depth: int) -> _Node | None:
        """The next thing that may be repeated; None for one that says nothing on its own, as ``(?i)``."""
        sign = self.text[self.at]
        if sign == "(":
            return self.group(depth)
        if sign == "[":
            return self.class_()
        if sign in "*+?":
            raise self.refuse("nothing to repeat")
        if sign == "\\":
            sign = self.escape()
        self.at += len(sign)
        if sign in _ANCHORS:
            return _ANCHORS[sign]
        try:
            return _one(_character(sign, self.any_case))
        except (re.error, OverflowError) as error:
            raise self.refuse(str(error)) from error

    def escape(self) -> str:
        letter = self.text[self.at + 1 : self.at + 2]
        length = 2 + {"x": 2, "u": 4, "U": 8}.get(letter, 0)
        if not letter or letter.isdigit():
            raise self.refuse("references and octal numbers are not supported" if letter else "a '\\' with nothing behind it")
        return self.text[self.at : self.at + length]

    def group(self, depth: int) -> _Node | None:
        self.at += 1
        kind = ""
        if self.text[self.at : self.at + 1] == "?":
            found = _GROUP.match(self.text, self.at)
            if found is None:
                raise self.refuse("this kind of group is not supported")
            self.at = found.end()
            if found[0].endswith(")"):
                self.any_case |= "i" in found[0]
                return None
            kind = found[1] or ""
        node = self.branches(depth + 1)
        if self.at >= len(self.text):
            raise self.refuse("a '(' without its ')'")
        self.at += 1
        return _ahead(node, kind == "=") if kind else node

    def class_(self) -> _Node:
        began = self.at
        self.at += 1
        negative = self.text[self.at : self.at + 1] == "^"
        self.at += negative
        first = self.at
        while (item := _CLASS_ITEM.match(self.text, self.at)) is not None:
            if item[0] == "]" and self.at > first:
                break
            self.at = item.end()
        if item is None:
            raise self.refuse(f"the '[' of character {began + 1} has no ']'")
        self.at += 1
        try:
            return _one(_member(f"[{self.text[first : self.at]}", negative, self.any_case))
        except (re.error, OverflowError) as error:
            raise self.refuse(str(error)) from error


def compile_pattern(text: str, *, any_case: bool = True) -> Callable[[Name], bool]:
    """Return whether `text` matches the whole of a name, as a function; with `any_case` in any case of letters.

    That function raises `PatternRefused` where the name has no steps left. Raises `PatternRefused` where `text` is no
    expression, or one that is not understood.
    """
    node = _Parser(text, any_case).parse()
    return lambda name: bool(node(name, 1) >> name.length & 1)
