"""Traces and sessions for a trainer: OpenEnv's validators accept them, and some failures end a training."""

import functools
import pickle
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("openenv") is None:
    pytest.skip('pip install "harbor-gym[openenv]"', allow_module_level=True)

from harbor_gym import EndReason, Rollout, Sample, flatten
from harbor_gym._runtime.portal import get_portal
from harbor_gym.adapters import openenv
from harbor_gym.adapters.openenv.suite import TaskSuite
from harbor_gym.errors import SandboxLostError, UsageError
from harbor_gym.types import TokenTransition, Transcript, Turn
from tests.helpers.chats.tokenizers import byte_level_tokenizer
from tests.helpers.engine_double import EngineDouble, serve
from tests.helpers.policies.typists import CHAT_TEMPLATE
from tests.helpers.sandboxes.fake_episodes import fake_config

pytestmark = pytest.mark.usefixtures("nothing_left")


def rollout(*, reward: float | None = 1.0, logprobs: Any = (-0.5, 5e-7), **fields: Any) -> Rollout:
    first = TokenTransition([1, 2], Sample([3, 4], logprobs), 0.0, {"turn": 1, "metrics": {}})
    second = TokenTransition([1, 2, 3, 4, 5], Sample([6], (-0.25,), "length"), 1.0, {"turn": 2, "metrics": {}})
    fields = {"transitions": [first, second], **fields}
    if reward is None:
        return Rollout.lost(SandboxLostError("gone"), **fields)
    return Rollout(end_reason=EndReason.COMPLETED, reward=reward, **fields)


def test_a_trace_has_the_sequences_tokens_and_mask() -> None:
    trace = openenv.training_trace(rollout())
    assert [turn.loss_mask for turn in trace.turns] == [[0, 0, 1, 1], [0, 0, 0, 0, 0, 1]]
    assert [turn.per_token_logps for turn in trace.turns] == [[-0.5, 0.0], [-0.25]]
    last, flat = trace.turns[-1], flatten(rollout())
    assert last.prompt_token_ids + last.completion_token_ids == flat.prompt + flat.completion
    assert [turn.metadata["stop_reason"] for turn in trace.turns] == ["stop", "length"]
    assert len({turn.node_id for turn in trace.turns}) == 2
    assert all(turn.request == {} for turn in trace.turns)


def test_a_lost_episode_trains_no_token() -> None:
    assert not any(any(turn.loss_mask) for turn in openenv.training_trace(rollout(reward=None)).turns)
    assert openenv.training_trace(Rollout.lost(SandboxLostError("gone"))).turns == []


def test_a_trace_holds_the_text_where_it_is_given() -> None:
    turns = [Turn("see", "act", {"turn": 1, "metrics": {}}, 0.0), Turn("next", "end", {"turn": 2, "metrics": {}}, 1.0)]
    last = openenv.training_trace(rollout(transcript=Transcript(turns, system_prompt="rules"))).to_trace_entries()[-1]
    assert [item["content"] for item in last["request"]["messages"]] == ["rules", "see", "act", "next"]
    assert last["response"]["choices"][0]["message"] == {"role": "assistant", "content": "end"}


@pytest.mark.parametrize("logprobs", [None, (-0.5,), (-0.5, float("nan")), (-0.5, float("-inf"))])
def test_what_cant_be_trained_on_is_refused(logprobs: Any) -> None:
    with pytest.raises(UsageError, match="turn 0: 2 sampled tokens"):
        openenv.training_trace(rollout(logprobs=logprobs))


def test_a_log_probability_above_zero_is_not_rounded_away() -> None:
    with pytest.raises(ValueError, match="positive_logprob"):
        openenv.training_trace(rollout(logprobs=(-0.5, 0.1)))


@contextmanager
def engine() -> Generator[EngineDouble]:
    """An engine on the portal's loop; it answers with the prompt reversed, which no format reads."""
    context = serve(EngineDouble())
    double = get_portal().call(context.__aenter__)
    try:
        yield double
    finally:
        get_portal().call(context.__aexit__, None, None, None)


