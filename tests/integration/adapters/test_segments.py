"""Training data of an agent that compacts its history or has sub-agents: each sampled token once."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from harbor.models.trial.config import AgentConfig, TaskConfig

from harbor_gym import Rollout, Sample
from harbor_gym.adapters.harbor import RolloutInterface
from harbor_gym.errors import UsageError
from harbor_gym.gateway import SessionLimits
from harbor_gym.types import TrainSegments
from tests.helpers.chats.character_codec import END
from tests.helpers.engines import find_agent, require_engine
from tests.helpers.gateway.clients import ThinkingCodec, text_of, tool_call
from tests.helpers.sandboxes.fake_episodes import COMPLETE, FAKE, by_agent, fake_config, message
from tests.helpers.tasks import DONE, write_task

pytestmark = pytest.mark.usefixtures("nothing_left")

SOLVED: dict[str, Any] = {"solved_when": {"/srv/answer": "done"}}
DELEGATES = AgentConfig(
    import_path="tests.helpers.gateway.format_agent:DelegatingAgent", kwargs={"base_url": "{gateway_url}"}
)
BOTH: tuple[TrainSegments, ...] = ("main", "all")


class Policy:
    """Answers a request by its messages, and keeps each answer."""

    def __init__(self) -> None:
        self.answers: list[str] = []

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        self.answers.append(self._answer(text_of(prompt)))
        tokens = [*map(ord, self.answers[-1]), END]
        return Sample(tokens, [-0.25 * len(prompt)] * len(tokens))

    def _answer(self, shown: str) -> str:
        raise NotImplementedError

    @property
    def text(self) -> str:
        return "".join(f"{answer}\0" for answer in self.answers)


class Delegating(Policy):
    def _answer(self, shown: str) -> str:
        if "You are a sub-agent." in shown:
            return f"I found {len(self.answers)}."
        return COMPLETE if self.answers else message(DONE)


class Summarising(Policy):
    """Does the task in three turns; answers Terminus-2's requests for a summary in between."""

    def _answer(self, shown: str) -> str:
        last = shown.split("\0")[-2]
        if "has a few questions for you" in last:
            return "Nothing is left open."
        if "Please begin by asking several questions" in last:
            return "Is it written?"
        if "provide a comprehensive summary" in last:
            return f"I wrote the word in call {len(self.answers)}."
        return COMPLETE if self.answers else message(DONE)


class ClaudePolicy(Policy):
    """Has a sub-agent of Claude Code write the word."""

    def _answer(self, shown: str) -> str:
        if "Write the word done" in shown:
            delegate = tool_call("Agent", description="write", prompt="Write it.", subagent_type="general-purpose")
            return "Done." if self.answers else delegate
        write = tool_call("Bash", command=DONE.strip(), description="write")
        return "Written." if write in self.answers else write


def trained_text(rollout: Rollout) -> str:
    """Return the trained tokens in the order of their calls; each call may be in one segment only."""
    spans = [(span, segment) for segment in rollout.segments for span in segment.spans]
    spans.sort(key=lambda pair: pair[0].call)
    assert len({span.call for span, _ in spans}) == len(spans)
    return "".join(text_of(segment.completion[span.start : span.end]) for span, segment in spans if span.is_trained)


def interface(policy: Policy, agent: AgentConfig | str, **settings: Any) -> RolloutInterface:
    given: dict[str, Any] = {"sandbox": FAKE, "sandbox_options": SOLVED, **settings}
    return RolloutInterface(sampler=policy, codec=ThinkingCodec(), agent=agent, **given)


@pytest.mark.parametrize("which", BOTH)
async def test_a_sub_agents_calls_are_trained_when_asked(tmp_path: Path, which: TrainSegments) -> None:
    policy = Delegating()
    playing = interface(policy, DELEGATES, train_segments=which)
    (rollout,) = await playing.run([TaskConfig(path=write_task(tmp_path / "task"))])
    assert rollout.reward == 1.0
    own = "".join(f"{policy.answers[call]}\0" for call in (0, 3))
    assert trained_text(rollout) == (policy.text if which == "all" else own)
    assert [segment.calls for segment in rollout.segments] == [(0, 3)] + ([(1, 2)] if which == "all" else [])
    assert rollout.main.calls == (0, 3)
    names = ("main_tokens", "side_tokens", "sampled_tokens", "restarted_tokens")
    numbers = {name: rollout.metrics[f"gateway/{name}"] for name in names}
    assert numbers == {
        "main_tokens": len(own),
        "side_tokens": len(policy.text) - len(own),
        "sampled_tokens": len(policy.text),
        "restarted_tokens": 0,
    }


async def test_a_choice_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="train_segments: Input should be 'main' or 'all'"):
        interface(Delegating(), DELEGATES, train_segments="side")
    with pytest.raises(UsageError, match="train_segments=all needs token_source=gateway"):
        interface(Delegating(), "terminus-2", strategy="details", train_segments="all")


