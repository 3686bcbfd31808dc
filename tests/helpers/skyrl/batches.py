"""SkyRL's inputs and configurations for small runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skyrl.train.config import GeneratorConfig, SamplingParams

from harbor_gym.adapters.skyrl import HarborSettings, HarborTerminalGenerator
from tests.helpers.skyrl.engine import SamplerEngine, chat_tokenizer

FAKE = "harbor_gym.testing:FakeEnvironment"


def generator_config(**settings: Any) -> GeneratorConfig:
    """Return a section ``generator`` for episodes of a few turns."""
    own: dict[str, Any] = {"max_turns": 4, "max_input_length": 20_000, **settings}
    own.setdefault("sampling_params", SamplingParams(max_generate_length=500))
    return GeneratorConfig(**own)


def make_generator(
    engine: SamplerEngine, settings: Mapping[str, Any] | None = None, **generator: Any
) -> HarborTerminalGenerator:
    """Return a generator on fakes.

    Args:
        engine: The source of samples.
        settings: Of the section ``harbor``.
        generator: Of the section ``generator``.
    """
    own: dict[str, Any] = {"env": {"confirm_task_complete": False}, **(settings or {})}
    if "sandbox" not in own:
        own["env"] = {"sandbox": FAKE, **own["env"]}
    return HarborTerminalGenerator(
        generator_config(**generator),
        inference_engine_client=engine,
        tokenizer=chat_tokenizer(),
        settings=HarborSettings(**own),
    )


def make_input(task_dir: Path, *, groups: int = 1, size: int = 4, phase: str = "train") -> tuple[Any, list[str]]:
    """Return a batch as SkyRL's trainers make it, and its uids."""
    from skyrl.train.generators.utils import prepare_generator_input

    prompt = [{"role": "user", "content": "x"}]
    rows = [
        {"prompt": prompt, "env_class": "harbor", "env_extras": {"task_dir": str(task_dir)}, "uid": f"row{number}"}
        for number in range(groups)
    ]
    return prepare_generator_input(rows, size, {"logprobs": 1, "max_tokens": 500}, "harbor", phase, 1)  # pyright: ignore[reportArgumentType]
