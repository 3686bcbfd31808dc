"""Gymnasium's environment, and the few lines around it that a loop of one's own is."""

import asyncio
from typing import Any

from harbor_gym import Sample, SamplerError, merge
from harbor_gym.errors import HarborGymError
from harbor_gym.formats import prompts
from tests.contract.players.episode import Episode, Played, lost, only


async def by_gymnasium(episode: Episode) -> Played:
    return await asyncio.to_thread(_play, episode)


def _play(episode: Episode) -> Played:
    import gymnasium

    import harbor_gym

    gymnasium.register_envs(harbor_gym)
    settings: dict[str, Any] = {name: getattr(episode.config, name) for name in episode.config.model_fields_set}
    env = gymnasium.make("HarborTerminal-v0", action="message", **settings)
    try:
        return _converse(env, episode)
    except HarborGymError as exc:
        if not exc.is_infrastructure:
            raise
        return lost(exc)
    finally:
        env.close()


def _converse(env: Any, episode: Episode) -> Played:
    codec, turns = episode.codec(), list[tuple[list[int], Sample]]()
    screen, info = env.reset()
    prompt = codec.prompt(prompts.opening(episode.config, info["instruction"], screen).messages)  # pyright: ignore[reportArgumentType]  # a chat's rows, typed less closely
    paid, is_over = 0.0, False
    while not is_over:
        sample = asyncio.run(_ask(episode, prompt))
        turns.append((prompt, sample))
        shown, reward, terminated, truncated, info = env.step(codec.text(sample.tokens))
        paid, is_over = paid + reward, terminated or truncated
        prompt = [*prompt, *sample.tokens, *codec.next_turn(sample.tokens, shown)]
    return Played(paid, info["end_reason"], sequence=only(merge(turns)))


async def _ask(episode: Episode, prompt: list[int]) -> Sample:
    sample = await episode.sampler(prompt)
    if sample.stop_reason == "length":
        raise SamplerError("a loop of one's own decides what becomes of a message that is cut")
    return sample