@pytest.mark.tinker
@pytest.mark.parametrize("which", BOTH)
async def test_the_cookbooks_trajectory_has_the_turns_that_are_trained(tmp_path: Path, which: TrainSegments) -> None:
    require_engine("tinker")
    from tinker_cookbook.completers import TokensWithLogprobs
    from tinker_cookbook.renderers import get_renderer
    from tinker_cookbook.rl.data_processing import trajectory_to_data
    from tinker_cookbook.rl.types import Trajectory, Transition

    from harbor_gym.adapters.tinker import HarborAgentTinkerEnv, RendererCodec
    from tests.helpers.chats.tokenizers import byte_level_tokenizer

    tokenizer: Any = byte_level_tokenizer()
    config = by_agent(fake_config(write_task(tmp_path / "task"), **SOLVED), DELEGATES, train_segments=which)
    codec = RendererCodec(get_renderer("qwen3_instruct", tokenizer))
    env = HarborAgentTinkerEnv(config, codec, max_tokens=500)
    first = await env.initial_observation()
    assert isinstance(first, tuple)
    transitions, shown = list[Transition](), first[0]
    for answer in (message(DONE), "I found 0.", "I found 1.", COMPLETE):
        tokens = [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.convert_tokens_to_ids("<|im_end|>")]
        result = await env.step(tokens)
        action = TokensWithLogprobs(tokens=tokens, maybe_logprobs=[-1.0] * len(tokens))
        transitions.append(Transition(shown, action, result.reward, result.episode_done, result.metrics))
        shown = result.next_observation
    trajectory = Trajectory(transitions=transitions, final_ob=shown)
    sampled = [item.ac.tokens for item in transitions]
    await env.complete(trajectory)
    segments = [(0, 3), (1, 2)] if which == "all" else [(0, 3)]
    assert [item.ac.tokens for item in trajectory.transitions] == [
        sampled[turn] for calls in segments for turn in calls
    ]
    assert [item.reward for item in trajectory.transitions] == [0.0] * (2 * len(segments) - 1) + [1.0]
    assert [item.episode_done for item in trajectory.transitions] == [False] * (2 * len(segments) - 1) + [True]
    data = trajectory_to_data(trajectory, 0.5)
    trained = [datum.loss_fn_inputs["mask"].to_torch().sum().item() for datum in data]
    assert trained == [sum(len(sampled[turn]) for turn in calls) for calls in segments]
    assert sum(datum.loss_fn_inputs["advantages"].to_torch().sum().item() for datum in data) == 0.5 * sum(trained)
    await env.close()


@pytest.mark.local
@pytest.mark.slow
async def test_terminus_2_is_trained_on_its_summaries(tmp_path: Path) -> None:
    """It asks for a summary before each further turn; the questions come from a conversation of their own."""
    require_engine("local")
    policy = Summarising()
    agent = AgentConfig(
        name="terminus-2", kwargs={"enable_summarize": True, "proactive_summarization_threshold": 1_000_000}
    )
    playing = interface(policy, agent, sandbox="local", sandbox_options={})
    (rollout,) = await playing.run([TaskConfig(path=write_task(tmp_path / "task"))])
    assert (rollout.reward, rollout.error) == (1.0, None)
    assert len(policy.answers) == 9
    assert [segment.calls for segment in rollout.segments] == [(0, 1, 3), (2,), (4, 5, 7), (6,), (8,)]
    assert trained_text(rollout) == policy.text
    assert rollout.metrics["gateway/main_tokens"] == len(policy.text)
    first = sum(len(f"{policy.answers[call]}\0") for call in (0, 1, 3))
    assert rollout.metrics["gateway/restarted_tokens"] == len(policy.text) - first


@pytest.mark.local
@pytest.mark.slow
async def test_claude_codes_sub_agent(tmp_path: Path) -> None:
    program = find_agent("claude")
    dockerfile = "FROM debian:bookworm-slim\nCOPY claude /usr/local/bin/claude\nWORKDIR /srv\n"
    task = write_task(tmp_path / "task", dockerfile=dockerfile)
    shutil.copy(program, task / "environment/claude")
    policy = ClaudePolicy()
    playing = interface(
        policy,
        "claude-code",
        sandbox="local",
        sandbox_options={},
        train_segments="all",
        limits=SessionLimits(max_turns=9),
    )
    (rollout,) = await playing.run([TaskConfig(path=task)])
    assert (rollout.reward, rollout.error) == (1.0, None)
    assert len(rollout.segments) == 2
    assert len(rollout.main.calls) == 2, "which are trained where no others are"
    assert "Written." in trained_text(rollout)
    assert trained_text(rollout).count("\0") == 4
