"""One episode, any trainer: whoever drives it, the same tokens, mask, reward, end and outcome of a lost sandbox.

An adapter joins by a function in ``ADAPTERS`` that plays an :class:`Episode` through the adapter's own rollout code.
"""

import asyncio
import dataclasses
import functools
import math
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, override

import pytest

from harbor_gym import AsyncTerminalGymEnv, EndReason, Sample, TerminalEnvConfig, TokenTerminalEnv, flatten, run_episode
from harbor_gym.errors import HarborGymError
from harbor_gym.outcomes import classify
from harbor_gym.testing import FakeEnvironment
from harbor_gym.types import TokenSequence
from tests.helpers.engines import require_engine
from tests.helpers.policies.token_policies import RENDERER
from tests.helpers.sandboxes.fake_episodes import COMPLETE, message
from tests.helpers.tasks import DONE, write_task
from tests.helpers.tokenizers import byte_level_tokenizer

pytestmark = [pytest.mark.tinker, pytest.mark.usefixtures("nothing_left")]

MAX_TOKENS = 500
VANISH = "vanish"


class Vanishing(FakeEnvironment):
    """A sandbox that is lost when the policy types a word."""

    @override
    def answer(self, command: str) -> str | Sequence[Any] | None:
        if command.strip() == VANISH:
            self._gone = "it went away"
            self.require_running()
        return super().answer(command)


@dataclass(frozen=True)
class Script:
    """A sampler that answers turn by turn from a list."""

    answers: tuple[str, ...]
    cut_at: int | None = None
    """The turn whose answer is cut at the token limit."""

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        tokenizer = byte_level_tokenizer()
        turn = tokenizer.decode(list(prompt)).count("<|im_start|>assistant") - 1
        tokens = tokenizer.encode(self.answers[turn], add_special_tokens=False)
        is_cut = turn == self.cut_at
        tokens = tokens if is_cut else [*tokens, tokenizer.convert_tokens_to_ids("<|im_end|>")]
        logprobs = [-(turn + 1) / (place + 1) for place in range(len(tokens))]
        return Sample(tokens, logprobs, "length" if is_cut else "stop")


@dataclass(frozen=True)
class Episode:
    """What is played."""

    task_dir: Path
    model_dir: str
    """Holds the tokenizer."""

    sampler: Script
    sandbox: str
    sandbox_options: Mapping[str, Any]
    max_turns: int = 8
    max_context_tokens: int = 20_000

    @property
    def config(self) -> TerminalEnvConfig:
        return TerminalEnvConfig(
            task_dir=self.task_dir,
            sandbox=self.sandbox,
            sandbox_options=dict(self.sandbox_options),
            max_turns=self.max_turns,
            confirm_task_complete=False,
        )

    def codec(self) -> Any:
        from harbor_gym.adapters.tinker.sampling import codec_for

        return codec_for(RENDERER, self.model_dir)


@dataclass(frozen=True)
class Played:
    """What came of it."""

    reward: float | None
    end_reason: EndReason
    failure_kind: str | None = None
    sequence: TokenSequence | None = field(default=None, compare=False)
    """Of an episode that was not lost."""

    @property
    def trained(self) -> list[tuple[int, int, float]]:
        """Token, mask and log-probability, one after the other."""
        assert self.sequence is not None
        prompt = [(token, 0, 0.0) for token in self.sequence.prompt]
        behind = zip(self.sequence.completion, self.sequence.mask, self.sequence.logprobs, strict=True)
        return [*prompt, *((token, mask, round(logprob, 5)) for token, mask, logprob in behind)]


def lost(error: HarborGymError) -> Played:
    return Played(None, EndReason.INFRASTRUCTURE_ERROR, classify(error).failure_kind)


async def by_run_episode(episode: Episode) -> Played:
    env = TokenTerminalEnv(
        AsyncTerminalGymEnv(episode.config),
        episode.codec(),
        max_tokens=MAX_TOKENS,
        max_context_tokens=episode.max_context_tokens,
    )
    rollout = await run_episode(env, episode.sampler)
    if rollout.error is not None:
        assert rollout.reward is None
        return lost(rollout.error)
    return Played(rollout.reward, rollout.end_reason, sequence=flatten(rollout))


