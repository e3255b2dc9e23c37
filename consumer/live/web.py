"""The live page: three files, a stream of figures, a stream of events for each filter, and, with a token, actions.

    GET  /               the page; page.css, page.js and icon.svg are all that it loads
    GET  /host           server-sent events: what the page may do (`settings`), then each second a `figures.Host` as JSON, and the points
                         of the last minutes (`points`: a list of `history.Point`), those that are new since the ones before
    GET  /events         server-sent events: of the store `store`, filtered by `tables`, `operations` and `text`
    POST /unsubscribe    {"store", "subscription"}, with the header X-Shmstore-Token, as all that follow
    POST /seek           {"store", "subscription", "where"}
    POST /snapshot       {"store", "tables"}
    POST /pause          {"store"}, or {"store", "subscription"}
    POST /resume         the same
    POST /reload         {"store"}

What is done, or refused with the right token, is in the store's audit log, with the user and the address.

A viewer moves nothing in a store and needs the right to read it alone. What comes from a store is JSON for the page, which sets it
as text; the policy that each answer carries (`HEADERS`) lets nothing run or load that is not of this server.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any, Final

from shmstore import PositionNotFound, ShmStoreError, StoreNotFound, StoreView
from shmstore.consumer.live import actions
from shmstore.consumer.live.events import Feed, Filter
from shmstore.consumer.live.figures import Host, document
from shmstore.consumer.live.observer import Observer
from shmstore.consumer.serving.access import Login, exposed
from shmstore.consumer.serving.http_server import HttpRequest, HttpServer, Response, plain
from shmstore.patterns.linear_regex import PatternRefused

WAIT: Final = 5.0  # seconds that an action waits for the producer
FIELDS: Final = '"store", and what it needs of "subscription", "where" and "tables", all text'
STEP: Final = 0.5  # seconds between two looks for events
AGAIN: Final = 2.0  # seconds until a store that is missing is looked for again
ALIVE: Final = 5.0  # seconds after which something is sent in any case, or a client that is gone would not be noticed
MOST_TABLES: Final = 300  # of a store that are sent, the busiest first
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_STREAM: Final = "text/event-stream; charset=utf-8"

_log = logging.getLogger("shmstore.web")


class Web(HttpServer):
    """Serves the page at `address`. As `HttpServer`, with what it observes; `token` gives the one that actions need, None: there are none."""

    def __init__(
        self,
        address: tuple[str, int],
        observer: Observer,
        *,
        show_values: bool = False,
        token: Callable[[], str] | None = None,
        login: Login | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._observer, self._show_values, self._token = observer, show_values, token
        self._hosts = {"localhost", address[0].lower(), socket.gethostname().lower()}
        folder = files("shmstore.consumer.live") / "page"
        self._pages = {path: (kind, (folder / name).read_bytes()) for path, (name, kind) in _FILES.items()}
        super().__init__(address, self._respond, login=login, tls=tls)

    def server_close(self) -> None:
        """Stop listening, and observing."""
        self.closing.set()
        self._observer.close()
        super().server_close()

    def _respond(self, request: HttpRequest) -> Response:
        response = self._answer(request)
        return replace(response, headers={**HEADERS, **response.headers})

    def _answer(self, request: HttpRequest) -> Response:
        if not self._is_ours(request.headers.get("host", "")):
            return plain(
                421, "asked for by a name that is not this host's: give --password-file, or ask by address or as localhost"
            )
        if request.method == "POST":
            return self._act(request)
        if request.path in self._pages:
            return Response(200, *self._pages[request.path])
        if request.path == "/host":
            return Response(200, _STREAM, self._figures())
        if request.path == "/events":
            return Response(200, _STREAM, self._events(request))
        return plain(404, "there are /, /host and /events")

    def _is_ours(self, host: str) -> bool:
        """Whether a request is for this host by address, or by a name that no other process can give it.

        A page elsewhere may have its own name point here and then read all (DNS rebinding), unless a password is needed, which it has not.
        """
        if self.login is not None and self.login.needed:
            return True
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        try:
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return not name or name.lower() in self._hosts
        return True

    # ------------------------------------------------------------ streams

    def _figures(self) -> Iterator[bytes]:
        with self._observer.watch():
            yield _event({"actions": self._token is not None, "values": self._show_values}, "settings")
            number = drawn = 0
            while not self.closing.is_set():
                number, host = self._observer.wait(number, ALIVE)
                yield b": \n\n" if host is None else _event(document(self._shown(host)))
                if points := self._observer.history.after(drawn):
                    drawn = points[-1].number
                    yield _event(document(points), "points")

    def _shown(self, host: Host) -> Host:
        """Without what is not to be seen, and of the tables not more than a viewer looks at."""
        stores = []
        for store in host.stores:
            tables = store.tables[:MOST_TABLES]
            if not self._show_values:  # a statement may hold values
                tables = tuple(each._replace(sql="") for each in tables)
            stores.append(store._replace(tables=tables))
        return host._replace(stores=tuple(stores))

    def _events(self, request: HttpRequest) -> Iterator[bytes]:
        asked = request.parameters
        name = asked.get("store", "")
        try:
            chosen = Filter.parse(asked.get("tables", ""), asked.get("operations", ""), asked.get("text", ""))
            if name not in self._observer.names():
                raise StoreNotFound(f"there is no store {name!r} here")
        except (ValueError, ShmStoreError) as error:
            yield _event(str(error), "refused")
            return
        passed = 0
        while not self.closing.is_set():
            try:
                with StoreView.attach(name, state=self._observer.state, restore=False) as store:
                    feed = Feed(store, chosen, show_values=self._show_values)
                    yield from self._follow(store, feed, passed)
                    passed += feed.passed
                yield _event({"events": [], "passed": passed, "problem": "the store was removed"})
            except PatternRefused as error:
                yield _event(str(error), "refused")
                return
            except (ShmStoreError, PositionNotFound) as error:
                yield _event({"events": [], "passed": passed, "problem": str(error)})
            self.closing.wait(AGAIN)

    def _follow(self, store: StoreView, feed: Feed, passed: int) -> Iterator[bytes]:
        sent, told = time.monotonic(), -1
        while not store.lost and not self.closing.is_set():
            found = feed.step()
            if found or feed.passed != told:
                told = feed.passed
                yield _event({"events": found, "passed": passed + feed.passed, "problem": ""})
                sent = time.monotonic()
            elif time.monotonic() - sent > ALIVE:
                yield b": \n\n"
                sent = time.monotonic()
            self.closing.wait(STEP)

    # ------------------------------------------------------------ actions

    def _act(self, request: HttpRequest) -> Response:
        if self._token is None:
            return plain(403, "nothing can be done from here: start it with --token-file")
        if not hmac.compare_digest(request.headers.get("x-shmstore-token", "").encode(), self._token().encode()):
            text = f"action from {request.address} refused: wrong token for {request.path[:64]!r}"
            self.note("token", request.address, text)
            return plain(403, "the token is wrong: it is what the file of --token-file holds")
        act = _ACTIONS.get(request.path)
        if act is None:
            return plain(404, f"there are {', '.join(_ACTIONS)}")
        try:
            asked: Any = json.loads(request.body)
            if not isinstance(asked, dict) or not all(isinstance(value, str) for value in asked.values()):
                raise TypeError
            store = asked["store"]
            if store not in self._observer.names():
                return plain(404, f"there is no store {store!r} here")
            by = f"web, {request.user} from {request.address}" if request.user else f"web, from {request.address}"
            done = act(actions.Named(store, state=self._observer.state, by=by), asked)
        except (KeyError, TypeError, RecursionError, UnicodeDecodeError, json.JSONDecodeError):
            return plain(400, f"give JSON, as the page does for {request.path}: {FIELDS}")
        except (ShmStoreError, ValueError, OSError) as error:
            return plain(409, f"not done: {error}")
        _log.info("%s: %s: %s", by, store, done)
        return plain(200, done)


Asked = Mapping[str, str]


def _unsubscribe(named: actions.Named, asked: Asked) -> str:
    actions.unsubscribe(named, asked["subscription"])
    return f"subscription {asked['subscription']!r} of {named.store!r} is forgotten"


def _snapshot(named: actions.Named, asked: Asked) -> str:
    return f"snapshot {actions.snapshot(named, asked['tables'])} of {asked['tables']!r} is asked for"


def _reload(named: actions.Named, asked: Asked) -> str:
    answer = actions.reload(named, WAIT)
    if answer is None:
        return "asked for; filters change between two transactions: the producer's log, and the page's events, say when they have"
    if not answer.done:
        raise ValueError(answer.text)
    return answer.text


_ACTIONS: Final[Mapping[str, Callable[[actions.Named, Asked], str]]] = {
    "/unsubscribe": _unsubscribe,
    "/snapshot": _snapshot,
    "/seek": lambda named, asked: actions.seek(named, asked["subscription"], asked["where"]),
    "/pause": lambda named, asked: actions.pause(named, asked.get("subscription"), wait=WAIT),
    "/resume": lambda named, asked: actions.resume(named, asked.get("subscription"), wait=WAIT),
    "/reload": _reload,
}


def _event(value: Any, kind: str = "") -> bytes:
    """One server-sent event. JSON has no line ends, so it is one line."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")
    return (f"event: {kind}\n".encode() if kind else b"") + b"data: " + text + b"\n\n"


def warnings(host: str, *, password: bool, tls: bool, show_values: bool) -> Sequence[str]:
    """What the user who starts the server should know of who else can look."""
    seen = "figures and rows" if show_values else "figures and the names of tables and columns"
    return exposed(host, seen, password=password, tls=tls)
