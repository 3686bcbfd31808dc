"""One episode, any trainer: whoever drives it, the same tokens, mask, reward, end and outcome of a lost sandbox.

An adapter joins by a function in ``ADAPTERS`` that plays an :class:`Episode` through the adapter's own rollout code.
One whose framework has an environment of its own says so in ``ENGINES``: it runs there, against the same reference.
"""

import asyncio
import copy
import dataclasses
import functools
import importlib.util
import math
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, override

import pytest

from harbor_gym import (
    AsyncTerminalGymEnv,
    EndReason,
    Rollout,
    Sample,
    TerminalEnvConfig,
    TokenTerminalEnv,
    flatten,
    merge,
    run_episode,
)
from harbor_gym.codecs import HFCodec
from harbor_gym.errors import HarborGymError
from harbor_gym.outcomes import FAILURE_KINDS, classify
from harbor_gym.testing import FakeEnvironment
from harbor_gym.types import TokenSequence
from tests.helpers.chat_templates import QWEN3
from tests.helpers.policies.completions_server import completions_server
from tests.helpers.policies.token_policies import RENDERER
from tests.helpers.sandboxes.fake_episodes import COMPLETE, message
from tests.helpers.tasks import DONE, write_task
from tests.helpers.tokenizers import byte_level_tokenizer

pytestmark = pytest.mark.usefixtures("nothing_left")

MAX_TOKENS = 500
VANISH = "vanish"

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""What the renderer writes, as a chat template."""


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
        if importlib.util.find_spec("tinker_cookbook") is None:
            return HFCodec(byte_level_tokenizer(), QWEN3)
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
    return _played(rollout)


def _played(rollout: Rollout) -> Played:
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


async def by_openenv_session(episode: Episode) -> Played:
    """A session as TRL's worker drives it: what OpenEnv's trace holds is what it trains."""
    pytest.importorskip("openenv", reason='pip install "harbor-gym[openenv]"')
    from harbor_gym.adapters.openenv import HarborTerminalSessionFactory, LocalTasks, TaskSuite

    tokenizer = copy.deepcopy(byte_level_tokenizer())
    tokenizer.chat_template = CHATML
    tasks = LocalTasks(await asyncio.to_thread(TaskSuite.resolve, episode.task_dir), episode.config)
    async with completions_server(episode.sampler) as url:
        factory = HarborTerminalSessionFactory(
            tasks,
            tokenizer=tokenizer,
            engine_url=url,
            model="policy",
            max_tokens=MAX_TOKENS,
            max_context_tokens=episode.max_context_tokens,
            max_retries=0,
        )
        session = factory.create(0)
        await asyncio.to_thread(session.wait_for_completion)
    trace, verdict = session.fetch_training_trace(), session.verify([])
    end = EndReason(verdict.metrics["end_reason"])
    if verdict.env_reward is None:
        assert not any(mask for turn in trace.turns for mask in turn.loss_mask)
        return Played(None, end, verdict.metrics["failure_kind"])
    assert all(sum(turn.loss_mask) == len(turn.completion_token_ids) for turn in trace.turns)
    turns = [(turn.prompt_token_ids, Sample(turn.completion_token_ids, turn.per_token_logps)) for turn in trace.turns]
    (sequence,) = merge(turns)
    return Played(verdict.env_reward, end, sequence=sequence)


async def by_openenv_server(episode: Episode) -> Played:
    """The token loop here, the episode on a server, and a WebSocket in between."""
    pytest.importorskip("openenv", reason='pip install "harbor-gym[openenv]"')
    from harbor_gym.adapters.openenv import HarborTerminalClient, RemoteTerminalEnv, ServerConfig, TerminalServer

    config = ServerConfig(env=episode.config, tasks=(str(episode.task_dir),), port=0, max_retries=0)
    with await asyncio.to_thread(TerminalServer, config) as server:
        env = TokenTerminalEnv(
            RemoteTerminalEnv(HarborTerminalClient(server.url, token=server.token)),
            episode.codec(),
            max_tokens=MAX_TOKENS,
            max_context_tokens=episode.max_context_tokens,
        )
        rollout = await run_episode(env, episode.sampler)
    return lost(rollout.error) if rollout.error is not None else _played(rollout)


async def by_nemo_gym(episode: Episode) -> Played:
    return await _by_nemo_gym(episode, None)


async def by_nemo_gym_agent(episode: Episode) -> Played:
    return await _by_nemo_gym(episode, _agent())


async def _by_nemo_gym(episode: Episode, agent: Any) -> Played:
    """All of the adapter but NeMo Gym's own types, which its environment's tests put around it."""
    from harbor_gym.adapters.nemo_gym.model_server import ModelServer
    from harbor_gym.adapters.nemo_gym.play import play
    from harbor_gym.adapters.nemo_gym.rows import make_row
    from harbor_gym.adapters.nemo_gym.settings import EpisodePlan
    from tests.helpers.nemo_gym.double import ModelServerDouble, read_as_trainer

    engine = ModelServerDouble(
        episode.sampler, episode.codec(), max_tokens=MAX_TOKENS, max_context_tokens=episode.max_context_tokens
    )
    plan = EpisodePlan("alias::task", episode.config, agent, max_retries=0)
    played = await play(plan, lambda: ModelServer(engine.post, {}, require_token_ids=True))
    row = make_row(played, require_token_ids=True)
    sequence = read_as_trainer(row.output)
    if played.error is not None:
        assert row.is_masked
        return lost(played.error)
    assert not row.is_masked
    return Played(row.fields["reward"], EndReason(row.fields["end_reason"]), sequence=sequence)


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


async def by_verifiers(episode: Episode) -> Played:
    return await _by_verifiers(episode)


async def by_verifiers_agent(episode: Episode) -> Played:
    agent = {"import_path": _agent().import_path, "kwargs": _agent().kwargs}
    return await _by_verifiers(episode, agent=agent)


async def _by_verifiers(episode: Episode, **settings: Any) -> Played:
    """verifiers' own environment and train client, over HTTP, to the branch that becomes a sample."""
    from tests.helpers.verifiers.episodes import end_reason_of, env_config, run_episodes, sequence_of
    from tests.helpers.verifiers.token_server import TokenServer

    own = {} if "agent" in settings else {"confirm_task_complete": False}
    harness = {
        "sandbox": episode.sandbox,
        "sandbox_options": dict(episode.sandbox_options),
        "terminal_env": {"max_turns": episode.max_turns, **own},
        **settings,
    }
    env = env_config([episode.task_dir], harness, {"retries": {"rules": []}})
    # The client refuses a prompt that is longer than the model's context: what an answer may take is left free.
    window = episode.max_context_tokens - MAX_TOKENS
    server = TokenServer(episode.sampler, model=f"policy-{window}", max_model_len=window)
    (finished,) = await run_episodes(server, env, model_dir=episode.model_dir)
    (trace,) = finished.traces
    if not trace.ok:
        (error,) = trace.errors
        assert not any(trace.rewards.values())
        return Played(None, EndReason.INFRASTRUCTURE_ERROR, error.message.partition(":")[0])
    return Played(trace.reward, end_reason_of(trace), sequence=sequence_of(trace))