async def by_tinker(episode: Episode) -> Played:
    """The cookbook's own rollout, and its own making of a datum."""
    from harbor_gym.adapters.tinker import HarborSingleTaskEnvGroupBuilder

    return await _by_cookbook(episode, HarborSingleTaskEnvGroupBuilder)


async def by_tinker_agent(episode: Episode) -> Played:
    """The same loop of the cookbook's, around a foreign agent."""
    from harbor_gym.adapters.tinker.agent_group import HarborAgentEnvGroupBuilder

    return await _by_cookbook(episode, functools.partial(HarborAgentEnvGroupBuilder, agent=_agent()))


async def _by_cookbook(episode: Episode, make_builder: Any) -> Played:
    from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
    from tinker_cookbook.rl.data_processing import trajectory_to_data
    from tinker_cookbook.rl.rollouts import do_single_rollout

    from harbor_gym.adapters.tinker.env import END_REASONS

    class Policy(TokenCompleter):
        async def __call__(self, model_input: Any, stop: Any, *, max_tokens: int | None = None) -> Any:
            sample = await episode.sampler(model_input.to_ints())
            return TokensWithLogprobs(
                tokens=list(sample.tokens), maybe_logprobs=list(sample.logprobs or ()), stop_reason=sample.stop_reason
            )

    builder = make_builder(
        config=episode.config,
        group_size=1,
        model_name=episode.model_dir,
        renderer_name=RENDERER,
        max_tokens=MAX_TOKENS,
        max_context_tokens=episode.max_context_tokens,
    )
    (env,) = await builder.make_envs()
    try:
        trajectory = await do_single_rollout(Policy(), env)
        await builder.compute_group_rewards([trajectory], [env])
    except HarborGymError as exc:
        return lost(exc)
    finally:
        await builder.cleanup()
    (datum,) = trajectory_to_data(trajectory, 1.0)
    shifted = {name: datum.loss_fn_inputs[name].to_torch().tolist() for name in ("target_tokens", "mask", "logprobs")}
    tokens = [datum.model_input.to_ints()[0], *map(int, shifted["target_tokens"])]
    first = trajectory.transitions[0].ob.length
    mask = [int(item) for item in shifted["mask"]][first - 1 :]
    sequence = TokenSequence(tokens[:first], tokens[first:], mask, shifted["logprobs"][first - 1 :])
    reward = math.fsum(transition.reward for transition in trajectory.transitions)
    return Played(reward, END_REASONS[trajectory.stop_reason or ""], sequence=sequence)


async def by_harbor_env(episode: Episode) -> Played:
    return await _by_harbor(episode, strategy="env", env_settings={"confirm_task_complete": False})


async def by_harbor_gateway(episode: Episode) -> Played:
    return await _by_harbor(episode, strategy="gateway", agent=_agent())


def _agent() -> Any:
    from harbor.models.trial.config import AgentConfig

    kwargs = {"base_url": "{gateway_url}"}
    return AgentConfig(import_path="tests.helpers.gateway.format_agent:FormatAgent", kwargs=kwargs)


async def _by_harbor(episode: Episode, **settings: Any) -> Played:
    from harbor.models.trial.config import TaskConfig

    from harbor_gym.adapters.harbor import RolloutInterface
    from harbor_gym.gateway import SessionLimits

    interface = RolloutInterface(
        sampler=episode.sampler,
        codec=episode.codec(),
        sandbox=episode.sandbox,
        sandbox_options=episode.sandbox_options,
        limits=SessionLimits(
            max_turns=episode.max_turns,
            max_context_tokens=episode.max_context_tokens,
            max_answer_tokens=MAX_TOKENS,
        ),
        **settings,
    )
    (rollout,) = await interface.run([TaskConfig(path=episode.task_dir)])
    if rollout.error is not None:
        assert rollout.reward is None
        assert rollout.end_reason is EndReason.INFRASTRUCTURE_ERROR
        return lost(rollout.error)
    (segment,) = rollout.segments
    return Played(rollout.reward, rollout.end_reason, sequence=segment)


