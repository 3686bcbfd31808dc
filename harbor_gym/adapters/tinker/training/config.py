"""The configuration of a training run: one frozen object, and the source of its flags (``harbor_gym.cli.recipes``)."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from harbor_gym.adapters.tinker.branch import Branch
from harbor_gym.config import DEFAULT_MAX_RETRIES, AgentEpisodeConfig, AnyEpisode, MaxRetries, OptionalPath, aliases
from harbor_gym.config.tracking import Tracking
from harbor_gym.stragglers import Stragglers
from harbor_gym.tasks.receipts import Severity
from harbor_gym.types import ActionFormat, ExecutorKind


class Backend(StrEnum):
    """The service that samples and trains."""

    TINKER = "tinker"
    LOCAL = "local"


type LossFn = Literal["importance_sampling", "ppo", "cispo", "dro", "gspo", "stable_reinforce"]
"""The service's losses that reinforcement learning can use."""

OBSERVATION_LOSSES = ("importance_sampling", "ppo", "cispo")
"""Losses that compare each token's probability with its earlier one, so that an observation loss can be added."""


class LogDirExists(StrEnum):
    """What to do with a log path that exists."""

    ASK = "ask"
    DELETE = "delete"
    RESUME = "resume"
    RAISE = "raise"


@dataclass(frozen=True)
class BackendDefaults:
    """The defaults that depend on the backend."""

    model_name: str | None
    renderer_name: str
    max_tokens: int
    max_context_tokens: int
    num_batches: int
    learning_rate: float
    save_every: int
    max_turns: int
    action_format: ActionFormat = ActionFormat.TERMINUS_JSON


BACKEND_DEFAULTS = {
    Backend.TINKER: BackendDefaults(
        model_name="Qwen/Qwen3-30B-A3B-Instruct-2507",
        renderer_name="qwen3_instruct",
        max_tokens=4096,
        max_context_tokens=32_768,
        num_batches=25,
        learning_rate=4e-5,
        save_every=10,
        max_turns=30,
    ),
    # model_name None is the built-in policy of two million parameters.
    Backend.LOCAL: BackendDefaults(
        model_name=None,
        renderer_name="qwen3_instruct",
        max_tokens=64,
        max_context_tokens=4096,
        num_batches=5,
        learning_rate=1e-3,
        save_every=1,
        max_turns=10,
    ),
}

LOCAL_MODEL_DEFAULTS = BackendDefaults(
    model_name=None,
    renderer_name="chat_template",
    max_tokens=64,
    max_context_tokens=2048,
    num_batches=25,
    learning_rate=5e-4,
    save_every=5,
    max_turns=8,
    action_format=ActionFormat.KEYSTROKES,
)
"""The defaults of the local backend for a named model."""


def defaults_of(backend: Backend, model_name: str | None) -> BackendDefaults:
    """Return the defaults of a backend and its model."""
    is_named = backend is Backend.LOCAL and model_name is not None
    return LOCAL_MODEL_DEFAULTS if is_named else BACKEND_DEFAULTS[backend]


TASKS, HOW, ROLLOUTS, OUTPUT = "What to train on", "How to train", "Rollouts", "Where and what to keep"
"""Groups of fields, in the order in which ``--help`` lists them."""


def _field(group: str, default: Any = None, **constraints: Any) -> Any:
    return Field(default=default, json_schema_extra={"group": group}, **constraints)


def _by_backend(name: str, group: str, **constraints: Any) -> Any:
    """Return a field whose default is the backend's."""

    def default(validated: dict[str, Any]) -> Any:
        return getattr(defaults_of(validated["backend"], validated.get("model_name")), name)

    return _made(group, default, **constraints)


def _made(group: str, default: Callable[[dict[str, Any]], Any], **constraints: Any) -> Any:
    return Field(default_factory=default, json_schema_extra={"group": group}, **constraints)


def _num_batches(validated: dict[str, Any]) -> int | None:
    if validated.get("epochs") is not None:
        return None
    return defaults_of(validated["backend"], validated["model_name"]).num_batches


