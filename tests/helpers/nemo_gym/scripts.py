"""A policy that answers from a list, in code points."""

from collections.abc import Sequence

from harbor_gym import Sample
from tests.helpers.chats.character_codec import END


class Script:
    """Answers one after the other, and the last one again."""

    def __init__(self, *answers: str) -> None:
        self._answers, self._turn = answers, 0

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        answer = self._answers[min(self._turn, len(self._answers) - 1)]
        self._turn += 1
        tokens = [*map(ord, answer), END]
        return Sample(tokens, [-0.5] * len(tokens))