def factory(tmp_path: Path, double: EngineDouble, *, options: Any = None, **settings: Any) -> Any:
    from openenv.core.harness.capture.upstream import training_sampling

    config = fake_config(tmp_path / "task", **(options or {}))
    tasks = openenv.LocalTasks(TaskSuite.resolve(config.task_dir), config)
    tokenizer = byte_level_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    own: dict[str, Any] = {"max_tokens": 4, "max_retries": 0, **settings}
    make = functools.partial(
        openenv.HarborTerminalSessionFactory, tasks, tokenizer=tokenizer, engine_url=double.url, model="policy", **own
    )
    return pickle.loads(pickle.dumps(make))(sampling=training_sampling({"temperature": 0.5}))


def test_a_session_plays_and_is_verified(tmp_path: Path) -> None:
    from openenv.core.harness import TrainableSession

    with engine() as double:
        sessions = factory(tmp_path, double, options={"solved_when": {}})
        session = sessions.create([{"role": "user", "content": "x"}], seed=3)
        assert issubclass(type(session), TrainableSession)
        assert session.wait_for_completion() == 0
        trace, verdict = session.fetch_training_trace(), session.verify([])
        assert (verdict.env_reward, verdict.done) == (1.0, True)
        assert verdict.metrics == {"end_reason": "max_tokens", "turns": 1}
        (turn,) = trace.turns
        assert turn.prompt_token_ids == double.requests[0]["prompt"]
        assert turn.completion_token_ids == turn.prompt_token_ids[:-5:-1]
        assert turn.request["messages"][0]["role"] == "system"
        assert double.requests[0]["temperature"] == 0.5
        assert double.requests[0]["top_k"] == -1
        assert (session.list_tools(), session.initial_messages()) == ([], [])
        with pytest.raises(UsageError, match="harness_adapter"):
            session.call_tool("bash", {})
        session.close()
        assert session.verify([]).env_reward == 1.0, "closed twice, or after its end, it keeps its verdict"


def test_a_lost_episode_is_left_out_and_many_end_the_training(tmp_path: Path) -> None:
    with engine() as double:
        sessions = factory(tmp_path, double, options={"fail": {"start": 1}}, max_lost_in_a_row=3)
        session: Any = None
        for number in range(3):
            session = sessions.create(0)
            assert session.wait_for_completion() == 1
            assert session.verify([]).env_reward is None
            assert session.verify([]).metrics["failure_kind"] == "sandbox_start"
            if number < 2:
                assert session.fetch_training_trace().turns == []
        with pytest.raises(ValueError, match=r"3 episodes in a row were lost .* sandbox_start"):
            session.fetch_training_trace()


def test_an_episode_in_between_begins_the_count_again(tmp_path: Path) -> None:
    with engine() as double:
        sessions = factory(tmp_path, double, max_lost_in_a_row=2)
        for statuses in ([400], [200], [400]):
            double.modes[:] = statuses
            session = sessions.create(0)
            session.wait_for_completion()
            session.fetch_training_trace()
        double.modes[:] = [400]
        session = sessions.create(0)
        session.wait_for_completion()
        with pytest.raises(ValueError, match=r"2 episodes in a row .* sampler_error"):
            session.fetch_training_trace()


def test_what_no_retry_repairs_ends_the_training(tmp_path: Path) -> None:
    with engine() as double:
        sessions = factory(tmp_path, double)
        unknown = sessions.create([{"role": "user", "content": "x", "task_index": 7}])
        assert unknown.wait_for_completion() == 1
        with pytest.raises(ValueError, match="index must be from 0 to 0"):
            unknown.fetch_training_trace()
        (tmp_path / "task/task.toml").write_text("[[[")
        broken = sessions.create(0)
        assert broken.wait_for_completion() == 1
        with pytest.raises(ValueError, match="TaskError"):
            broken.fetch_training_trace()
        assert broken.verify([]).env_reward is None


def test_a_closed_session_stops_its_sandbox(tmp_path: Path) -> None:
    with engine() as double:
        session = factory(tmp_path, double, options={"delay_sec": 30.0}).create(0)
        with pytest.raises(TimeoutError, match="still runs"):
            session.wait_for_completion(0.3)
        assert session.fetch_training_trace().turns == []
        session.close()
        assert session.wait_for_completion() == 1
        assert session.fetch_training_trace().turns == []
        assert session.verify([]).env_reward is None


@pytest.mark.parametrize("setting", [{"max_tokens": 0}, {"max_lost_in_a_row": 0}])
def test_wrong_settings_are_refused(tmp_path: Path, setting: dict[str, int]) -> None:
    with engine() as double, pytest.raises(UsageError, match="at least 1"):
        factory(tmp_path, double, **setting)
