"""The gateway's benchmark: it measures the right time, and refuses bad arguments. No figure is a verdict here."""

import asyncio
import dataclasses
import json
from typing import Any

import pytest

from harbor_gym._runtime.harbor_versions import VERSION
from harbor_gym.errors import HarborGymError
from harbor_gym.gateway import Gateway
from harbor_gym.types import Sample
from tests.benchmarks.gateway.client import Plan, converse
from tests.benchmarks.gateway.measure import (
    DIRECT,
    GATEWAY,
    LITELLM,
    RELAY,
    EndpointRow,
    GatewayReport,
    WordCodec,
    format_gateway,
    run_client,
)
from tests.helpers.benchmarks import run_benchmark

FAST = ("--sessions", "4", "--calls", "3", "--sampler-sec", "0.01")


def measured(*options: str) -> dict[str, Any]:
    done = run_benchmark("gateway", *FAST, "--json", *options)
    assert done.returncode == 0, done
    return json.loads(done.stdout)


def test_each_endpoint_answers_the_same_calls() -> None:
    found = measured()
    assert [row["endpoint"] for row in found["rows"]] == [DIRECT, GATEWAY]
    for row in found["rows"]:
        assert set(row) == {field.name for field in dataclasses.fields(EndpointRow)}
        assert row["calls"] == 12
        assert 0 < row["median_ms"] <= row["p99_ms"]
        assert row["server_cpu_ms"] > 0
        assert row["client_cpu_ms"] > 0
    assert (found["segments"], found["one_segment_each"], found["prompt_tokens"]) == (4, True, 2203)
    assert set(found["ratio_to_sampler_alone"]) == {"median_ms", "p99_ms", "server_cpu_ms"}


@pytest.mark.slow
def test_litellm_is_measured_beside_them() -> None:
    rows = measured("--litellm")["rows"]
    assert [(row["endpoint"], row["calls"]) for row in rows] == [(DIRECT, 12), (LITELLM, 3), (GATEWAY, 12)]
    assert rows[1]["client_cpu_ms"] > rows[0]["client_cpu_ms"]


@pytest.mark.skipif(VERSION < (0, 26), reason="Harbor has a relay since 0.26")
def test_harbors_relay_is_measured_beside_them() -> None:
    found = measured("--relay")
    assert [(row["endpoint"], row["calls"]) for row in found["rows"]] == [(DIRECT, 12), (GATEWAY, 12), (RELAY, 12)]
    assert (found["segments"], found["one_segment_each"]) == (4, True)


@pytest.mark.skipif(VERSION >= (0, 26), reason="this Harbor has a relay")
def test_an_older_harbor_has_no_relay_to_measure() -> None:
    done = run_benchmark("gateway", *FAST, "--relay")
    assert (done.returncode, done.stdout) == (2, "")
    assert "new in Harbor 0.26" in done.stderr


def test_a_rate_that_the_sampler_cannot_serve_is_refused() -> None:
    done = run_benchmark("gateway", *FAST, "--rate", "400")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "due every 0.01 s" in done.stderr


async def test_a_client_that_fails_is_no_measurement() -> None:
    async with Gateway(never, WordCodec()) as gateway:
        with pytest.raises(HarborGymError, match="401"):
            await run_client(Plan([f"{gateway.url}/s/wrong"], 1, 1.0, 1, 1))


async def never(prompt: Any) -> Sample:
    raise AssertionError


async def test_calls_that_wait_for_a_slow_answer_are_late_and_their_wait_counts() -> None:
    async def stuck(prompt: Any) -> Sample:
        await asyncio.sleep(0.2)
        return Sample([1], [-1.0])

    async with Gateway(stuck, WordCodec()) as gateway:
        found = await converse(Plan([gateway.open_session().base_url], 4, 10.0, 10, 10))
    assert found.late == 3
    # Due every 0.1 s, answered every 0.2 s: the fourth has waited 0.3 s before it is sent.
    assert found.latencies_sec[3] >= 0.5


@pytest.mark.parametrize("text", ["", "abc", "abcd", "text" * 9, "größe"])
def test_the_codec_keeps_text(text: str) -> None:
    codec = WordCodec()
    tokens = codec.next_turn((), text)
    assert tokens[0] == tokens[-1] == 0
    assert codec.text(tokens[1:-1]).rstrip(" ") == text
    assert codec.prompt([{"role": "user", "content": text}]) == tokens[1:]


def test_a_broken_conversation_is_wrong_and_shown() -> None:
    rows = tuple(EndpointRow(name, 8, 100.0, 0, 1.5, 3.0, cpu, 1.0) for name, cpu in ((DIRECT, 0.5), (GATEWAY, 1.5)))
    report = GatewayReport(4, 2, 0.05, rows, segments=5, prompt_tokens=2000.0)
    assert not report.is_right
    assert report.ratios() == {"median_ms": 1.0, "p99_ms": 1.0, "server_cpu_ms": 3.0}
    assert "of 4 sessions: 5" in format_gateway(report)
