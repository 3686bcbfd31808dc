"""Traces of episodes and a counter of their outcomes for OpenTelemetry, made of a transcript when its episode ended.

Nothing is measured for them and nothing is imported unless an OTLP endpoint is named in the environment. Sources: the
OpenTelemetry conventions for generative AI (https://opentelemetry.io/docs/specs/semconv/gen-ai/), and its environment
variables (https://opentelemetry.io/docs/languages/sdk-configuration/otlp-exporter/).
"""

import contextlib
import functools
import logging
import os
from collections.abc import Generator, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

_COMMON, _TRACES, _METRICS = (f"OTEL_EXPORTER_OTLP_{name}ENDPOINT" for name in ("", "TRACES_", "METRICS_"))
_NANOSEC = 1_000_000_000
_logger = logging.getLogger(__name__)

_is_left: ContextVar[bool] = ContextVar("harbor_gym_traced_above", default=False)


class Part(NamedTuple):
    """A span below an episode's."""

    name: str
    begin: float
    """Seconds since the epoch."""

    seconds: float
    attributes: dict[str, Any]


@contextlib.contextmanager
def left_to_caller() -> Generator[None]:
    """Leave the traces of the episodes in the block to its caller, who knows more of them."""
    token = _is_left.set(True)
    try:
        yield
    finally:
        _is_left.reset(token)


def is_wanted() -> bool:
    """Return whether an episode that ends here is to be sent: not in :func:`left_to_caller`."""
    return any(map(os.environ.get, (_COMMON, _TRACES, _METRICS))) and not _is_left.get()


def trace_episode(document: Mapping[str, Any]) -> None:
    """Send an ended episode's trace, and count its outcome, in the background. Ask :func:`is_wanted` first.

    Args:
        document: The transcript as its file has it; ``end`` may have the info of an end that followed no answer.
    """
    if _goes_to(_METRICS) and (counter := _counter()) is not None:
        counter.add(1, outcome(document))
    if not _goes_to(_TRACES) or (tracer := _tracer()) is None:
        return
    from opentelemetry import trace

    begin, seconds = document["started"], document["seconds"]
    episode = tracer.start_span("episode", start_time=_nanosec(begin), attributes=_attributes(document))
    if document["error"]:
        episode.set_status(trace.Status(trace.StatusCode.ERROR, document["error"]))
    within = trace.set_span_in_context(episode)
    for part in parts(document):
        span = tracer.start_span(part.name, within, start_time=_nanosec(part.begin), attributes=part.attributes)
        span.end(_nanosec(part.begin + part.seconds))
    episode.end(_nanosec(begin + seconds))


def outcome(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the attributes by which an episode is counted: how it went, and why; not its task, of which many exist."""
    reward, error = document["reward"], document["error"]
    verdict = None if reward is None else "solved" if reward >= 1 else "failed"
    known = {
        "harbor_gym.outcome": verdict or ("lost" if error else "dropped"),
        "harbor_gym.end_reason": document["end_reason"] and str(document["end_reason"]),
        "harbor_gym.sandbox": document["start"].get("sandbox"),
        "error.type": error and str(error).partition(":")[0],
    }
    return {name: str(value) for name, value in known.items() if value}


def _goes_to(endpoint: str) -> bool:
    return bool(os.environ.get(endpoint) or os.environ.get(_COMMON))


def parts(document: Mapping[str, Any]) -> Iterator[Part]:
    """Return an episode's ``reset``, then ``sample``, ``step`` and ``grade`` of each turn, one after the other.

    The durations are as measured; a pause between two of them is not recorded, so that later ones begin too early by
    as much.
    """
    now: float = document["started"]
    measured: Mapping[str, float] = document["start"].get("metrics", {})
    if measured:  # not in the transcript of one of Harbor's agents
        yield Part("reset", now, spent := sum(measured.get(f"time/{name}_sec", 0.0) for name in _RESET), {})
        now += spent
    ends = [document["end"]] if document.get("end") else []
    for number, turn in enumerate([*document["turns"], *ends]):
        of_turn = {"harbor_gym.turn": min(number + 1, len(document["turns"]))}
        metrics = turn.get("metrics", {})
        spent = turn.get("thinking_sec")
        if (spent := metrics.get("time/sampler_sec") if spent is None else spent) is not None:
            counts = {"input": turn["prompt_tokens"], "output": turn["sampled_tokens"]}
            usage = {f"gen_ai.usage.{name}_tokens": count for name, count in counts.items() if count}
            yield Part("sample", now, spent, {"gen_ai.operation.name": "chat", **usage, **of_turn})
            now += spent
        for name, metric in (("step", "time/step_sec"), ("grade", "time/verifier_sec")):
            if (spent := metrics.get(metric)) is not None:
                yield Part(name, now, spent, of_turn)
                now += spent


_RESET = ("sandbox_start", "terminal_open", "replay")


def _nanosec(seconds: float) -> int:
    return round(seconds * _NANOSEC)


def _attributes(document: Mapping[str, Any]) -> dict[str, Any]:
    known = {
        "gen_ai.operation.name": "invoke_agent",
        "harbor_gym.task": document["start"].get("task") or document.get("task"),
        "harbor_gym.sandbox": document["start"].get("sandbox"),
        "harbor_gym.end_reason": document["end_reason"] and str(document["end_reason"]),
        "harbor_gym.reward": document["reward"],
        "harbor_gym.turns": len(document["turns"]),
        "harbor_gym.group": document.get("group"),
        "harbor_gym.episode": document.get("episode"),
    }
    return {name: value for name, value in known.items() if value not in (None, "")}


@functools.cache
def _tracer() -> Any:
    """Return the tracer of this process's provider, which is made where the program has set none; None without the
    packages, which is logged once."""
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as exc:
        _logger.warning('no traces are sent, as %s is not installed: pip install "harbor-gym[otel]"', exc.name)
        return None
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        provider = TracerProvider(resource=_resource())  # its end sends what waits
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(provider)
    return trace.get_tracer("harbor_gym")


@functools.cache
def _counter() -> Any:
    """Return the counter of this process's provider, which is made where the program has set none; None without the
    packages, which is logged once."""
    try:
        from opentelemetry import metrics
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    except ModuleNotFoundError as exc:
        _logger.warning('no outcomes are counted, as %s is not installed: pip install "harbor-gym[otel]"', exc.name)
        return None
    if not isinstance(metrics.get_meter_provider(), MeterProvider):
        reader = PeriodicExportingMetricReader(OTLPMetricExporter())
        metrics.set_meter_provider(MeterProvider([reader], resource=_resource()))  # its end sends what waits
    meter = metrics.get_meter("harbor_gym")
    return meter.create_counter("harbor_gym.episodes", "{episode}", "Ended episodes by outcome, each attempt")


def _resource() -> Any:
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource

    return Resource.create({} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: "harbor_gym"})
