"""What the producer of a store is asked to do while it runs, and what it answers: durable, in the store's home.

    STATE/STORE/control-ID.request     written by the process that asks; the producer removes it when it has answered
    STATE/STORE/control.answers        written by the producer: its last answers, the newest last

The answer is written first and the request removed after it: a producer that is killed between the two answers again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

from shmstore.clock import calendar_ms
from shmstore.errors import StoreError
from shmstore.home.home import Home, May
from shmstore.home.snapshots import new_id
from shmstore.stored_json import read_json

FORMAT: Final = 1
REQUEST: Final = ".request"
NAME: Final = "control.answers"
KEPT: Final = 32  # answers
RELOAD: Final = "reload"


class Wish(NamedTuple):
    """What is asked for. `problem`: why the file of the request cannot be read."""

    id: str
    what: str
    asked_ms: int = 0
    problem: str = ""


class ControlAnswer(NamedTuple):
    """What became of a wish. `done` False: nothing was changed."""

    id: str
    done: bool
    text: str
    at_ms: int


class ControlFiles:
    """The files of one store. `may`: see `Home.replace`."""

    def __init__(self, home: Home, may: May | None = None) -> None:
        self._home, self._may = home, may
        self.path = home.path / NAME

    def ask(self, what: str) -> str:
        """Leave a wish for the producer; return its id. Raises `StoreError`."""
        wish = Wish(new_id(), what, calendar_ms())
        content = json.dumps({"shmstore_control": FORMAT, "id": wish.id, "what": what, "asked_ms": wish.asked_ms}).encode()
        self._home.replace(self._request(wish.id), content, "request")
        return wish.id

    def asked(self) -> list[Wish]:
        """Return the wishes that wait, the oldest first. One that cannot be read has a `problem`."""
        found = [self._read(path) for path in self._home.path.glob(f"control-*{REQUEST}") if path.is_file()]
        return sorted((wish for wish in found if wish is not None), key=lambda wish: wish.asked_ms)

    def answer(self, wish: Wish, *, done: bool, text: str) -> None:
        """Answer a wish, and remove it. Raises `StoreError`."""
        answers = [one for one in self.answers() if one.id != wish.id]
        answers.append(ControlAnswer(wish.id, done, text, calendar_ms()))
        content = json.dumps({"shmstore_control": FORMAT, "answers": answers[-KEPT:]}).encode()
        self._home.replace(self.path, content, "answers", self._may)
        self._home.remove(self._request(wish.id), "request", self._may)

    def answers(self) -> list[ControlAnswer]:
        """Return the last answers; none where the file cannot be read."""
        try:
            return read_answers(self.path)
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def _request(self, id: str) -> Path:
        return self._home.path / f"control-{id}{REQUEST}"

    def _read(self, path: Path) -> Wish | None:
        id = path.name.removeprefix("control-").removesuffix(REQUEST)
        try:
            value = _content(path)
            return Wish(id, str(value["what"]), int(value["asked_ms"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            return Wish(id, "", problem=f"its file {path.name} cannot be read ({error}): ask again")


def read_answers(path: Path) -> list[ControlAnswer]:
    """Return the answers in a file; none where there is no file. Raises OSError, ValueError, KeyError, TypeError."""
    try:
        found = _content(path)["answers"]
    except FileNotFoundError:
        return []
    return [ControlAnswer(str(id), bool(done), str(text), int(at)) for id, done, text, at in found]


def check_request(home: Home, path: Path) -> None:
    """Raise `StoreError` where a request cannot be read."""
    wish = ControlFiles(home)._read(path)
    if wish is not None and wish.problem:
        raise StoreError(wish.problem)


def _content(path: Path) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict) or value.get("shmstore_control") != FORMAT:
        raise ValueError(f"it is not of format {FORMAT}")
    return value