async def by_skyrl(episode: Episode) -> Played:
    return await _by_skyrl(episode, env={"confirm_task_complete": False})


async def by_skyrl_step_wise(episode: Episode) -> Played:
    return await _by_skyrl(episode, step_wise=True, env={"confirm_task_complete": False})


async def by_skyrl_agent(episode: Episode) -> Played:
    agent = _agent()
    return await _by_skyrl(episode, step_wise=True, agent=agent.import_path, agent_kwargs=agent.kwargs)


async def _by_skyrl(episode: Episode, *, step_wise: bool = False, **own: Any) -> Played:
    """SkyRL's own validation and merging around our generator."""
    from skyrl.train.config import SamplingParams
    from skyrl.train.generators.utils import merge_stepwise_output
    from skyrl.train.utils.trainer_utils import validate_generator_output

    from tests.helpers.skyrl.batches import make_generator, make_input
    from tests.helpers.skyrl.engine import SamplerEngine

    settings = {"sandbox": episode.sandbox, "sandbox_options": dict(episode.sandbox_options), "max_retries": 0, **own}
    generator = make_generator(
        SamplerEngine(episode.sampler),
        {"env": {}, **settings},
        max_turns=episode.max_turns,
        max_input_length=episode.max_context_tokens - MAX_TOKENS,
        sampling_params=SamplingParams(max_generate_length=MAX_TOKENS),
        step_wise_trajectories=step_wise,
    )
    batch, _ = make_input(episode.task_dir, size=1)
    output: Any = await generator.generate(batch)
    output.pop("rollout_metrics")
    validate_generator_output(1, output, step_wise=step_wise)
    (end,) = (name for name in output["env_metrics"][-1] if name.startswith(("end/", "lost/")))
    output = merge_stepwise_output(output) if step_wise else output
    (prompt,), (response,), (mask,) = (output[n] for n in ("prompt_token_ids", "response_ids", "loss_masks"))
    if output["stop_reasons"] == ["error"]:
        assert mask == [0]
        return Played(None, EndReason.INFRASTRUCTURE_ERROR, end.removeprefix("lost/"))
    (reward,) = (sum(reward) if step_wise else reward for reward in output["rewards"])
    end_reason = EndReason(end.removeprefix("end/"))
    return Played(reward, end_reason, sequence=TokenSequence(prompt, response, mask, output["rollout_logprobs"][0]))


