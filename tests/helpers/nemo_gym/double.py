"""A stand-in for NeMo Gym's model server and an engine behind it, and a reader of rows that refuses what NeMo RL does.

Source: NeMo Gym 0.7.0, ``responses_api_models/vllm_model/app.py``; NeMo RL, ``nemo_rl/environments/nemo_gym.py``.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from harbor_gym.errors import ContextOverflowError
from harbor_gym.samplers import EngineSettingsError
from harbor_gym.types import ChatCodec, ChatMessage, Sampler, TokenSequence


class ModelServerDouble:
    """Answers ``/v1/responses`` from a sampler. Its attributes make it another engine, or a broken one."""

    def __init__(self, sampler: Sampler, codec: ChatCodec, *, max_tokens: int, max_context_tokens: int) -> None:
        self._sampler, self._codec = sampler, codec
        self._max_tokens, self._max_context_tokens = max_tokens, max_context_tokens
        self.requests: list[dict[str, Any]] = []
        self.knows_prefix = True
        """Whether the prompt begins with what was sampled; else the whole chat is rendered anew."""
        self.propagates_overflow = True
        """Whether a prompt that does not fit is a status 400; else an empty answer."""
        self.returns_token_ids = True
        self.statuses: list[int] = []
        """Statuses of the next answers, in place of 200; the client is told to ask again at once."""
        self.refusal = ""
        """What such an answer says of the engine behind."""

    async def post(self, body: dict[str, Any]) -> tuple[int, Mapping[str, str], bytes]:
        """Answer a request."""
        if self.statuses and (status := self.statuses.pop(0)) != 200:
            self.requests.append(body)
            wrapped = f"Hit an exception in policy_model calling an inner server: b'{self.refusal}'"
            return status, {"Retry-After-Ms": "1"}, json.dumps(wrapped).encode()
        status, content = await self._answer(json.loads(json.dumps(body)))
        return status, {}, content

    async def _answer(self, body: dict[str, Any]) -> tuple[int, bytes]:
        self.requests.append(body)
        prompt = self._prompt(body["input"])
        if len(prompt) + self._max_tokens > self._max_context_tokens:
            return self._overflow()
        try:
            sample = await self._sampler(prompt)
        except ContextOverflowError as exc:
            return 400, json.dumps({"message": str(exc)}).encode()
        except EngineSettingsError as exc:
            return 401, json.dumps({"message": str(exc)}).encode()
        logprobs = list(sample.logprobs or ())
        tokens = {
            "prompt_token_ids": prompt,
            "generation_token_ids": list(sample.tokens),
            "generation_log_probs": logprobs,
        }
        given = tokens if self.returns_token_ids else {}
        return _response(self._codec.text(sample.tokens), is_cut=sample.stop_reason == "length", **given)

    def _prompt(self, items: list[dict[str, Any]]) -> list[int]:
        trained = [place for place, item in enumerate(items) if item.get("prompt_token_ids")]
        if trained and self.knows_prefix:
            last = items[trained[-1]]
            (message,) = items[trained[-1] + 1 :]
            sampled = last["generation_token_ids"]
            return [*last["prompt_token_ids"], *sampled, *self._codec.next_turn(sampled, message["content"])]
        return self._codec.prompt([ChatMessage(role=item["role"], content=_text(item)) for item in items])

    def _overflow(self) -> tuple[int, bytes]:
        if self.propagates_overflow:
            return 400, b'{"message": "This model\'s maximum context length is exceeded"}'
        return _response("", is_cut=True)


def _text(item: dict[str, Any]) -> str:
    content = item["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _response(text: str, *, is_cut: bool, **tokens: Any) -> tuple[int, bytes]:
    message = {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
        **tokens,
    }
    details = {"reason": "max_output_tokens"} if is_cut else None
    return 200, json.dumps({"output": [message], "incomplete_details": details}).encode()


def read_as_trainer(output: Sequence[dict[str, Any]]) -> TokenSequence:
    """Return the training sequence of a row's output, as NeMo RL reads it; what it refuses fails."""
    seen: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    for item in output:
        if not item.get("generation_token_ids"):
            continue
        prompt, sampled = item["prompt_token_ids"], item["generation_token_ids"]
        assert prompt[: len(seen)] == seen, "NeMo RL: Non-contiguous messages found!"
        shown = len(prompt) - len(seen)
        mask += [0] * shown + [1] * len(sampled)
        logprobs += [0.0] * shown + item["generation_log_probs"]
        seen = [*prompt, *sampled]
    assert 1 in mask, "NeMo RL: NeMo Gym returned a result with no generation data"
    first = mask.index(1)
    return TokenSequence(seen[:first], seen[first:], mask[first:], logprobs[first:])
