"""A sandbox's state before its policy: its accounts, and the directories that grading needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from harbor_gym.sandboxes.supervisor.program.accounts import Accounts, known_identity
from harbor_gym.sandboxes.supervisor.program.messages import Identity


@dataclass
class BeforePolicy:
    """The state at the first baseline of a sandbox; empty before it.

    It is not the image's state: a set-up command may have added users.
    """

    accounts: Accounts | None = None
    directories: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """Each with its owner's ids outside of the sandbox, and its mode."""

    def note(self, answer: dict[str, Any]) -> None:
        """Store the results of the first baseline; any other answer is ignored."""
        if self.accounts is None and "accounts" in answer:
            self.accounts, self.directories = Accounts(*answer["accounts"]), answer["directories"]

    def in_copy(self, source: Sequence[Sequence[int]], target: Sequence[Sequence[int]]) -> Self:
        """Return the same of a copy of the sandbox.

        Args:
            source: The map of this sandbox's user namespace: first id inside, first one outside, how many.
            target: The copy's, which has the same ids inside; both are empty where the ids outside are the same.
        """

        def moved(number: int) -> int:
            for (_, first, count), (_, other, _) in zip(source, target, strict=True):
                if first <= number < first + count:
                    return other + number - first
            return number

        owned = {path: [moved(uid), moved(gid), mode] for path, (uid, gid, mode) in self.directories.items()}
        return type(self)(self.accounts, owned)

    def identity(self, user: str) -> Identity | None:
        """Return a user's ids before the policy, which it can't change; None if there was no such user."""
        if self.accounts is None or (known := known_identity(user, self.accounts)) is None:
            return None
        return Identity(*known)

    def arguments(self, work: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of one part of the clean-up, with the noted state filled in."""
        if work == "open_grading":
            return {**arguments, "directories": dict(self.directories)}
        if work == "reset_verifier_dirs" and (owner := self.identity(arguments["owner"])) is not None:
            return {**arguments, "owner": str(owner.uid)}
        if work in ("path_kind", "ensure_dirs") and (user := self.identity(arguments["user"])) is not None:
            return {**arguments, "user": f"{user.uid}:{user.gid}"}
        return dict(arguments)
