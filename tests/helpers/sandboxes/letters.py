"""Fakes that grade the letters' task; without a framework, for processes that should start quickly."""

from typing import Any

from harbor_gym.testing import FakeEnvironment

LETTER, DYING = f"{__name__}:Letter", f"{__name__}:Dying"


class Letter(FakeEnvironment):
    """Solved once the right letter is in the file."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, solved_when={"/srv/answer": "c"}, **kwargs)


class Dying(Letter):
    """Starts for the first ``alive`` of a process only."""

    made = 0

    def __init__(self, *args: Any, alive: int, **kwargs: Any) -> None:
        Dying.made += 1
        super().__init__(*args, fail={"start": 1} if Dying.made > alive else {}, **kwargs)
