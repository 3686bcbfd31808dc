"""An episode as a trace: by a collector on this machine, and that nothing is imported where there is none."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.helpers.loopback import on_loopback

_WRITE = """
import sys
from harbor_gym.transcripts import write_transcript
from harbor_gym.types import EpisodeInfo, Transcript, Turn
info = EpisodeInfo(turn=1, metrics={"time/step_sec": 0.5, "time/verifier_sec": 2.0}, end_reason="completed")
turn = Turn("$ ", "ls", info, 1.0, prompt_tokens=7, sampled_tokens=3, thinking_sec=0.25)
start = EpisodeInfo(turn=0, metrics={"time/sandbox_start_sec": 1.0, "time/terminal_open_sec": 0.5}, task="one")
transcript = Transcript([turn], started=1000.0, start_info=start)
write_transcript(sys.argv[1], transcript, labels={"episode": 3}, error=sys.argv[2] or None)
write_transcript(sys.argv[1] + ".snapshot", transcript, labels={"snapshot": {}})
print(*[name for name in sys.modules if name.startswith("opentelemetry")])
"""


def _run(path: Path, *, error: str = "", **environment: str) -> str:
    own = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    command = [sys.executable, "-c", _WRITE, path, error]
    return subprocess.run(command, env={**own, **environment}, check=True, capture_output=True, text=True).stdout


def test_nothing_is_imported_without_a_collector(tmp_path: Path) -> None:
    assert _run(tmp_path / "episode.json") == "\n"


@pytest.mark.parametrize("error", ["", "the sandbox is gone"])
async def test_a_collector_gets_one_trace_an_episode(tmp_path: Path, error: str) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason='pip install "harbor-gym[otel]"')
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    received: list[Any] = []
    counted: list[Any] = []

    async def take(request: web.Request) -> web.Response:
        received.append(ExportTraceServiceRequest.FromString(await request.read()))
        return web.Response()

    async def count(request: web.Request) -> web.Response:
        counted.append(ExportMetricsServiceRequest.FromString(await request.read()))
        return web.Response()

    application = web.Application()
    application.router.add_post("/v1/traces", take)
    application.router.add_post("/v1/metrics", count)
    async with on_loopback(application) as url:
        settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_COMPRESSION": "none"}
        await asyncio.to_thread(_run, tmp_path / "episode.json", error=error, **settings)
    ((resource,),) = [message.resource_spans for message in received]
    ((scope,),) = [resource.scope_spans]
    spans = {span.name: span for span in scope.spans}
    began = {name: (span.start_time_unix_nano / 1e9, span.end_time_unix_nano / 1e9) for name, span in spans.items()}
    assert began.pop("episode")[0] == 1000.0
    assert began == {"reset": (1000.0, 1001.5), "sample": (1001.5, 1001.75), "step": (1001.75, 1002.25),
                     "grade": (1002.25, 1004.25)}  # fmt: skip
    whole = spans.pop("episode")
    assert {span.parent_span_id for span in spans.values()} == {whole.span_id}
    assert {span.trace_id for span in spans.values()} == {whole.trace_id}
    of_sample = {item.key: item.value.int_value for item in spans["sample"].attributes}
    assert (of_sample["gen_ai.usage.input_tokens"], of_sample["gen_ai.usage.output_tokens"]) == (7, 3)
    assert "harbor_gym.task" in {item.key for item in whole.attributes}
    assert whole.status.message == error
    assert "harbor_gym" in str(resource.resource.attributes)
    ((metrics,),) = [message.resource_metrics for message in counted]
    ((metric,),) = [scope.metrics for scope in metrics.scope_metrics]
    (point,) = metric.sum.data_points
    known = {item.key: item.value.string_value for item in point.attributes}
    assert (metric.name, point.as_int) == ("harbor_gym.episodes", 1)
    assert "harbor_gym" in str(metrics.resource.attributes)
    assert known["harbor_gym.outcome"] == ("lost" if error else "solved")
    assert known.get("error.type", "") == error
