"""The gateway's cost of a call: the same conversations through it, and to its sampler behind a bare HTTP server."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, override

from aiohttp import web

from harbor_gym._runtime.console.tables import plain_table
from harbor_gym._runtime.harbor_versions import require_server
from harbor_gym._runtime.processes import start_process
from harbor_gym.errors import HarborGymError, UsageError
from harbor_gym.gateway import Gateway
from harbor_gym.types import ChatMessage, Sample
from tests.benchmarks.gateway.client import Findings, Plan
from tests.benchmarks.gateway.relay_server import relay_of
from tests.benchmarks.report import BenchReport, percentile
from tests.helpers.loopback import on_loopback
from tests.helpers.paths import ROOT

OPENING_TOKENS = 2000
TURN_TOKENS = 100
"""Length of an answer and of a message after it. So the mean prompt of 20 calls has some 3900 tokens."""

DEFAULT_CALLS_PER_SEC = 100.0
_LITELLM_SHARE = 8
"""One in so many conversations is held by litellm, whose client takes ten times a plain one's processor time."""

GATEWAY, DIRECT = "gateway", "sampler alone"
LITELLM = "sampler alone, by litellm"
RELAY = "gateway behind Harbor's relay"

_TOKEN_BYTES = 4
_SAMPLE = [int.from_bytes(b"text", sys.byteorder)] * TURN_TOKENS
_LOGPROBS = [-1.0] * TURN_TOKENS


@dataclass(frozen=True, slots=True)
class EndpointRow:
    """All calls to one endpoint."""

    endpoint: str
    calls: int
    calls_per_sec: float
    """Rate at which calls were due."""

    late: int
    """Calls that were due before their conversation's previous one was answered."""

    median_ms: float
    """Time of a call over the sampler's own, median."""

    p99_ms: float
    """The same, 99th percentile."""

    server_cpu_ms: float
    """Processor time of a call in the process that serves it, the sampler's and the HTTP server's included."""

    client_cpu_ms: float
    """Processor time of a call in the client's process."""


@dataclass(frozen=True, slots=True)
class GatewayReport(BenchReport):
    """The results of ``make bench ARGS=gateway``."""

    sessions: int
    calls: int
    """Calls of each session."""

    sampler_sec: float
    rows: tuple[EndpointRow, ...]
    segments: int
    """Training sequences that the gateway recorded; one for each session if every call was bridged."""

    prompt_tokens: float
    """Mean length of a prompt."""

    @property
    @override
    def is_right(self) -> bool:
        """Return whether each conversation is one training sequence."""
        return self.segments == self.sessions

    def ratios(self) -> dict[str, float]:
        """Return how many times the bare server's the gateway's figures are."""
        by_name = {row.endpoint: row for row in self.rows}
        ours, bare = by_name[GATEWAY], by_name[DIRECT]
        names = ("median_ms", "p99_ms", "server_cpu_ms")
        return {name: round(getattr(ours, name) / max(getattr(bare, name), 0.01), 2) for name in names}

    @override
    def as_object(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"ratio_to_sampler_alone": self.ratios(), "one_segment_each": self.is_right}


