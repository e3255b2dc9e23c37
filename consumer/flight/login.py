"""Who may ask: a password, with a user name (HTTP's Basic) or alone, as a bearer token.

pyarrow tells a middleware the headers of a call and not who calls, and a method who calls and, through the middleware, the headers: so the
middleware only keeps them, and `Endpoint` asks `Login` in each method.
"""

from __future__ import annotations

from typing import Any

from pyarrow import flight

from shmstore.consumer.serving.access import Login, credentials
from shmstore.consumer.serving.audit import Audit, Incident


class Headers(flight.ServerMiddleware):  # type: ignore[misc]
    """The Authorization header of a call."""

    def __init__(self, authorization: str, bearer: str) -> None:
        self.authorization = authorization
        self._bearer = bearer

    def sending_headers(self) -> dict[str, str]:
        """Give a client that logs in by a handshake (`authenticate_basic_token`) the header to send from then on."""
        return {"authorization": f"Bearer {self._bearer}"} if self._bearer else {}


class KeepHeaders(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Keeps each call's Authorization header for `Endpoint`; refuses a handshake, which no method sees, itself."""

    def __init__(self, login: Login, audit: Audit) -> None:
        self._login, self._audit = login, audit

    def start_call(self, info: Any, headers: Any) -> Headers:
        """Called by Flight for each call."""
        found = headers.get("authorization") or headers.get("Authorization") or [""]
        authorization = found[0] if isinstance(found[0], str) else ""
        if info.method != flight.FlightMethod.HANDSHAKE:
            return Headers(authorization, "")
        right, user = self._login.admits(authorization)
        if not right:  # Flight does not say here who calls
            text = f"login refused: wrong user name or password for user {user[:64]!r} in a handshake"
            self._audit.note(Incident.LOGIN, "a handshake", text)
            raise flight.FlightUnauthenticatedError("wrong user name or password")
        return Headers(authorization, credentials(authorization)[1].decode(errors="replace"))


class Handshake(flight.ServerAuthHandler):  # type: ignore[misc]
    """Lets every client through Flight's own login: what counts is the header of each call."""

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        """Called by Flight for a handshake."""

    def is_valid(self, token: bytes) -> bytes:
        """Called by Flight for each call."""
        return b""
