"""TRL's worker once its process has failed: its end must not wait for a waiter that ended with the process."""

import multiprocessing
import os
import threading
from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("trl") is None or find_spec("openenv") is None:
    pytest.skip('pip install "harbor-gym[trl]" "harbor-gym[openenv]"', allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore:You are importing from 'trl.experimental'")


def fail(stop_event: Any, failed_event: Any) -> None:
    """Act as TRL's process: wait for its end on a thread, and fail meanwhile."""
    waiter = threading.Thread(target=stop_event.wait, daemon=True)
    waiter.start()
    while stop_event._cond._sleeping_count.get_value() == 0:
        pass
    failed_event.set()
    os._exit(1)


def test_a_worker_whose_process_failed_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    import trl.experimental.async_grpo.async_rollout_worker as trl_worker

    from harbor_gym.adapters.openenv import TerminalRolloutWorker

    monkeypatch.setattr(trl_worker, "is_vllm_available", lambda: True)
    worker: Any = TerminalRolloutWorker(harness_session_factory=dict)
    context = multiprocessing.get_context("spawn")
    worker._process = context.Process(target=fail, args=(worker._stop_event_mp, worker._failed_event))
    worker._process.start()
    assert worker._failed_event.wait(60)
    stopping = threading.Thread(target=worker.stop, daemon=True)
    stopping.start()
    stopping.join(60)
    assert not stopping.is_alive(), "it waits for a waiter that is gone"
    with pytest.raises(RuntimeError, match="child has failed"):
        worker.check_health(60)
