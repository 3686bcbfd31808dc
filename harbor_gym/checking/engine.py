"""Check which promises an engine keeps that training on exact tokens relies on.

Every answer is read by the samplers that training uses, so that what they refuse is a broken promise here.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

from harbor_gym._runtime.console.tables import plain_table
from harbor_gym._runtime.errors import MissingDependencyError
from harbor_gym.errors import ContextOverflowError, HarborGymError, SamplerError, UsageError
from harbor_gym.samplers import CompletionsSampler, EngineSettingsError, SGLangSampler
from harbor_gym.samplers.engine_client import EngineClient
from harbor_gym.types import Sample

Api = Literal["completions", "sglang", "chat"]
"""``POST /v1/completions`` with token ids, as vLLM has it; SGLang's ``POST /generate``; ``POST /v1/chat/completions``
with ``return_token_ids``, as vLLM and this package's gateway have it."""

_PROMPT = tuple(range(300, 308))
"""Ids that every vocabulary has."""
_TOKENS, _AT_ONCE, _TRIES = 8, 8, 6
_MAX_WINDOW = 1 << 18
"""The longest window that is overrun, in tokens: the request is a few megabytes."""
_LEAST_DIFFERENCE = 1e-4
_NOT_ASKED = "not asked, as the engine gave no usable answer"

type _Found = tuple[bool | None, str]


class Decoder(Protocol):
    """Writes token ids as text; a tokenizer of transformers does."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of tokens, without the control tokens among them if they are to be skipped."""
        ...


@dataclass(frozen=True)
class Finding:
    """Whether one promise is kept."""

    promise: str
    is_needed: bool
    """Whether training is wrong without it; else it is slower, or an error is found later."""

    kept: bool | None
    """None: it can't be told."""

    reason: str


