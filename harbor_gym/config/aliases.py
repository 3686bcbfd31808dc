"""Earlier names of settings, each with its present place.

The record of an episode is ``env`` in every door (``terminal_env`` in verifiers, whose harness has an ``env`` of its
own). What a door took beside it, or under another name, is moved there.
"""

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, cast

from pydantic import BaseModel, model_validator

from harbor_gym.errors import UsageError

type Names = Mapping[str, str]
"""Earlier name → present place: a name, or two of them with a dot between. A record's name alone takes its fields."""

_AUDIT = {name: f"env.{name}" for name in ("require_audit", "refused_findings")}
_AGENT = {"agent": "env.agent", "agent_options": "env.agent_options", "train_segments": "env.train_segments"}

TRAIN: Names = MappingProxyType({**_AGENT, **_AUDIT, "max_rollout_retries": "max_retries"})
"""``TrainConfig``."""

EVALUATION: Names = MappingProxyType({**_AGENT, **_AUDIT, "concurrency": "n_concurrent", "retries": "max_retries"})
"""``EvalConfig``."""

PLAYER: Names = MappingProxyType({"concurrency": "n_concurrent", "retries": "max_retries"})
"""The players of an evaluation, and ``evaluate``."""

GROUP: Names = MappingProxyType({"agent": "env.agent", "train_segments": "env.train_segments"})
"""``GroupTemplate``."""

_SHARED = (
    *("sandbox", "sandbox_options", "time_limit_sec", "reward_key", "reward_function", "zero_reward_on_limit"),
    *("harbor_server", "trials_dir"),
)

TRAINER: Names = MappingProxyType(
    {
        **{name: f"env.{name}" for name in (*_SHARED, "agent", "train_segments")},
        "agent_kwargs": "env.agent_options",
    }
)
"""SkyRL's section ``harbor``, and the entries of verl's loops."""

NEMO_GYM: Names = MappingProxyType(
    {
        "terminal_env": "env",
        **{name: f"env.{name}" for name in ("sandbox", "sandbox_options", "max_turns", "trials_dir")},
        "harbor_agent": "env.agent",
        "harbor_agent_kwargs": "env.agent_options",
        "harbor_agent_timeout": "env.time_limit_sec",
        "concurrency": "n_concurrent",
    }
)
"""NeMo Gym's server; its datasets and rows have the first ones, too."""

VERIFIERS: Names = MappingProxyType(
    {name: f"terminal_env.{name}" for name in ("sandbox", "sandbox_options", "agent", "agent_in_sandbox")}
)
"""The harness of verifiers and Prime-RL."""

ROLLOUTS: Names = MappingProxyType(
    {
        "env_settings": "config",
        **{name: f"config.{name}" for name in (*_SHARED, "agent", "agent_in_sandbox", "train_segments")},
        **{name: f"config.{name}" for name in ("verify_paths", "keep_agent_processes", "ambiguous_failures")},
    }
)
"""``RolloutInterface``."""


def moved(values: Mapping[str, Any], names: Names) -> dict[str, Any]:
    """Return a door's settings with each earlier name's value in its present place.

    Raises:
        ValueError: A setting is given in both places, with different values.
    """
    found = dict(values)
    for earlier, present in names.items():
        if earlier not in found:
            continue
        value = found.pop(earlier)
        place, _, name = present.partition(".")
        if name or isinstance(value, Mapping):
            given = {name: value} if name else dict(cast("Mapping[str, Any]", value))
            found[place] = _joined(fields_of(found.get(place)), given, earlier, place)
        else:
            found = _joined(found, {present: value}, earlier, "")
    return found


def reading(names: Names) -> Any:
    """Return a validator for the body of a pydantic model, which then takes earlier names of its fields as well."""

    def read(_cls: type[BaseModel], values: Any) -> Any:
        return moved(values, names) if isinstance(values, dict) else values

    validator: Any = model_validator(mode="before")  # pydantic's types know it as a decorator alone
    return validator(classmethod(read))


def accepting[F: Callable[..., Any]](names: Names) -> Callable[[F], F]:
    """Make a function, or a dataclass's constructor, take earlier names of its keyword arguments as well."""

    def decorate(function: F) -> F:
        call: Any = function.__init__ if isinstance(function, type) else function

        @functools.wraps(call)
        def call_moved(*args: Any, **values: Any) -> Any:
            try:
                values = moved(values, names)
            except ValueError as exc:
                raise UsageError(str(exc)) from exc
            return call(*args, **values)

        if isinstance(function, type):
            cast(Any, function).__init__ = call_moved
        return cast(F, function if isinstance(function, type) else call_moved)

    return decorate


def fields_of(record: Any) -> dict[str, Any]:
    """Return the fields that a record sets, given as itself or as a mapping."""
    if isinstance(record, BaseModel):
        return {name: getattr(record, name) for name in record.model_fields_set}
    return dict(record or {})


def _joined(present: Mapping[str, Any], given: Mapping[str, Any], earlier: str, place: str) -> dict[str, Any]:
    new = {name: value for name, value in given.items() if value is not None or name not in present}
    for name, value in new.items():
        if name in present and present[name] != value:
            where = f"{place}.{name}" if place else name
            raise ValueError(f"{earlier} and {where} are one setting, with two values: give {where}")
    return {**present, **new}
