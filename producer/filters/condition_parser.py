"""The text of a condition -> its tree.

    condition   AND, OR, NOT and parentheses, as in SQL; NOT binds closer than AND, AND closer than OR
    comparison  column  = | <> | != | < | <= | > | >=  literal
                column  [NOT] IN (literal, ...)  |  [NOT] BETWEEN literal AND literal  |  [NOT] LIKE 'text'  |  IS [NOT] NULL
    literal     a number, a string in single or double quotes, bytes as x'0AFF', TRUE (1), FALSE (0)

Tokens are SQL's. There are no functions, and a column stands on the left of its comparison only. Errors say where.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Final, NoReturn

from shmstore.producer.errors import PatternError
from shmstore.producer.filters.condition_tree import Both, Comparison, Either, Literal, Node, Not
from shmstore.sql.tokens import Token, located
from shmstore.sql.tokens import literal as bytes_of

_DEEPEST: Final = 50  # parentheses and NOTs inside each other
_SIGNS: Final = frozenset({"=", "<>", "!=", "<", "<=", ">", ">="})
_KEYWORDS: Final = frozenset({"AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "IS", "NULL", "TRUE", "FALSE"})
_MOST_DIGITS: Final = 65  # of the servers' DECIMAL
_MOST_FRACTION: Final = 30


def parse(text: str) -> Node:
    """Return the tree of a condition. Raises `PatternError`, which shows the place."""
    return _ConditionParser(text).whole()


class _ConditionParser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(located(text))
        self._next = 0
        self._depth = 0

    def whole(self) -> Node:
        found = self._either()
        if self._next < len(self._tokens):
            self._fail("AND, OR or the end")
        return found

    def _fail(self, wanted: str) -> NoReturn:
        at = self._tokens[self._next][0] if self._next < len(self._tokens) else len(self._text)
        seen = f"not {self._text[at : at + 20]!r}" if at < len(self._text) else "not the end"
        raise PatternError(f"condition {self._text!r}: at character {at + 1} belongs {wanted}, {seen}")

    @property
    def _token(self) -> Token:
        return self._tokens[self._next][1] if self._next < len(self._tokens) else Token("end", "")

    def _accept(self, word: str) -> bool:
        found = self._token.upper == word and self._token.kind in ("word", "other")
        self._next += found
        return found

    def _expect(self, word: str, wanted: str) -> None:
        if not self._accept(word):
            self._fail(wanted)

    # ------------------------------------------------------------ AND, OR, NOT

    def _either(self) -> Node:
        parts = [self._both()]
        while self._accept("OR"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else Either(tuple(parts))

    def _both(self) -> Node:
        parts = [self._one()]
        while self._accept("AND"):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else Both(tuple(parts))

    def _one(self) -> Node:
        self._depth += 1
        if self._depth > _DEEPEST:
            self._fail(f"something less nested (at most {_DEEPEST} deep)")
        if self._accept("NOT"):
            found: Node = Not(self._one())
        elif self._accept("("):
            found = self._either()
            self._expect(")", "AND, OR or a closing parenthesis")
        else:
            found = self._comparison()
        self._depth -= 1
        return found

    # ------------------------------------------------------------ comparisons

    def _comparison(self) -> Node:
        token = self._token
        if token.kind not in ("word", "name") or (token.kind == "word" and token.upper in _KEYWORDS):
            self._fail("a column's name (without quotes, or in backticks)")
        column = token.text
        self._next += 1
        if self._accept("IS"):
            negated = self._accept("NOT")
            self._expect("NULL", "NULL")
            return _maybe_not(Comparison(column, "IS NULL", ()), negated)
        negated = self._accept("NOT")
        if self._accept("IN"):
            self._expect("(", "an opening parenthesis")
            found = [self._literal()]
            while self._accept(","):
                found.append(self._literal())
            self._expect(")", "a comma or a closing parenthesis")
            return _maybe_not(Comparison(column, "IN", tuple(found)), negated)
        if self._accept("BETWEEN"):
            low = self._literal()
            self._expect("AND", "AND")
            return _maybe_not(Comparison(column, "BETWEEN", (low, self._literal())), negated)
        if self._accept("LIKE"):
            if self._token.kind != "string":
                self._fail("a string")
            return _maybe_not(Comparison(column, "LIKE", (self._literal(),)), negated)
        if negated:
            self._fail("IN, BETWEEN or LIKE")
        return Comparison(column, self._sign(), (self._literal(),))

    def _sign(self) -> str:
        """A sign of one or two characters, side by side."""
        found = ""
        start = self._next
        while self._token.kind == "other" and self._token.text in "=<>!" and len(found) < 3:
            at = self._tokens[self._next][0]
            if found and at != self._tokens[start][0] + len(found):
                break
            found += self._token.text
            self._next += 1
        if found not in _SIGNS:
            self._next = start
            self._fail("one of = <> < <= > >= IN, BETWEEN, LIKE, IS (a function or another column is not possible)")
        return "<>" if found == "!=" else found

    def _literal(self) -> Literal:
        negative = self._accept("-")
        token = self._token
        value: Literal
        if token.kind == "number":
            value = self._number(token.text)
            value = value.copy_negate() if negative else value  # exactly: a minus would round
        elif negative:
            self._fail("a number")
        elif token.kind == "string":
            value = token.text
        elif token.kind == "hex":
            value = bytes_of(token)
        elif token.kind == "word" and token.upper in ("TRUE", "FALSE"):
            value = Decimal(token.upper == "TRUE")
        elif token.kind == "word" and token.upper == "NULL":
            self._fail("a value; NULL is looked for with IS NULL")
        else:
            self._fail("a number, a string in quotes, bytes as x'0AFF', TRUE or FALSE")
        self._next += 1
        return value

    def _number(self, text: str) -> Decimal:
        mantissa, _, exponent = text.lower().partition("e")
        if len(mantissa) > _MOST_DIGITS or len(exponent) > 3:
            self._fail(f"a number of at most {_MOST_DIGITS} digits")
        value = Decimal(text)
        if value.copy_abs() >= Decimal(10) ** (_MOST_DIGITS - _MOST_FRACTION) and "." in f"{value:f}":
            self._fail(f"a number of at most {_MOST_DIGITS} digits, {_MOST_FRACTION} of them behind the point")
        return value


def _maybe_not(found: Node, negated: bool) -> Node:
    return Not(found) if negated else found