@dataclass(frozen=True)
class EngineReport:
    """What was found of one engine."""

    url: str
    api: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether no needed promise is broken."""
        return all(found.kept is not False or not found.is_needed for found in self.findings)

    def as_object(self) -> dict[str, Any]:
        """Return the findings, ready for JSON."""
        return {**dataclasses.asdict(self), "ok": self.ok}

    def __str__(self) -> str:
        rows = [
            (found.promise, {True: "yes", False: "NO", None: "?"}[found.kept], _weight(found), found.reason)
            for found in self.findings
        ]
        return plain_table(("promise", "kept", "", "reason"), rows)


def _weight(found: Finding) -> str:
    return "needed" if found.is_needed else "advised"


def load_decoder(tokenizer: str) -> Decoder:
    """Return a tokenizer by its directory or its name on the hub.

    Raises:
        MissingDependencyError: transformers is not installed.
        UsageError: There is no such tokenizer.
    """
    try:
        from transformers import AutoTokenizer
    except ModuleNotFoundError as exc:
        raise MissingDependencyError("--tokenizer needs transformers: pip install transformers") from exc
    try:
        return cast("Decoder", AutoTokenizer.from_pretrained(tokenizer))
    except (OSError, ValueError) as exc:
        raise UsageError(f"--tokenizer {tokenizer}: {exc}") from exc


async def check_engine(
    url: str,
    *,
    api: Api = "completions",
    model: str | None = None,
    tokenizer: Decoder | None = None,
    api_key_env: str | None = None,
    timeout_sec: float = 120.0,
) -> EngineReport:
    """Send some dozens of short requests to an engine, and one that is too long for it; return what they show.

    Args:
        url: The engine's address, with or without ``/v1``.
        api: Which of its endpoints.
        model: The model's name; None takes the only one that ``/v1/models`` lists.
        tokenizer: The model's: the answers' text is compared with their ids.
        api_key_env: Name of the environment variable that holds the engine's key.
        timeout_sec: Longest wait for one answer, in seconds.

    Raises:
        UsageError: No model is named and the engine doesn't list exactly one, or the variable is not set.
    """
    line = _Line(url, api, model or "", tokenizer, api_key_env, timeout_sec)
    if api != "sglang" and model is None:
        names, _ = await line.listed()
        if len(names) != 1:
            raise UsageError(f"{url} lists {len(names)} models at /v1/models: name one (--model)")
        (line.model,) = names
    findings: list[Finding] = []
    for promise, is_needed, probe in _CHAT if api == "chat" else _TOKEN_IDS:
        if findings and findings[0].kept is False:
            found: _Found = None, _NOT_ASKED
        else:
            found = await _probed(probe, line)
        findings.append(Finding(promise, is_needed, *found))
    return EngineReport(url, api, tuple(findings))


async def _probed(probe: Callable[[_Line], Awaitable[_Found]], line: _Line) -> _Found:
    try:
        return await probe(line)
    except HarborGymError as exc:
        return False, str(exc)


class _Noting(EngineClient):
    """Keeps the last answer as it came."""

    answer: Any = None

    async def _post[T](self, body: Any, read: Callable[[object], T]) -> T:
        def note(answer: object) -> T:
            self.answer = answer
            return read(answer)

        return await super()._post(body, note)


class _Completions(_Noting, CompletionsSampler):
    pass


class _SGLang(_Noting, SGLangSampler):
    pass


class _Chat(EngineClient):
    async def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        return await self._post(body, lambda answer: cast("dict[str, Any]", answer))


@dataclass
class _Line:
    """The way to one engine."""

    url: str
    api: Api
    model: str
    tokenizer: Decoder | None
    api_key_env: str | None
    timeout_sec: float

    def _common(self) -> dict[str, Any]:
        return {"api_key_env": self.api_key_env, "timeout_sec": self.timeout_sec, "max_attempts": 3}

    async def listed(self) -> tuple[list[str], int | None]:
        """Return the names of the models, and the window in tokens that all of them have."""
        async with EngineClient(self.url, "/v1/models", **self._common()) as client:
            names = [model["id"] for model in await client.models() if isinstance(model.get("id"), str)]
            return names, await client.context_tokens()

    async def sample(
        self,
        prompt: Sequence[int] = _PROMPT,
        *,
        max_tokens: int = _TOKENS,
        temperature: float = 1.0,
        stop: Sequence[int] = (),
        model: str | None = None,
    ) -> tuple[Sample, Any]:
        """Return a sample, as training would have it, and the answer that it is from."""
        settings: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature, "stop_token_ids": stop}
        settings |= self._common()
        if self.api == "sglang":
            client = _SGLang(self.url, **settings)
        else:
            client = _Completions(self.url, model or self.model, **settings)
        async with client:
            return await client(prompt), client.answer

    async def chat(self, messages: Sequence[dict[str, str]], **more: Any) -> tuple[Sample, list[int], dict[str, Any]]:
        """Return an answer's sample, its prompt's ids, and its message."""
        body = {"model": self.model, "messages": messages, "max_tokens": _TOKENS, "logprobs": True, **more}
        async with _Chat(self.url, "/v1/chat/completions", **self._common()) as client:
            answer = await client.ask({**body, "return_token_ids": True})
        match answer:
            case {
                "choices": [{"message": {**message}, "token_ids": [*ids], "logprobs": {"content": [*items]}, **rest}]
            }:
                sample = Sample(ids, [item.get("logprob") for item in items], rest.get("finish_reason"))  # pyright: ignore[reportArgumentType]  # checked() does
            case _:
                raise EngineSettingsError(
                    "the answer has no token_ids with logprobs: return_token_ids and logprobs had no effect"
                )
        prompt = answer.get("prompt_token_ids")
        if not isinstance(prompt, list):
            raise EngineSettingsError("the answer has no prompt_token_ids: return_token_ids had no effect")
        return sample.checked(), cast("list[int]", prompt), message


# -- promises of an endpoint that takes token ids ----------------------------------------------------------------------


async def _exact_ids(line: _Line) -> _Found:
    sample, _ = await line.sample()
    return bool(sample.tokens), f"{len(sample.tokens)} ids with finite log-probabilities for {len(_PROMPT)} ids"


def _echo(answer: Any) -> list[int] | None:
    match answer:
        case {"choices": [{"prompt_token_ids": [*ids]}]} | {"prompt_token_ids": [*ids]}:
            return cast("list[int]", ids)
        case _:
            return None


def _count(answer: Any) -> int | None:
    match answer:
        case {"usage": {"prompt_tokens": int(count)}} | {"meta_info": {"prompt_tokens": int(count)}}:
            return count
        case _:
            return None


async def _same_prompt(line: _Line) -> _Found:
    """The samplers refuse another count."""
    sample, answer = await line.sample()
    longer = [*_PROMPT, *sample.tokens, *_PROMPT]
    _, second = await line.sample(longer)
    for sent, got in ((list(_PROMPT), answer), (longer, second)):
        echo, count = _echo(got), _count(got)
        if echo is not None and echo != sent:
            return False, f"sent {sent[:4]}… ({len(sent)} ids), used {echo[:4]}… ({len(echo)} ids)"
        if echo is None and count is None:
            return None, "it reports neither prompt_token_ids nor the prompt's count of tokens"
    return True, "the prompt was used as sent, also behind an answer of its own"


async def _length(line: _Line) -> _Found:
    sample, _ = await line.sample(max_tokens=1)
    if len(sample.tokens) == 1 and sample.stop_reason == "length":
        return True, "one token, which ended by length"
    if sample.stop_reason == "stop":
        return None, "the model ended its message at once"
    return False, f"max_tokens 1 gave {len(sample.tokens)} tokens, which ended by {sample.stop_reason}"


async def _stop_token(line: _Line) -> _Found:
    first, _ = await line.sample(temperature=0.0)
    stop = first.tokens[0]
    ended, _ = await line.sample(temperature=0.0, stop=(stop,))
    if ended.stop_reason == "stop" and ended.tokens[-1:] == [stop]:
        return True, f"a message that ended by token {stop} has it as its last"
    if ended.stop_reason == "stop" and stop not in ended.tokens:
        return False, f"a message that ended by token {stop} lacks it: the policy never learns to end"
    if stop in ended.tokens:
        return False, f"token {stop} of stop_token_ids did not end the message"
    return None, "the same prompt gave other tokens at temperature 0"


async def _distribution(line: _Line) -> _Found:
    seen: list[dict[int, float]] = [{}, {}]
    for _ in range(_TRIES):
        for place, temperature in enumerate((1.0, 0.5)):
            sample, _ = await line.sample(max_tokens=1, temperature=temperature)
            seen[place].update(zip(sample.tokens, sample.logprobs or (), strict=True))
    shared = [(seen[0][token], seen[1][token]) for token in seen[0] if token in seen[1]]
    if not (telling := [pair for pair in shared if min(pair) < -_LEAST_DIFFERENCE]):
        return None, "no token was sampled at two temperatures, or only certain ones"
    if any(math.isclose(one, other, abs_tol=_LEAST_DIFFERENCE) for one, other in telling):
        return (
            False,
            "they are the same at another temperature: train at 1 alone (vLLM: --logprobs-mode processed_logprobs)",
        )
    return True, "log-probabilities follow the temperature"


async def _window(line: _Line) -> _Found:
    _, window = await line.listed()
    if window is None:
        return False, "/v1/models reports no single max_model_len: only refusals limit a prompt"
    return True, f"{window} tokens"


async def _overflow(line: _Line) -> _Found:
    _, window = await line.listed()
    if window is None or window > _MAX_WINDOW:
        return None, f"its window is {'not reported' if window is None else f'{window} tokens'}"
    try:
        await line.sample([_PROMPT[0]] * (window + 1))
    except ContextOverflowError:
        return True, f"{window + 1} tokens are refused by name"
    except SamplerError as exc:
        return False, f"the refusal is not recognized as one of the prompt's length: {exc}"
    return False, f"a prompt of {window + 1} tokens was answered: what it was cut to is not known"


async def _together(line: _Line) -> _Found:
    prompts = [_PROMPT[:1] * count for count in range(1, _AT_ONCE + 1)]
    answers = await asyncio.gather(*[line.sample(prompt) for prompt in prompts])
    for prompt, (_, answer) in zip(prompts, answers, strict=True):
        if (echo := _echo(answer)) is not None and echo != [*prompt]:
            return False, f"an answer is to a prompt of {len(echo)} tokens, and {len(prompt)} were sent"
    return True, f"{_AT_ONCE} requests at once were each answered"


async def _text(line: _Line) -> _Found:
    if line.tokenizer is None:
        return None, "give the model's tokenizer (--tokenizer)"
    sample, answer = await line.sample()
    match answer:
        case {"choices": [{"text": str(text)}]} | {"text": str(text)}:
            pass
        case _:
            return None, "the answer has no text"
    decoded = [line.tokenizer.decode(sample.tokens, skip_special_tokens=skips) for skips in (False, True)]
    if text.strip() in [written.strip() for written in decoded]:
        return True, "the text is what the tokenizer makes of the ids"
    return (
        False,
        f"the text is {text!r:.60}, and the ids are {decoded[0]!r:.60}: another model's tokenizer, or changed ids",
    )


async def _unknown_model(line: _Line) -> _Found:
    if line.api == "sglang":
        return None, "a request names no model"
    try:
        await line.sample(model="harbor-gym-no-such-model")
    except EngineSettingsError:
        return True, "another name is refused"
    except SamplerError as exc:
        return False, f"the refusal of another name is not recognized: {exc}"
    return False, "another name is answered as well: a misspelt one is never noticed"


_TOKEN_IDS: Sequence[tuple[str, bool, Callable[[_Line], Awaitable[_Found]]]] = (
    ("takes and returns token ids", True, _exact_ids),
    ("uses the prompt as sent", True, _same_prompt),
    ("text is that of the ids", True, _text),
    ("a message has its stop token", True, _stop_token),
    ("keeps max_tokens", True, _length),
    ("refuses a prompt that is too long", True, _overflow),
    ("answers requests at once apart", True, _together),
    ("log-probabilities of the sampling", False, _distribution),
    ("reports its window", False, _window),
    ("refuses an unknown model", False, _unknown_model),
)


# -- promises of a chat endpoint, as an agent uses it ------------------------------------------------------------------

_ASK = {"role": "user", "content": "List the files of this directory."}


async def _chat_ids(line: _Line) -> _Found:
    sample, prompt, _ = await line.chat([_ASK])
    return bool(
        sample.tokens and prompt
    ), f"{len(sample.tokens)} ids with finite log-probabilities for {len(prompt)} ids"


async def _history(line: _Line) -> _Found:
    sample, prompt, message = await line.chat([_ASK])
    _, second, _ = await line.chat([_ASK, message, {"role": "user", "content": "Go on."}])
    whole = [*prompt, *sample.tokens]
    if second[: len(whole)] == whole:
        return True, f"the second prompt begins with the first and its answer ({len(whole)} ids)"
    place = next((n for n, (a, b) in enumerate(zip(whole, second, strict=False)) if a != b), len(second))
    return False, f"the second prompt differs from the first and its answer from id {place} of {len(whole)} on"


async def _chat_length(line: _Line) -> _Found:
    sample, _, _ = await line.chat([_ASK], max_tokens=1)
    return len(
        sample.tokens
    ) <= 1, f"max_tokens 1 gave {len(sample.tokens)} tokens, which ended by {sample.stop_reason}"


_CHAT: Sequence[tuple[str, bool, Callable[[_Line], Awaitable[_Found]]]] = (
    ("returns token ids", True, _chat_ids),
    ("the next prompt continues the last", True, _history),
    ("keeps max_tokens", False, _chat_length),
    ("reports its window", False, _window),
)
