"""Choose the one number that trains a policy among those that a verifier wrote."""

from collections.abc import Mapping

from harbor_gym.errors import VerifierError


def scalar_reward(rewards: Mapping[str, float], key: str | None = None) -> float:
    """Return the reward called ``key``; without one, the reward called ``reward`` or the only one there is.

    Never chosen by position: which key comes first is an accident.

    Args:
        rewards: What the verifier wrote.
        key: The name of the scalar.

    Raises:
        VerifierError: No reward has that name, or there are several and none is called ``reward``.
    """
    name = key or ("reward" if "reward" in rewards or len(rewards) != 1 else next(iter(rewards)))
    if name not in rewards:
        known = ", ".join(sorted(rewards)) or "none"
        raise VerifierError(
            f"the verifier wrote no reward named {name!r} (it wrote: {known}); "
            "name the one to use (TerminalEnvConfig.reward_key)"
        )
    return float(rewards[name])
