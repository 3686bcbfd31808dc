"""Sessions with one key, distinguished by a header."""

import secrets
from collections.abc import Callable

from harbor_gym.gateway.errors import ErrorKind, RequestError
from harbor_gym.gateway.session import Session


class SessionGroup:
    """Sessions that share one key and are distinguished by a header; for agents on this machine that share a config.

    A request carries the group's key and names its session in ``X-Session-ID``, as Terminus-2 does with
    ``session_id_headers=["X-Session-ID"]``. An unknown name opens a session. The key gives access to every session of
    the group: don't pass it to a sandbox.
    """

    def __init__(self, open_session: Callable[[str], Session], limit: int) -> None:
        self.key = secrets.token_urlsafe(24)
        """The secret that a request carries. Never logged."""
        self.base_url = ""
        """The group's URL, without a trailing slash and ``/v1``; it contains the key."""
        self.sessions: dict[str, Session] = {}
        """Sessions by the name in the header."""
        self._open_session, self._limit = open_session, limit

    def session(self, name: str) -> Session:
        """Return the session of that name, opened if there is none.

        Raises:
            RequestError: The group has as many sessions as it may have.
        """
        if name not in self.sessions:
            if len(self.sessions) >= self._limit:
                raise RequestError(ErrorKind.TOO_MANY_REQUESTS, "the group has no room for another session")
            self.sessions[name] = self._open_session(name)
        return self.sessions[name]
