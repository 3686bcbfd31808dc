"""The cookbook's loop."""

import math
from typing import Any

from harbor_gym import EndReason
from harbor_gym.errors import ContextOverflowError, HarborGymError
from harbor_gym.types import TokenSequence
from tests.contract.players.episode import MAX_TOKENS, Episode, Played, lost, only
from tests.helpers.policies.token_policies import RENDERER
from tests.helpers.sequences import of_mask


async def by_tinker(episode: Episode) -> Played:
    """The cookbook's own rollout, and its own making of a datum."""
    return await _by_cookbook(episode, env=episode.config)


async def by_tinker_agent(episode: Episode) -> Played:
    """The same loop of the cookbook's, around a foreign agent."""
    return await _by_cookbook(episode, env=episode.agents_config)


async def _by_cookbook(episode: Episode, **settings: Any) -> Played:
    from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
    from tinker_cookbook.rl.data_processing import trajectory_to_data
    from tinker_cookbook.rl.rollouts import do_single_rollout

    from harbor_gym.adapters.tinker import GroupTemplate, HarborSingleTaskEnvGroupBuilder
    from harbor_gym.adapters.tinker.env import stop_metric

    class Policy(TokenCompleter):
        async def __call__(self, model_input: Any, stop: Any, *, max_tokens: int | None = None) -> Any:
            sample = await episode.sampler(model_input.to_ints())
            return TokensWithLogprobs(
                tokens=list(sample.tokens), maybe_logprobs=list(sample.logprobs or ()), stop_reason=sample.stop_reason
            )

    template = GroupTemplate(
        group_size=1,
        model_name=episode.model_dir,
        renderer_name=RENDERER,
        max_tokens=MAX_TOKENS,
        max_context_tokens=episode.max_context_tokens,
        **settings,
    )
    builder = HarborSingleTaskEnvGroupBuilder(template)
    (env,) = await builder.make_envs()
    try:
        trajectory = await do_single_rollout(Policy(), env)
        await builder.compute_group_rewards([trajectory], [env])
    except HarborGymError as exc:
        if isinstance(exc, ContextOverflowError) or not exc.is_infrastructure:
            raise  # as the cookbook's own completer would, through its rollout, and our strategy
        return lost(exc)
    finally:
        await builder.cleanup()
    reward = math.fsum(transition.reward for transition in trajectory.transitions)
    (end_reason,) = [word for word in EndReason if stop_metric(word) == f"stop/{trajectory.stop_reason}"]
    data: list[Any] = trajectory_to_data(trajectory, 1.0)
    sequences = [_sequence(datum) for datum in data]
    return Played(reward, end_reason, sequence=only(sequences), sequences=sequences)


def _sequence(datum: Any) -> TokenSequence:
    shifted = {name: datum.loss_fn_inputs[name].to_torch().tolist() for name in ("target_tokens", "mask", "logprobs")}
    tokens = [datum.model_input.to_ints()[0], *map(int, shifted["target_tokens"])]
    mask = [int(item) for item in shifted["mask"]]
    begin = mask.index(1)
    first = begin + 1  # targets are one token behind
    return of_mask(tokens[:first], tokens[first:], mask[begin:], shifted["logprobs"][begin:])
