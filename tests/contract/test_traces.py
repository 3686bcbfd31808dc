"""An episode's trace, by every adapter: one an episode, with its parts."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from harbor_gym._runtime import traces
from tests.contract.players.episode import Episode, Script
from tests.contract.test_same_episode import ADAPTERS, SOLVED, adapters
from tests.helpers.sandboxes.fake_episodes import message
from tests.helpers.tasks import DONE, write_task

pytestmark = pytest.mark.usefixtures("nothing_left")

TWICE = {"openenv-server", "trl", "trl-async", "trl-async-agent"}
"""The loop and the server each send one; TRL's play a group of two."""


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
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    yield exporter.get_finished_spans
    provider.shutdown()


@pytest.mark.parametrize("adapter", adapters())
async def test_an_episode_is_one_trace(adapter: str, model_dir: str, spans: Any, tmp_path: Path) -> None:
    options = {"solved_when": {"/srv/answer": "done"}}
    sandbox = "tests.contract.players.episode:Vanishing"
    await ADAPTERS[adapter](Episode(write_task(tmp_path / "task"), model_dir, SOLVED, sandbox, options))
    whole = [span for span in spans() if span.name == "episode"]
    print([(dict(s.attributes)) for s in whole])
    for e in whole:
        print([(s.name, s.end_time-s.start_time, dict(s.attributes)) for s in spans() if s.parent and s.parent.span_id==e.context.span_id])
    assert len(whole) == 1 + (adapter in TWICE)