class WordCodec:
    """A chat codec that costs next to nothing: a token is four bytes of text, and a message ends with a zero."""

    def prompt(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Return the tokens of a chat."""
        return [token for message in messages for token in (*_tokens(message["content"]), 0)]

    def next_turn(self, sampled: Sequence[int], message: str) -> list[int]:
        """Return the tokens that follow an answer."""
        return [0, *_tokens(message), 0]

    def text(self, sampled: Sequence[int]) -> str:
        """Return the text of an answer."""
        return b"".join(token.to_bytes(_TOKEN_BYTES, sys.byteorder) for token in sampled).decode()


def _tokens(text: str) -> list[int]:
    raw = text.encode()
    return memoryview(raw.ljust(-len(raw) // _TOKEN_BYTES * -_TOKEN_BYTES)).cast("I").tolist()


async def bench_gateway(
    *,
    sessions: int = 64,
    calls: int = 20,
    sampler_sec: float = 0.05,
    calls_per_sec: float | None = None,
    with_litellm: bool = False,
    with_relay: bool = False,
) -> GatewayReport:
    """Hold the same conversations with the sampler alone and with the gateway, one after the other.

    The client is a process of its own and sends a call when it is due, whether earlier ones were answered or not: what
    is measured is the time of a call and not how many a busy machine can serve.

    Args:
        sessions: Conversations at once.
        calls: Calls of each conversation.
        sampler_sec: Time that the sampler takes, which costs no processor time.
        calls_per_sec: Rate of all conversations together. None: one that leaves each conversation three times the
            sampler's time for a call, at most ``DEFAULT_CALLS_PER_SEC``.
        with_litellm: Whether litellm's client is measured too, with fewer conversations at the same rate each.
        with_relay: Whether the gateway is measured behind Harbor's inference relay, too.

    Raises:
        UsageError: A conversation's calls would be due faster than the sampler answers, or this Harbor has no relay.
        HarborGymError: The client failed.
    """
    rate = calls_per_sec or min(DEFAULT_CALLS_PER_SEC, sessions / (3 * sampler_sec) if sampler_sec else float("inf"))
    if sessions / rate <= sampler_sec:
        raise UsageError(
            f"{rate:g} calls a second in {sessions} sessions are due every {sessions / rate:g} s in each, and the "
            f"sampler takes {sampler_sec:g} s: lower the rate or the sampler's time"
        )

    if with_relay:
        require_server()

    async def sample(prompt: Sequence[int]) -> Sample:
        await asyncio.sleep(sampler_sec)
        return Sample(_SAMPLE, _LOGPROBS)

    async def measure(
        name: str, urls: list[str], *, through_litellm: bool = False, keys: list[str] | None = None
    ) -> EndpointRow:
        plan = Plan(urls, calls, rate * len(urls) / sessions, OPENING_TOKENS, TURN_TOKENS, through_litellm, keys or [])
        before = time.process_time()
        found = await run_client(plan)
        return _row(name, plan, found, time.process_time() - before, sampler_sec)

    rows: list[EndpointRow] = []
    async with _bare_server(sample) as url:
        await _warm_up(url)
        rows.append(await measure(DIRECT, [url] * sessions))
        if with_litellm:
            rows.append(await measure(LITELLM, [url] * -(-sessions // _LITELLM_SHARE), through_litellm=True))
    async with Gateway(sample, WordCodec(), model="policy") as gateway:
        await _warm_up(gateway.open_session().base_url)
        opened = [gateway.open_session() for _ in range(sessions)]
        rows.append(await measure(GATEWAY, [session.base_url for session in opened]))
        if with_relay:
            opened = [gateway.open_session() for _ in range(sessions)]
            async with relay_of(gateway, opened) as relay:
                rows.append(await measure(RELAY, relay.urls, keys=relay.keys))
    prompts = [len(call.prompt) for session in opened for call in session.calls]
    return GatewayReport(
        sessions=sessions,
        calls=calls,
        sampler_sec=sampler_sec,
        rows=tuple(rows),
        segments=sum(len(session.segments) for session in opened),
        prompt_tokens=round(statistics.mean(prompts), 1),
    )


@asynccontextmanager
async def _bare_server(sample: Any) -> AsyncGenerator[str]:
    """Serve the sampler with the least that a server of chat completions does: read JSON, sample, write JSON."""
    text = WordCodec().text(_SAMPLE)

    async def answer(request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        await sample(())
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 0, "completion_tokens": TURN_TOKENS, "total_tokens": TURN_TOKENS}
        whole = {"id": "chatcmpl-0", "object": "chat.completion", "created": 0, "model": body["model"]}
        return web.json_response(whole | {"choices": [choice], "usage": usage})

    app = web.Application(client_max_size=1 << 22)
    app.router.add_post("/v1/chat/completions", answer)
    async with on_loopback(app) as url:
        yield url


async def _warm_up(url: str) -> None:
    await run_client(Plan([url], 3, 10.0, OPENING_TOKENS, TURN_TOKENS))


async def run_client(plan: Plan) -> Findings:
    """Hold a plan's conversations in a process of their own.

    Raises:
        HarborGymError: The client failed.
    """
    pipe = asyncio.subprocess.PIPE
    argv = (sys.executable, "-W", "ignore", "-m", "tests.benchmarks.gateway.client")
    process = await start_process(*argv, stdin=pipe, stdout=pipe, stderr=pipe, env=dict(os.environ), cwd=ROOT)
    try:
        output, errors = await process.communicate(json.dumps(dataclasses.asdict(plan)).encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise HarborGymError(f"the benchmark's client failed: {errors.decode(errors='replace')[-2000:]}")
    return Findings(**json.loads(output))


def _row(name: str, plan: Plan, found: Findings, cpu_sec: float, sampler_sec: float) -> EndpointRow:
    over_ms = [(latency - sampler_sec) * 1000 for latency in found.latencies_sec]
    calls = len(over_ms)
    return EndpointRow(
        endpoint=name,
        calls=calls,
        calls_per_sec=round(plan.calls_per_sec, 1),
        late=found.late,
        median_ms=round(statistics.median(over_ms), 2),
        p99_ms=round(percentile(over_ms, 99), 2),
        server_cpu_ms=round(cpu_sec / calls * 1000, 2),
        client_cpu_ms=round(found.cpu_sec / calls * 1000, 2),
    )


def format_gateway(report: GatewayReport) -> str:
    """Return the report for people."""
    titles = ("endpoint", "calls", "due/s", "late", "median ms", "p99 ms", "server CPU ms", "client CPU ms")
    cells = [_cells(row) for row in report.rows]
    ratios = [f"{ratio:.1f} x" for ratio in report.ratios().values()]
    cells.append((f"{GATEWAY} to {DIRECT}", "", "", "", *ratios, ""))
    table = plain_table(titles, cells, right=range(1, len(titles)))
    return (
        f"{table}\n"
        f"median and p99 are over the sampler's own {report.sampler_sec * 1000:g} ms; "
        f"prompts of {report.prompt_tokens:g} tokens in the mean\n"
        f"training sequences of {report.sessions} sessions: {report.segments}"
    )


def _cells(row: EndpointRow) -> tuple[str, ...]:
    figures = (row.median_ms, row.p99_ms, row.server_cpu_ms, row.client_cpu_ms)
    cells = (row.endpoint, str(row.calls), f"{row.calls_per_sec:g}", str(row.late))
    return *cells, *(f"{figure:.2f}" for figure in figures)