def _spec(episode: Episode) -> Any:
    pytest.importorskip("trl", reason='pip install "harbor-gym[trl]"')
    from harbor_gym.adapters.trl import HarborSpec

    return HarborSpec(
        episode.task_dir,
        agent="terminal",
        sandbox=episode.sandbox,
        sandbox_options=dict(episode.sandbox_options),
        max_turns=episode.max_turns,
        max_context_tokens=episode.max_context_tokens,
        max_retries=0,
        confirm_task_complete=False,
    )


async def by_trl(episode: Episode) -> Played:
    """TRL's own trainer, to the tensors that it trains on."""
    pytest.importorskip("trl", reason='pip install "harbor-gym[trl]"')
    from tests.helpers.policies.trl_trainers import GROUP, ScriptedTrainer, logged

    spec = _spec(episode)

    rows = [dict(spec.train_dataset[0]) for _ in range(GROUP)]
    with spec, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "You are using .* experimental feature", UserWarning)
        trainer = ScriptedTrainer(
            episode.sampler,
            max_completion_length=MAX_TOKENS,
            output_dir=episode.model_dir,
            **spec.trainer_arguments,
        )
        batch = await asyncio.to_thread(trainer.score, rows)
    table = logged(trainer)
    (reward, twin), (end, twins_end) = table["rollout_reward"], table["harbor_end"]
    assert (reward, end) == (twin, twins_end) or reward != reward
    if end not in {reason.value for reason in EndReason}:
        assert math.isnan(reward)
        assert not batch["tool_mask"].any()
        return Played(None, EndReason.INFRASTRUCTURE_ERROR, end)
    sequence = TokenSequence(
        _shown(batch["prompt_ids"], batch["prompt_mask"]),
        _shown(batch["completion_ids"], batch["completion_mask"]),
        _shown(batch["tool_mask"], batch["completion_mask"]),
        _shown(batch["sampling_per_token_logps"], batch["completion_mask"]),
    )
    return Played(reward, EndReason(end), sequence=sequence)


async def _ignore(sample: object) -> None:
    return None


async def by_trl_async(episode: Episode) -> Played:
    """What the rollout process does, to the samples that AsyncGRPO trains on."""
    spec = _spec(episode)
    from trl.experimental.async_grpo.async_grpo_config import AsyncGRPOConfig

    from harbor_gym._runtime.portal import get_portal
    from harbor_gym.adapters.trl.groups import GroupPlayer, ready
    from tests.helpers.policies.typists import tokenizer

    args = AsyncGRPOConfig(
        output_dir=episode.model_dir,
        num_generations=2,
        max_completion_length=MAX_TOKENS,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
    )
    metrics: dict[str, Any] = {}

    async def play() -> list[Any]:
        worker = spec.rollout_worker(args, tokenizer(), model="policy", sampler=ready(episode.sampler))
        player = GroupPlayer(worker.plan, emit=_ignore, report=metrics.update, version=lambda: 7)
        return await player.play(0, episode.sampler)

    with spec:
        samples = await get_portal().run(play)
    (end,) = [key.removeprefix("harbor/").removesuffix("_total") for key in metrics if key.endswith("_total")]
    if not samples:
        return Played(None, EndReason.INFRASTRUCTURE_ERROR, end)
    first, twin = samples
    assert first.metrics == twin.metrics
    assert first.input_ids.tolist() == twin.input_ids.tolist()
    assert (first.advantage, first.model_version, first.group_id) == (0.0, 7, 0)
    mask = first.completion_mask.tolist()
    begin = mask.index(1)
    tokens, logprobs = first.input_ids.tolist(), first.old_log_probs.tolist()
    sequence = TokenSequence(tokens[:begin], tokens[begin:], mask[begin:], logprobs[begin:])
    return Played(first.metrics["reward"], EndReason(end), sequence=sequence)


def _shown(values: Any, mask: Any) -> list[Any]:
    """Return the first sequence of a padded batch."""
    return values[0][mask[0].bool()].tolist()


