"""Ask what a task's verifier says in a sandbox that no policy was in: once a task and process, when an answer counts.

Most verifiers run programs that the policy wrote. Where one gives no verdict, either those programs kept it from that,
which is the policy's failure, or it never gives one, which is the task's.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from harbor.trial.trial import Trial

from harbor_gym.config.verify_paths import VerifyPaths
from harbor_gym.errors import HarborGymError

_STOP_TIMEOUT_SEC = 60.0
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class UntouchedVerdict:
    """The answer of a verifier in an untouched sandbox."""

    rewards: Mapping[str, float] | None
    """The task's rewards; None if it gives no verdict there either."""


_known: dict[str, UntouchedVerdict] = {}
_asking: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Lock]] = WeakKeyDictionary()


async def untouched_verdict(trial: Trial, verify_paths: VerifyPaths) -> UntouchedVerdict | None:
    """Return what a trial's verifier says in a fresh sandbox of the same task and configuration.

    The first call for a task takes as long as such a sandbox's start, which the task bounds, and its verifier, which
    its time limit bounds; concurrent calls wait for it, and later ones return at once.

    Args:
        trial: The trial.
        verify_paths: As ``TerminalEnvConfig.verify_paths``.

    Returns:
        The answer; None if the sandbox failed, so that the next call asks again.
    """
    key = _key(trial, verify_paths)
    locks = _asking.setdefault(asyncio.get_running_loop(), {})
    async with locks.setdefault(key, asyncio.Lock()):
        if key not in _known and (answer := await _ask(trial, verify_paths)) is not None:
            _known[key] = answer
    return _known.get(key)


async def _ask(trial: Trial, verify_paths: VerifyPaths) -> UntouchedVerdict | None:
    from harbor_gym.episode.episode import Episode

    config = trial.config
    _logger.info("asking the verifier of task %r for its verdict in a sandbox that no policy was in", trial.task.name)
    episode = Episode(
        trial.task,
        config.environment,
        trials_dir=None,
        stop_timeout_sec=_STOP_TIMEOUT_SEC,
        verifier={name: getattr(config.verifier, name) for name in config.verifier.model_fields_set - {"disable"}},
        verify_paths=verify_paths,
        ambiguous_failures="infrastructure",
    )
    try:
        answer = await episode.grade_untouched()
    except HarborGymError as exc:
        _logger.warning("the verifier of task %r can't be asked in an untouched sandbox: %s", trial.task.name, exc)
        return None
    finally:
        try:
            await episode.close()
        except HarborGymError as exc:
            _logger.warning("%s", exc)
    if answer.rewards is None:
        _logger.warning("the verifier of task %r gives no verdict in a sandbox that no policy was in", trial.task.name)
    return answer


def _key(trial: Trial, verify_paths: VerifyPaths) -> str:
    config = trial.config
    parts = (
        *(trial.task.checksum, str(trial.task.task_dir), repr(verify_paths)),
        *(config.environment.model_dump_json(), config.verifier.model_dump_json()),
    )
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
