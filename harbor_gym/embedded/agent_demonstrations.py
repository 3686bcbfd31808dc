"""A demonstrator behind the gateway, as the model of one of Harbor's agents.

The gateway writes the agent's conversations with a codec whose tokens are code points: each message of the chat is one
line of JSON. The record of its session is therefore the chat itself, message by message as a policy's codec gets it in
training: tools declared, calls and results written as text.
"""

import json
from collections.abc import Sequence

from harbor_gym.config import AgentEpisodeConfig
from harbor_gym.embedded.demonstrator import Demonstration, Demonstrator, Message
from harbor_gym.types import ChatMessage, Sample


class ChatLines:
    """A chat codec whose tokens are the code points of the chat as lines of JSON."""

    def prompt(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Return the tokens that precede the first answer."""
        return [token for message in messages for token in self.line(message["role"], message["content"])]

    def next_turn(self, sampled: Sequence[int], message: str) -> list[int]:
        """Return the tokens between ``sampled`` and the next answer."""
        return self.line("user", message)

    def text(self, sampled: Sequence[int]) -> str:
        """Return an answer's text."""
        return self.messages(sampled)[-1]["content"]

    def line(self, role: str, content: str) -> list[int]:
        """Return one message's tokens."""
        return [ord(character) for character in f"{json.dumps({'role': role, 'content': content})}\n"]

    def messages(self, tokens: Sequence[int]) -> list[Message]:
        """Return the messages that whole lines hold."""
        return [json.loads(line) for line in "".join(map(chr, tokens)).splitlines()]


async def play_with_agent(config: AgentEpisodeConfig, demonstrator: Demonstrator) -> Demonstration:
    """Play one episode in which an agent types the demonstrator's answers.

    Args:
        config: The task, the sandbox and the agent, which must read terminus-json-plain.
        demonstrator: A fresh one.

    Raises:
        HarborGymError: The sandbox, the agent or the verifier failed.
    """
    from harbor_gym.adapters.harbor import RolloutInterface

    codec = ChatLines()

    async def sample(prompt: Sequence[int]) -> Sample:
        shown = codec.messages(prompt)[-1]["content"]
        return Sample(codec.line("assistant", demonstrator.answer(shown).text()))

    rollout = await RolloutInterface(config, sample, codec, max_retries=0).run_one(config.task_dir)
    if rollout.error is not None:
        raise rollout.error
    messages = codec.messages(rollout.main.token_ids)
    answers = sum(message["role"] == "assistant" for message in messages)
    return Demonstration(tuple(messages), rollout.reward or 0.0, answers, rollout.end_reason)