async def by_nemo_gym_server(episode: Episode) -> Played:
    """The same through ``/run``, with NeMo Gym's own types."""
    from harbor_gym.adapters.nemo_gym.rows import nemo_kind
    from tests.helpers.nemo_gym.agent import make_agent, post
    from tests.helpers.nemo_gym.double import ModelServerDouble, read_as_trainer

    engine = ModelServerDouble(
        episode.sampler, episode.codec(), max_tokens=MAX_TOKENS, max_context_tokens=episode.max_context_tokens
    )
    agent = make_agent(
        episode.task_dir.parent,
        engine,
        harbor_datasets={"own": {"local_dataset_path": episode.task_dir}},
        sandbox=episode.sandbox,
        sandbox_options=dict(episode.sandbox_options),
        max_turns=episode.max_turns,
        terminal_env={"confirm_task_complete": False},
        require_token_ids=True,
        max_retries=0,
    )
    status, row = await post(agent, {"instance_id": f"own::{episode.task_dir.name}"})
    assert status == 200, row
    end_reason, sequence = EndReason(row["end_reason"]), read_as_trainer(row["response"]["output"])
    if row["mask_sample"]:
        words = {nemo_kind(word): word for word in FAILURE_KINDS}
        return Played(None, end_reason, words[row["failure_kind"]])
    return Played(row["reward"], end_reason, sequence=sequence)


ADAPTERS: Mapping[str, Callable[[Episode], Awaitable[Played]]] = {
    "run_episode": by_run_episode,
    "tinker": by_tinker,
    "tinker-agent": by_tinker_agent,
    "harbor-env": by_harbor_env,
    "harbor-gateway": by_harbor_gateway,
    "openenv-session": by_openenv_session,
    "openenv-server": by_openenv_server,
    "nemo-gym": by_nemo_gym,
    "nemo-gym-agent": by_nemo_gym_agent,
    "nemo-gym-server": by_nemo_gym_server,
    "trl": by_trl,
    "verifiers": by_verifiers,
    "verifiers-agent": by_verifiers_agent,
    "skyrl": by_skyrl,
    "skyrl-step-wise": by_skyrl_step_wise,
    "skyrl-agent": by_skyrl_agent,
    "trl-async": by_trl_async,
}
"""Every way to play an episode, by name."""

ENGINES = {"run_episode": "", "verifiers": "verifiers", "verifiers-agent": "verifiers", "nemo-gym-server": "nemo_gym"}
"""The mark of an adapter's engine, where it is not ``tinker``: that of an environment of its own, or none."""


def adapters(*, but: str = "") -> list[Any]:
    """Return the adapters as parameters, each with its engine's mark."""
    marks = {name: getattr(pytest.mark, engine) for name in ADAPTERS if (engine := ENGINES.get(name, "tinker"))}
    return [pytest.param(name, marks=marks.get(name, ())) for name in ADAPTERS if name != but]


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

AGENTS_OWN_WORDS = {
    (name, "session ended"): EndReason.COMPLETED
    for name in ("harbor-gateway", "nemo-gym-agent", "skyrl-agent", "tinker-agent", "verifiers-agent")
}
"""Ends that only the loop knows, where a foreign agent is the loop: it simply ends."""


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory that holds a tokenizer and nothing else."""
    path = tmp_path_factory.mktemp("tokenizer")
    byte_level_tokenizer().save_pretrained(path)
    return str(path)


@pytest.mark.parametrize("name", EPISODES)
@pytest.mark.parametrize("adapter", adapters())
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
@pytest.mark.parametrize("adapter", adapters(but="run_episode"))
async def test_in_a_real_sandbox(adapter: str, model_dir: str, tmp_path: Path) -> None:
    episode = Episode(write_task(tmp_path / "task"), model_dir, SOLVED, "local", {})
    played, reference = await ADAPTERS[adapter](episode), await by_run_episode(episode)
    assert played == reference == Played(1.0, EndReason.COMPLETED)
    assert played.trained == reference.trained


@pytest.mark.local
@pytest.mark.parametrize("adapter", adapters())
async def test_a_real_sandbox_that_is_lost_when_it_is_graded(adapter: str, model_dir: str, tmp_path: Path) -> None:
    sandbox = "tests.helpers.sandboxes.failing:LostAtGrading"
    episode = Episode(write_task(tmp_path / "task"), model_dir, SOLVED, sandbox, {})
    played = await ADAPTERS[adapter](episode)
    assert (played.reward, played.end_reason) == (None, EndReason.INFRASTRUCTURE_ERROR)
    assert played.failure_kind == (await by_run_episode(episode)).failure_kind
