"""A fake that grades the letters' task; without a framework, for processes that should start quickly."""

from typing import Any

from harbor_gym.testing import FakeEnvironment

LETTER = f"{__name__}:Letter"


class Letter(FakeEnvironment):
    """Solved once the right letter is in the file."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, solved_when={"/srv/answer": "c"}, **kwargs)
