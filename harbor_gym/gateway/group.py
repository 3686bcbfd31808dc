"""Sessions that are told apart by a header instead of a key each."""

import secrets
from collections.abc import Callable

from harbor_gym.gateway.errors import ErrorKind, RequestError
from harbor_gym.gateway.session import Session


class SessionGroup:
    """Sessions that share one key and are distinguished by a header; for agents on this machine that share a config.

    A request shows the group's key and names its session in ``X-Session-ID``, as Terminus-2 does with
    ``session_id_headers=["X-Session-ID"]``. An unknown name opens a session. A holder of the key can use every
    session of the group: don't hand it into a sandbox.
    """

    def __init__(self, open_session: Callable[[str], Session], limit: int) -> None:
        self.key = secrets.token_urlsafe(24)
        """The secret that a request shows. Never logged."""
        self.base_url = ""
        """Where the group is served, without a trailing slash and ``/v1``; it contains the key."""
        self.sessions: dict[str, Session] = {}
        """Sessions by the name in the header."""
        self._open_session, self._limit = open_session, limit

    def session(self, name: str) -> Session:
        """Return the session of that name, opened if there is none.

        Raises:
            RequestError: There are too many.
        """
        if name not in self.sessions:
            if len(self.sessions) >= self._limit:
                raise RequestError(ErrorKind.TOO_MANY_REQUESTS, "the group has no room for another session")
            self.sessions[name] = self._open_session(name)
        return self.sessions[name]
