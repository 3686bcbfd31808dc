"""An episode's trace, by every adapter: one an episode, with its parts."""

import contextlib
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import AsyncTerminalGymEnv, Sample, SandboxError, TokenTerminalEnv, run_episode
from harbor_gym._runtime import traces
from harbor_gym.evaluation import Player
from harbor_gym.transcripts import write_transcript
from tests.contract.differences import AGENTS
from tests.contract.players.episode import Episode
from tests.contract.test_same_episode import ADAPTERS, SOLVED, adapters
from tests.helpers.chats.character_codec import CharacterCodec
from tests.helpers.sandboxes.fake_episodes import COMPLETE, FAKE, fake_config
from tests.helpers.tasks import DONE, write_task

pytestmark = pytest.mark.usefixtures("nothing_left")

TWICE = {"openenv-server", "trl", "trl-async", "trl-async-agent"}
"""The loop and the server each send one; TRL's play a group of two."""


async def completing(_prompt: Sequence[int]) -> Sample:
    return Sample([*map(ord, COMPLETE)], None)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    """Yield a function that returns the spans so far."""
    pytest.importorskip("opentelemetry.sdk", reason='pip install "harbor-gym[otel]"')
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(traces, "_tracer", lambda: provider.get_tracer("harbor_gym"))
    monkeypatch.setattr(traces, "_counter", lambda: None)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    yield exporter.get_finished_spans
    provider.shutdown()


@pytest.mark.parametrize("adapter", adapters())
async def test_an_episode_is_one_trace(adapter: str, model_dir: str, spans: Any, tmp_path: Path) -> None:
    options = {"solved_when": {"/srv/answer": "done"}}
    sandbox = "tests.contract.players.episode:Vanishing"
    await ADAPTERS[adapter](Episode(write_task(tmp_path / "task"), model_dir, SOLVED, sandbox, options))
    whole, count = [span for span in spans() if span.name == "episode"], 1 + (adapter in TWICE)
    assert len(whole) == count
    for episode in whole:
        known = episode.attributes
        assert (known["harbor_gym.reward"], known["harbor_gym.end_reason"]) == (1.0, "completed")
        assert known.get("harbor_gym.task", "task").endswith("task")  # a client of a server knows none
        below = [span for span in spans() if span.parent is not None and span.parent.span_id == episode.context.span_id]
        names = Counter(span.name for span in below)
        assert names == {"sample": 3} if adapter in AGENTS else {"reset": 1, "sample": 3, "step": 3, "grade": 1}
        has_tokens = [
            bool(span.attributes.get("gen_ai.usage.output_tokens")) for span in below if span.name == "sample"
        ]
        assert all(has_tokens) or adapter in ("gymnasium", "openenv-server"), "who only steps has no tokens"


async def test_a_lost_episode_and_an_end_without_a_turn_have_traces(spans: Any, tmp_path: Path) -> None:
    config = fake_config(tmp_path / "task", fail={"start": 1})
    async with AsyncTerminalGymEnv(config) as env:
        with pytest.raises(SandboxError):
            await env.reset()
    (lost,) = [span for span in spans() if span.name == "episode"]
    assert lost.status.description
    assert "harbor_gym.reward" not in lost.attributes
    async with AsyncTerminalGymEnv(fake_config(tmp_path / "task")) as env:
        await env.reset()
        await env.step([("true\n", 1.0)])
        await env.finish()
    ended = spans()[-1]
    assert (ended.name, ended.attributes["harbor_gym.turns"]) == ("episode", 1)
    assert [span.name for span in spans()[-5:-1]] == ["reset", "sample", "step", "grade"]


async def test_an_episode_with_a_transcript_has_one_trace(spans: Any, tmp_path: Path) -> None:
    player = Player(CharacterCodec(), completing, max_tokens=1000, transcripts_dir=tmp_path / "out")
    await player.attempt(fake_config(tmp_path / "task"), 3)
    env = TokenTerminalEnv(AsyncTerminalGymEnv(fake_config(tmp_path / "task")), CharacterCodec(), max_tokens=1000)
    rollout = await run_episode(env, completing)
    write_transcript(tmp_path / "own.json", rollout.transcript, labels={"episode": 4})
    labels = [span.attributes.get("harbor_gym.episode") for span in spans() if span.name == "episode"]
    assert labels == [3, None]


async def test_without_an_endpoint_nothing_is_made(spans: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    async with AsyncTerminalGymEnv(fake_config(tmp_path / "task")) as env:
        await env.reset()
        await env.finish()
    assert not spans()


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Generator[Callable[[], dict[tuple[str, ...], int]]]:
    """Yield a function that returns the episodes so far by outcome, end and error."""
    pytest.importorskip("opentelemetry.sdk", reason='pip install "harbor-gym[otel]"')
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    counter = provider.get_meter("harbor_gym").create_counter("harbor_gym.episodes")
    monkeypatch.setattr(traces, "_counter", lambda: counter)
    monkeypatch.setattr(traces, "_tracer", lambda: pytest.fail("no trace is wanted"))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://127.0.0.1:9")

    def read() -> dict[tuple[str, ...], int]:
        data: Any = reader.get_metrics_data()
        points = data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points if data else ()
        names = ("harbor_gym.outcome", "harbor_gym.end_reason", "error.type")
        found = Counter[tuple[str, ...]]()  # OpenEnv's client knows no sandbox, which is an attribute, too
        for point in points:
            found[tuple(point.attributes.get(name, "") for name in names)] += point.value
        return dict(found)

    yield read
    provider.shutdown()


async def test_outcomes_are_counted_without_traces(
    counts: Callable[[], dict[tuple[str, ...], int]], tmp_path: Path
) -> None:
    solved = fake_config(tmp_path / "task", solved_when={"/srv/answer": "done"})
    lost = fake_config(tmp_path / "lost", fail={"start": 1})
    for config, text in ((solved, DONE), (solved, "true"), (solved, "true"), (lost, "")):
        async with AsyncTerminalGymEnv(config) as env:
            with contextlib.suppress(SandboxError):
                await env.reset()
                await env.step([(f"{text}\n", 1.0)])
                await env.finish()
    assert counts() == {
        ("solved", "completed", ""): 1,
        ("failed", "completed", ""): 2,
        ("lost", "infrastructure_error", "SandboxStartError"): 1,
    }


@pytest.mark.parametrize("adapter", adapters())
async def test_each_door_counts_an_episode_once(
    adapter: str, model_dir: str, counts: Callable[[], dict[tuple[str, ...], int]], tmp_path: Path
) -> None:
    options = {"solved_when": {"/srv/answer": "done"}}
    await ADAPTERS[adapter](Episode(write_task(tmp_path / "task"), model_dir, SOLVED, FAKE, options))
    assert counts() == {("solved", "completed", ""): 1 + (adapter in TWICE)}
