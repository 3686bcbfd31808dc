"""The client of ``make bench ARGS=gateway``, in a process of its own: growing conversations at a fixed rate.

``python -m tests.benchmarks.gateway.client`` reads a :class:`Plan` as JSON from its standard input and writes what it
found, a :class:`Findings`, to its standard output.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

_CHARACTERS_PER_TOKEN = 4

type _Message = dict[str, Any]
type _Ask = Callable[[str, str, list[_Message]], Awaitable[str]]
"""Sends a conversation to a base URL, with a key, and returns the answer's text."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One client's work: in each conversation a call every ``len(urls) / calls_per_sec`` seconds."""

    urls: list[str]
    """Base URL of each conversation, without ``/v1``."""

    calls: int
    """Calls of each conversation."""

    calls_per_sec: float
    """Calls of all conversations together that are due in a second, whether earlier ones were answered or not."""

    opening_tokens: int
    """Length of a conversation's first message."""

    turn_tokens: int
    """Length of the messages after it."""

    through_litellm: bool = False
    """Whether litellm sends the calls, as Harbor's agents on the host do."""

    keys: list[str] = field(default_factory=list[str])
    """The key of each conversation, where its URL has none."""


@dataclass(frozen=True, slots=True)
class Findings:
    """One client's measurements."""

    latencies_sec: list[float]
    """Time of each call from the moment it was due to its whole answer, read as JSON."""

    late: int
    """Calls that were due before their conversation's previous one was answered."""

    cpu_sec: float
    """Processor time of the client, without its imports."""


async def converse(plan: Plan) -> Findings:
    """Hold all conversations at once.

    Raises:
        aiohttp.ClientError: A call was not answered.
    """
    latencies: list[float] = []
    late = 0

    async def hold(number: int, url: str, ask: _Ask) -> None:
        nonlocal late
        key = plan.keys[number] if plan.keys else "none"
        messages = [_user(plan.opening_tokens)]
        for call in range(plan.calls):
            due = started + (call * len(plan.urls) + number) / plan.calls_per_sec
            wait = due - time.monotonic()
            late += call > 0 and wait < 0
            await asyncio.sleep(wait)
            answer = await ask(url, key, messages)
            latencies.append(time.monotonic() - due)
            messages += [{"role": "assistant", "content": answer}, _user(plan.turn_tokens)]

    async with _Clients(plan.through_litellm) as ask:
        if plan.through_litellm:
            await ask(plan.urls[0], "none", [_user(1)])  # its first call imports more, for a second
        cpu = time.process_time()
        started = time.monotonic() + 0.1
        async with asyncio.TaskGroup() as group:
            for number, url in enumerate(plan.urls):
                group.create_task(hold(number, url, ask))
        return Findings(latencies, late, time.process_time() - cpu)


class _Clients:
    """A client over plain HTTP, or litellm's."""

    def __init__(self, through_litellm: bool) -> None:
        self._through_litellm = through_litellm

    async def __aenter__(self) -> _Ask:
        import aiohttp

        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return _litellm() if self._through_litellm else self._post

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def _post(self, url: str, key: str, messages: list[_Message]) -> str:
        body, own = {"model": "policy", "messages": messages}, {"Authorization": f"Bearer {key}"}
        url = f"{url}/v1/chat/completions"
        async with self._http.post(url, json=body, headers=own, raise_for_status=True) as response:
            return (await response.json())["choices"][0]["message"]["content"]


def _litellm() -> _Ask:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it is downloaded
    import litellm

    complete: Any = litellm.acompletion  # pyright: ignore[reportUnknownMemberType]  # its types are incomplete

    async def ask(url: str, key: str, messages: list[_Message]) -> str:
        answer = await complete(model="openai/policy", api_base=f"{url}/v1", api_key=key, messages=messages)
        return answer.choices[0].message.content

    return ask


def _user(tokens: int) -> _Message:
    return {"role": "user", "content": ("word " * tokens)[: tokens * _CHARACTERS_PER_TOKEN]}


def _main() -> None:
    plan = Plan(**json.loads(sys.stdin.read()))
    sys.stdout.write(json.dumps(dataclasses.asdict(asyncio.run(converse(plan)))))


if __name__ == "__main__":
    _main()
