"""What a notebook shows of an object: one short line, without the secrets of a configuration."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import (
    AgentEpisodeConfig,
    AsyncTerminalGymEnv,
    Rollout,
    Sample,
    TerminalEnvConfig,
    TerminalEnvWrapper,
    TokenSequence,
    TokenTerminalEnv,
    TokenTransition,
    WarmPool,
    run_episode,
)
from tests.helpers.chats.character_codec import CharacterCodec
from tests.helpers.sandboxes.fake_episodes import COMPLETE, FAKE, fake_config, message

SECRET = "sk-0123456789"


def test_a_configuration_shows_what_was_set_and_no_secret() -> None:
    config = TerminalEnvConfig(
        task_dir="task:devops_task",
        sandbox_options={"forkable": True, "token": SECRET},
        verifier={"env": {"KEY": SECRET}},
        terminal={"columns": 100},
    )
    shown = repr(config)
    assert SECRET not in shown
    assert "'forkable': True" in shown
    assert "terminal=TerminalConfig(columns=100)" in shown
    assert "max_turns" not in shown
    agent = {"name": "claude-code", "env": {"ANTHROPIC_AUTH_TOKEN": SECRET}}
    shown = repr(AgentEpisodeConfig(task_dir="task:devops_task", agent=agent))
    assert (SECRET in shown, "agent='claude-code'" in shown) == (False, True)


async def test_an_environment_shows_its_task_and_where_it_stands(tmp_path: Path) -> None:
    class Wrapper(TerminalEnvWrapper):
        pass

    config = fake_config(tmp_path / "devops")
    async with WarmPool(config, size=1) as pool, AsyncTerminalGymEnv(config, pool=pool) as env:
        assert repr(env) == f"<AsyncTerminalGymEnv devops on {FAKE}: not reset>"
        await env.reset()
        await env.step(message("ls\n"))
        assert repr(env) == f"<AsyncTerminalGymEnv devops on {FAKE}: ready, turn 1>"
        assert repr(Wrapper(env)) == f"<Wrapper of {env!r}>"
        assert repr(TokenTerminalEnv(env, CharacterCodec(), max_tokens=10)) == (
            f"<TokenTerminalEnv of {env!r}: 0 prompt tokens>"
        )
        assert repr(await env.snapshot()) == f"<Snapshot devops on {FAKE}: turn 1>"
        assert repr(pool).startswith(f"<WarmPool devops on {FAKE}: ")


async def test_a_rollout_is_short_whatever_its_tokens(tmp_path: Path) -> None:
    async def sample(prompt: Any) -> Sample:
        return Sample([*map(ord, COMPLETE)], [-0.5] * len(COMPLETE))

    env = TokenTerminalEnv(AsyncTerminalGymEnv(fake_config(tmp_path / "task")), CharacterCodec(), max_tokens=4000)
    rollout = await run_episode(env, sample)
    shown = repr(rollout)
    assert shown.startswith("Rollout(end_reason=<EndReason.COMPLETED: 'completed'>, reward=1.0, transitions=[")
    assert len(shown) < 1500
    assert "missing_protections=()" not in shown


MANY: dict[str, Callable[[list[int]], object]] = {
    "Sample": lambda tokens: Sample(tokens, [-0.5] * len(tokens)),
    "TokenTransition": lambda tokens: TokenTransition(tokens, Sample(tokens), 0.0, {"turn": 1, "metrics": {}}),
    "TokenSequence": lambda tokens: TokenSequence(tokens, tokens, (), [0.0] * len(tokens)),
}


@pytest.mark.parametrize("name", MANY)
def test_thousands_of_tokens_are_not_shown(name: str) -> None:
    shown = repr(MANY[name](list(range(10_000))))
    assert shown.startswith(f"{name}(")
    assert len(shown) < 400


def test_a_lost_rollout_shows_that_it_has_no_reward() -> None:
    from harbor_gym import EndReason, SandboxLostError

    lost = Rollout(end_reason=EndReason.INFRASTRUCTURE_ERROR, reward=None, error=SandboxLostError("gone"))
    assert "reward=None, error=SandboxLostError('gone')" in repr(lost)