ADAPTERS: Mapping[str, Callable[[Episode], Awaitable[Played]]] = {
    "run_episode": by_run_episode,
    "tinker": by_tinker,
    "tinker-agent": by_tinker_agent,
    "harbor-env": by_harbor_env,
    "harbor-gateway": by_harbor_gateway,
    "trl": by_trl,
    "trl-async": by_trl_async,
}
"""Every way to play an episode, by name."""

SOLVED = Script((message("pwd\n"), message(DONE), COMPLETE))
EPISODES: Mapping[str, tuple[Script, Mapping[str, int], Played]] = {
    "solved": (SOLVED, {}, Played(1.0, EndReason.COMPLETED)),
    "given up": (Script((COMPLETE,)), {}, Played(0.0, EndReason.COMPLETED)),
    "unreadable": (Script(("nö {json}", message(DONE), COMPLETE)), {}, Played(1.0, EndReason.COMPLETED)),
    "out of turns": (
        Script((message(DONE), message("true\n"))),
        {"max_turns": 2},
        Played(1.0, EndReason.MAX_TURNS),
    ),
    "cut": (Script((message("true\n"), message(DONE)), cut_at=1), {}, Played(0.0, EndReason.MAX_TOKENS)),
    "overflowing": (
        Script((message(DONE), message(f"echo {'x' * 3000}\n"))),
        {"max_context_tokens": 4000},
        Played(1.0, EndReason.CONTEXT_OVERFLOW),
    ),
    "session ended": (Script((message(DONE), message("exit\n"))), {}, Played(1.0, EndReason.SESSION_ENDED)),
    "lost": (
        Script((message("true\n"), message(f"{VANISH}\n"))),
        {},
        Played(None, EndReason.INFRASTRUCTURE_ERROR, "sandbox_lost"),
    ),
}
"""Sampler, budgets, and what comes of it."""

AGENTS_OWN_WORDS = {(name, "session ended"): EndReason.COMPLETED for name in ("harbor-gateway", "tinker-agent")}
"""Ends that only the loop knows, where a foreign agent is the loop: it simply ends."""


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory that holds a tokenizer and nothing else."""
    require_engine("tinker")
    path = tmp_path_factory.mktemp("tokenizer")
    byte_level_tokenizer().save_pretrained(path)
    return str(path)


@pytest.mark.parametrize("name", EPISODES)
@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_in_memory(adapter: str, name: str, model_dir: str, tmp_path: Path) -> None:
    script, budgets, expected = EPISODES[name]
    options = {"solved_when": {"/srv/answer": "done"}}
    sandbox = f"{__name__}:Vanishing"
    episode = Episode(write_task(tmp_path / "task"), model_dir, script, sandbox, options, **budgets)
    played = await ADAPTERS[adapter](episode)
    end_reason = AGENTS_OWN_WORDS.get((adapter, name), expected.end_reason)
    assert played == dataclasses.replace(expected, end_reason=end_reason)
    if expected.reward is not None:
        assert played.trained == (await by_run_episode(episode)).trained


@pytest.mark.local
@pytest.mark.parametrize("adapter", [name for name in ADAPTERS if name != "run_episode"])
async def test_in_a_real_sandbox(adapter: str, model_dir: str, tmp_path: Path) -> None:
    episode = Episode(write_task(tmp_path / "task"), model_dir, SOLVED, "local", {})
    played, reference = await ADAPTERS[adapter](episode), await by_run_episode(episode)
    assert played == reference == Played(1.0, EndReason.COMPLETED)
    assert played.trained == reference.trained


@pytest.mark.local
@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_a_real_sandbox_that_is_lost_when_it_is_graded(adapter: str, model_dir: str, tmp_path: Path) -> None:
    sandbox = "tests.helpers.sandboxes.failing:LostAtGrading"
    episode = Episode(write_task(tmp_path / "task"), model_dir, SOLVED, sandbox, {})
    played = await ADAPTERS[adapter](episode)
    assert (played.reward, played.end_reason) == (None, EndReason.INFRASTRUCTURE_ERROR)
    assert played.failure_kind == (await by_run_episode(episode)).failure_kind
