"""A stand-in for the engine of NeMo RL: vLLM's chat completions with token ids, and ``required_prefix_token_ids``.

Source: NeMo RL, ``nemo_rl/models/generation/vllm/vllm_worker_async.py``: the last message with token ids is the prefix.
Tokens are code points. What it answers follows from the words of the task's instruction.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from harbor_gym.types import ChatMessage
from tests.helpers.chats.character_codec import END, CharacterCodec
from tests.helpers.loopback import on_loopback

THINKING = "<think>hm</think>"
"""How each answer begins; vLLM's reasoning parser takes it out of the content."""

LOGPROB = -0.25
CODEC = CharacterCodec()


class EngineDouble:
    """The server.

    Args:
        scripts: Words of an instruction → the answers to it, turn by turn; the last one is repeated.
        max_context_tokens: Prompts that are longer are refused as vLLM refuses them.
    """

    def __init__(self, scripts: Mapping[str, Sequence[str]], *, max_context_tokens: int) -> None:
        self.base_url = ""
        self.prompts: list[list[int]] = []
        """Every prompt that was answered."""
        self._scripts, self._max_context_tokens = scripts, max_context_tokens

    async def chat(self, request: web.Request) -> web.Response:
        """Answer a chat."""
        body = await request.json()
        messages = body["messages"]
        prompt = _prompt(messages)
        if len(prompt) > self._max_context_tokens:
            message = f"This model's maximum context length is {self._max_context_tokens} tokens. Please reduce."
            return web.json_response({"object": "error", "message": message, "code": 400}, status=400)
        text = "\n".join(_text(message) for message in messages if message["role"] != "assistant")
        script = next(answers for words, answers in self._scripts.items() if words in text)
        turn = sum(message["role"] == "assistant" for message in messages)
        answer = script[min(turn, len(script) - 1)]
        tokens = [*map(ord, THINKING + answer), END]
        self.prompts.append(prompt)
        return web.json_response(_completion(body, prompt, tokens, answer))


def _prompt(messages: Sequence[dict[str, Any]]) -> list[int]:
    trained = [place for place, message in enumerate(messages) if message.get("prompt_token_ids")]
    if not trained:
        return CODEC.prompt([ChatMessage(role=item["role"], content=_text(item)) for item in messages])
    last = messages[trained[-1]]
    sampled = last["generation_token_ids"]
    (message,) = messages[trained[-1] + 1 :]
    return [*last["prompt_token_ids"], *sampled, *CODEC.next_turn(sampled, _text(message))]


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _completion(body: Mapping[str, Any], prompt: list[int], tokens: list[int], answer: str) -> dict[str, Any]:
    entries = [{"token": f"token_id:{token}", "logprob": LOGPROB, "top_logprobs": []} for token in tokens]
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": answer, "reasoning_content": "hm"},
        "logprobs": {"content": entries},
        "token_ids": tokens,
    }
    usage = {
        "prompt_tokens": len(prompt),
        "completion_tokens": len(tokens),
        "total_tokens": len(prompt) + len(tokens),
    }
    header = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": body["model"]}
    return {**header, "prompt_token_ids": prompt, "choices": [choice], "usage": usage}


@asynccontextmanager
async def engine_double(
    scripts: Mapping[str, Sequence[str]], *, max_context_tokens: int
) -> AsyncGenerator[EngineDouble]:
    """Serve on a free port of the loopback."""
    engine = EngineDouble(scripts, max_context_tokens=max_context_tokens)

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "policy", "object": "model"}]})

    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/v1/chat/completions", engine.chat)
    app.router.add_get("/v1/models", models)
    async with on_loopback(app) as url:
        engine.base_url = f"{url}/v1"
        yield engine