class TrainConfig(BaseModel):
    """A training run on Harbor tasks with tinker-cookbook's RL loop.

    Each field is a flag of ``recipes/train.py``, and so is each field of ``env``. A field that takes the backend's
    default is documented in :data:`BACKEND_DEFAULTS`, or for a named model of the local backend in
    :data:`LOCAL_MODEL_DEFAULTS`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    env: AnyEpisode
    """How each episode is played: in our own loop, or by an agent. Each task takes the place of ``env.task_dir``."""

    task_dirs: tuple[Path, ...] = _field(TASKS, ())
    """Task directory, or a directory of tasks."""

    tasks: tuple[str, ...] = _field(TASKS, ())
    """git+URL@COMMIT#path, org/name@ref, or a path."""

    registry_path: OptionalPath = _field(TASKS)
    """registry.json to look names up in."""

    where: tuple[str, ...] = _field(TASKS, ())
    """Only tasks with difficulty=easy, keywords!=vim …"""

    task_weights: dict[str, float] = _field(TASKS, {})
    """NAME=2 comes twice in an epoch."""

    test_tasks: tuple[str, ...] = _field(TASKS, ())
    """Name of a task to test on only."""

    test_fraction: float = _field(TASKS, 0.0, ge=0, lt=1)
    """Share of the tasks to test on only, drawn by the seed."""

    backend: Backend = _field(HOW, Backend.TINKER)
    """The Tinker service, or a server on this machine."""

    base_url: str | None = _field(HOW)
    """Address of a Tinker-compatible server."""

    server_timeout_sec: float = _field(HOW, 300.0, gt=0)
    """Longest pause without progress in the embedded server's start, in seconds; its duration has no limit."""

    model_name: str | None = _by_backend("model_name", HOW)
    """Base model: a name; for the local backend a directory or smollm2-135m, and by default the embedded policy."""

    demonstrations: int | None = _field(HOW, ge=0)
    """Demonstrations, half of them solved, on which a local model is fine-tuned first; 0: none, as for a directory."""

    device: str | None = _field(HOW, pattern=r"^(cpu|cuda(:\d+)?)$")
    """Where a local model of 64 MB and more is computed: cpu, cuda or cuda:1. Default: CUDA if there is a GPU."""

    renderer_name: str = _by_backend("renderer_name", HOW)
    """tinker-cookbook renderer, or chat_template: the tokenizer's own."""

    max_tokens: int = _by_backend("max_tokens", HOW, ge=1)
    """Longest sampled message, in tokens."""

    max_context_tokens: int = _by_backend("max_context_tokens", HOW, ge=1)
    """Context window in tokens."""

    temperature: float = _field(HOW, 1.0, ge=0)
    """Sampling temperature; 0 is greedy."""

    groups_per_batch: int = _field(HOW, 1, ge=1)
    """Groups in a batch."""

    group_size: int = _field(HOW, 8, ge=1)
    """Episodes in a group; rewards are centred in it."""

    branch: str | None = _field(HOW)
    """Copy episodes: 4@mid makes families of 4 that share the first half, 4@3 three turns, 4@entropy all turns before
    the least certain message."""

    warm_sandboxes: int = _field(HOW, 0, ge=0)
    """Sandboxes kept ready for the next batch; 0 keeps none."""

    epochs: int | None = _field(HOW, ge=1)
    """Passes over the tasks, instead of a number of batches."""

    num_batches: int | None = _made(HOW, _num_batches, ge=1)
    """Batches to train."""

    learning_rate: float = _by_backend("learning_rate", HOW, gt=0)
    """Adam's learning rate, above 0."""

    lora_rank: int = _field(HOW, 32, ge=1)
    """Rank of the LoRA adapter."""

    loss_fn: LossFn = _field(HOW, "importance_sampling")
    """The loss of a step, by the service's name for it."""

    observation_loss_weight: float = _field(HOW, 0.0, ge=0)
    """Weight of the cross-entropy of observation tokens, added to the policy's loss; 0 is none."""

    kl_penalty_coef: float = _field(HOW, 0.0, ge=0)
    """Weight of the KL penalty against the base model, or kl_reference_model; 0 is none."""

    kl_reference_model: str | None = _field(HOW)
    """Base model of the KL penalty's reference, such as a teacher, with the policy's tokenizer."""

    kl_reference_checkpoint: str | None = _field(HOW)
    """The reference's weights for sampling (tinker://…): a checkpoint's sampler_path. Default: the base model's."""

    load_checkpoint_path: str | None = _field(HOW)
    """Start from these weights (tinker://…)."""

    seed: int = _field(HOW, 0)
    """Seeds the order of the tasks, the embedded policy, the adapter and sampling."""

    make_env: str | None = _field(ROLLOUTS)
    """module.path:name of a subclass of AsyncTerminalGymEnv, or a function, that makes each episode's environment."""

    trajectory_reward: str | None = _field(ROLLOUTS)
    """module.path:function that adds to an episode's reward, given its Transcript."""

    max_retries: MaxRetries = _field(ROLLOUTS, DEFAULT_MAX_RETRIES)

    over_sample: float = _field(ROLLOUTS, 1.0, ge=1)
    """Start this multiple of a group's size; the first episodes to end are the group."""

    batch_deadline_sec: float | None = _field(ROLLOUTS, gt=0)
    """Seconds after which a group's running episodes are ended and verified."""

    stop_on_finding: Severity | None = _field(ROLLOUTS)
    """End the run, once its weights are saved, at an episode with a finding as bad as this; by default only warn."""

    remove_constant_groups: bool = _field(ROLLOUTS, False)
    """Leave groups with equal rewards out of the step, and of its metrics."""

    max_steps_off_policy: int | None = _field(ROLLOUTS, ge=0)
    """Sample while training; drop groups that are more than this number of steps old."""

    stream_minibatches: int | None = _field(ROLLOUTS, ge=1)
    """Train on a batch in this number of parts, each as soon as it is complete."""

    rollout_executor: ExecutorKind | None = _field(ROLLOUTS)
    """Play groups in other processes: of this machine, or Ray's."""

    rollout_workers: int = _field(ROLLOUTS, 2, ge=1)
    """Number of those processes; each plays a group at a time."""

    rollout_starts_per_sec: float | None = _field(ROLLOUTS, gt=0)
    """With Ray: starts of sandboxes per second, over all nodes."""

    log_path: OptionalPath = _field(OUTPUT)
    """Folder of the run."""

    log_dir_exists: LogDirExists = _field(OUTPUT, LogDirExists.ASK)
    """What to do if that folder exists."""

    save_every: int = _by_backend("save_every", OUTPUT, ge=0)
    """Batches between checkpoints; 0 keeps only the last."""

    eval_every: int = _field(OUTPUT, 0, ge=0)
    """Batches between evaluations, with a checkpoint and best.json; 0 is never."""

    eval_temperature: float = _field(OUTPUT, 0.0, ge=0)
    """Sampling temperature of evaluations; 0 is greedy."""

    test_episodes: int | None = _field(OUTPUT, ge=1)
    """Episodes of each test task."""

    wandb_project: str | None = _field(OUTPUT)
    """As --track wandb --track-project."""

    track: Tracking = _field(OUTPUT, Tracking())
    """The experiment tracker that the run is sent to, if any."""

    @property
    def tracking(self) -> Tracking:
        """The run's tracker."""
        return self.track if self.wandb_project is None else Tracking(tracker="wandb", project=self.wandb_project)

    @property
    def stragglers(self) -> Stragglers:
        """How to treat a group's slowest episodes."""
        return Stragglers(over_sample=self.over_sample, batch_deadline_sec=self.batch_deadline_sec)

    _read_earlier_names = aliases.reading(aliases.TRAIN)

    @model_validator(mode="after")
    def _require_fit(self) -> Self:
        """Refuse settings with which the cookbook would fail, or compute wrong results, in the middle of a run."""
        if (self.num_batches is None) == (self.epochs is None):
            raise ValueError("give either --epochs or --num-batches")
        weights = self.load_checkpoint_path
        if weights is not None and not weights.startswith("tinker://"):
            raise ValueError(
                f"--load-checkpoint-path {weights} is no address of weights: give the state_path of a line in a run's "
                "checkpoints.jsonl, which begins with tinker://"
            )
        teacher = self.kl_reference_checkpoint
        if teacher is not None and not teacher.startswith("tinker://"):
            raise ValueError(
                f"--kl-reference-checkpoint {teacher} is no address of weights: give the sampler_path of a line in a "
                "run's checkpoints.jsonl, which begins with tinker://"
            )
        if (teacher or self.kl_reference_model) and not self.kl_penalty_coef:
            raise ValueError("--kl-reference-model and --kl-reference-checkpoint need a --kl-penalty-coef above 0")
        if self.backend is Backend.LOCAL and self.kl_reference_model is not None:
            raise ValueError("--backend local serves one base model: --kl-reference-model is for --backend tinker")
        if self.backend is Backend.LOCAL and self.base_url is not None:
            raise ValueError("--backend local starts its own server; --base-url belongs to --backend tinker")
        if self.demonstrations is not None and (self.backend is not Backend.LOCAL or self.model_name is None):
            raise ValueError("--demonstrations fine-tunes a named model of --backend local: name one with --model-name")
        if self.wandb_project is not None and self.track.tracker is not None:
            raise ValueError("--wandb-project is --track wandb --track-project: give one of them")
        if self.backend is Backend.TINKER and self.model_name is None:
            raise ValueError("--backend tinker needs a --model-name")
        self._require_players_fit()
        self._require_steps_fit()
        return self

    def _require_players_fit(self) -> None:
        if self.branch is not None:
            Branch.parse(self.branch).require_fit(self.group_size)
            if self.stragglers.is_active:
                raise ValueError("--branch waits for episodes: it excludes --over-sample and --batch-deadline")
        if not isinstance(self.env, AgentEpisodeConfig):
            return
        if self.branch is not None:
            raise ValueError("--agent plays an episode that can't be copied: --branch belongs to our own loop")
        if self.make_env is not None:
            raise ValueError("--agent plays in sandboxes that Harbor starts: --make-env belongs to our own loop")
        if self.warm_sandboxes:
            raise ValueError("--agent plays in sandboxes that Harbor starts, and takes no --warm-sandboxes")

    def _require_steps_fit(self) -> None:
        parts = self.stream_minibatches
        if parts is not None and self.groups_per_batch % parts:
            raise ValueError(
                f"--groups-per-batch {self.groups_per_batch} can't be divided in {parts} --stream-minibatches"
            )
        if parts is not None and self.observation_loss_weight:
            raise ValueError("--observation-loss-weight needs a whole batch: it excludes --stream-minibatches")
        if self.observation_loss_weight and self.loss_fn not in OBSERVATION_LOSSES:
            known = ", ".join(OBSERVATION_LOSSES)
            raise ValueError(f"--observation-loss-weight needs a --loss-fn of each token ({known}), not {self.loss_fn}")
        if parts is not None and self.remove_constant_groups and self.max_steps_off_policy is None:
            raise ValueError("--remove-constant-groups and --stream-minibatches: no batch may lack a mixed group")
