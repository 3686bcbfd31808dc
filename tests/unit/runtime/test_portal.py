"""The portal: blocking calls from anywhere, and everything closed at the end, however the end comes."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from harbor_gym._runtime.portal import get_portal
from harbor_gym.errors import UsageError
from tests.helpers.patience import PATIENCE_SEC


async def _where() -> tuple[int, int]:
    return threading.get_ident(), id(asyncio.get_running_loop())


async def _fail() -> None:
    raise KeyError("broken")


def test_all_callers_share_one_loop() -> None:
    places = [get_portal().call(_where)]
    thread = threading.Thread(target=lambda: places.append(get_portal().call(_where)))
    thread.start()
    thread.join()

    async def caller() -> None:
        places.append(get_portal().call(_where))

    asyncio.run(caller())
    assert len(set(places)) == 1
    assert places[0][0] != threading.get_ident()


def test_an_error_comes_out_as_it_is() -> None:
    with pytest.raises(KeyError, match="broken"):
        get_portal().call(_fail)


def test_a_call_from_the_loop_itself_is_refused_and_does_not_hang() -> None:
    async def nested() -> None:
        get_portal().call(_where)

    with pytest.raises(UsageError, match="await the async env"):
        get_portal().call(nested)


def test_an_interrupt_cancels_the_work_and_waits_for_its_end() -> None:
    events: list[str] = []
    main = threading.main_thread().ident
    assert main is not None

    async def work() -> None:
        asyncio.get_running_loop().call_later(0.05, signal.pthread_kill, main, signal.SIGINT)
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            events.append("cleaned up")

    with pytest.raises(KeyboardInterrupt):
        get_portal().call(work)
    assert events == ["cleaned up"]


class _Owner:
    pass


def test_garbage_is_closed_and_what_was_closed_by_hand_is_not_closed_again() -> None:
    closed: list[str] = []
    is_closed = threading.Event()

    async def close(name: str) -> None:
        closed.append(name)
        is_closed.set()

    forgotten, careful = _Owner(), _Owner()
    get_portal().own(forgotten, lambda: close("forgotten"))
    disown = get_portal().own(careful, lambda: close("careful"))
    disown()
    del forgotten, careful
    gc.collect()
    assert is_closed.wait(PATIENCE_SEC)
    get_portal().call(_where)
    assert closed == ["forgotten"]


_EXIT = """
    import asyncio, os, sys
    from harbor_gym._runtime.portal import get_portal

    class Owner: ...

    async def nothing(): ...

    async def close():
        await asyncio.to_thread(lambda: None)
        process = await asyncio.create_subprocess_exec("true")
        print("closed", await process.wait(), flush=True)

    owner = Owner()
    portal = get_portal()
    portal.own(owner, close)
    portal.call(nothing)
"""


@pytest.mark.parametrize(
    ("last_lines", "code"),
    [("", 0), ("sys.exit(3)", 3), ("raise RuntimeError('unhandled')", 1)],
    ids=["the end", "sys.exit", "an exception"],
)
def test_the_interpreters_exit_closes_what_is_open(last_lines: str, code: int) -> None:
    script = f"{textwrap.dedent(_EXIT)}\n{last_lines}\n"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=PATIENCE_SEC
    )
    assert (done.returncode, done.stdout) == (code, "closed 0\n"), done.stderr
    assert "Exception ignored" not in done.stderr


_FORK = """
    import os, warnings
    from harbor_gym.errors import UsageError
    from harbor_gym._runtime.portal import get_portal

    class Owner: ...

    async def close():
        print("closed", os.getpid() == parent, flush=True)

    async def answer():
        return 42

    parent, owner, portal = os.getpid(), Owner(), get_portal()
    portal.own(owner, close)
    warnings.simplefilter("ignore")  # that a process with threads forks is what is being tested
    child = os.fork()
    if child == 0:
        try:
            portal.call(answer)
        except UsageError as exc:
            print("refused", str(parent) in str(exc), flush=True)
        print("own", get_portal().call(answer), flush=True)
        raise SystemExit(0)
    print("child", os.waitpid(child, 0)[1], flush=True)
"""


def test_a_forked_child_is_refused_its_parents_portal_and_has_its_own() -> None:
    script = textwrap.dedent(_FORK)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=PATIENCE_SEC
    )
    assert done.stdout.splitlines() == ["refused True", "own 42", "child 0", "closed True"], done.stderr


def test_many_threads_calling_at_once_all_get_their_own_answer() -> None:
    async def echo(number: int) -> int:
        await asyncio.sleep(0.01)
        return number

    answers: list[tuple[int, int]] = []

    def ask(number: int) -> None:
        answers.append((number, get_portal().call(echo, number)))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [(number, number) for number in range(32)]


def test_the_portal_costs_no_thread_until_it_is_used() -> None:
    code = "import threading, harbor_gym._runtime.portal; print(threading.active_count())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


# -- without blocking ----------------------------------------------------------------------------------------------


async def _wait_for_a_cancellation(events: list[str], began: threading.Event) -> None:
    began.set()
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.05)
        events.append("cleaned up")


def test_a_submitted_call_runs_while_its_caller_goes_on() -> None:
    go_on = threading.Event()

    async def work(answer: int) -> int:
        await asyncio.to_thread(go_on.wait)
        return answer

    futures = [get_portal().submit(work, number) for number in range(3)]
    assert not any(future.done() for future in futures)
    go_on.set()
    assert [future.result(PATIENCE_SEC) for future in futures] == [0, 1, 2]
    with pytest.raises(KeyError, match="broken"):
        get_portal().submit(_fail).result(PATIENCE_SEC)


def test_cancelling_a_submitted_call_cancels_its_work() -> None:
    events, began = list[str](), threading.Event()
    future = get_portal().submit(_wait_for_a_cancellation, events, began)
    assert began.wait(PATIENCE_SEC)
    assert future.cancel()
    deadline = time.monotonic() + PATIENCE_SEC
    while not events and time.monotonic() < deadline:
        time.sleep(0.01)
    assert events == ["cleaned up"]


@pytest.mark.parametrize("has_task", [False, True])
def test_a_call_that_was_cancelled_before_it_began_never_begins(has_task: bool) -> None:
    ran, events = list[str](), [threading.Event() for _ in range(4)]
    holding, submitted, blocking, cancelled = events

    async def work() -> None:
        ran.append("ran")

    async def hold() -> None:
        holding.set()
        submitted.wait(PATIENCE_SEC)

    async def block() -> None:
        blocking.set()
        cancelled.wait(PATIENCE_SEC)

    get_portal().submit(hold)
    assert holding.wait(PATIENCE_SEC)
    get_portal().submit(block)
    future = get_portal().submit(work)
    if has_task:  # The loop makes the tasks of both before it runs the first one.
        submitted.set()
        assert blocking.wait(PATIENCE_SEC)
    assert future.cancel()
    for event in events:
        event.set()
    get_portal().call(_where)
    assert ran == []


async def test_a_loop_of_the_callers_own_awaits_the_portals() -> None:
    here = id(asyncio.get_running_loop())
    async with asyncio.TaskGroup() as group:
        places = [group.create_task(get_portal().run(_where)) for _ in range(3)]
    assert here not in {place.result()[1] for place in places}
    with pytest.raises(KeyError, match="broken"):
        await get_portal().run(_fail)

    async def nested() -> tuple[int, int]:
        return await get_portal().run(_where)

    assert await get_portal().run(nested) == places[0].result(), "on the portal's own loop it is a plain await"


async def test_a_cancelled_await_returns_when_the_work_has_cleaned_up() -> None:
    events, began = list[str](), threading.Event()
    waiting = asyncio.create_task(get_portal().run(_wait_for_a_cancellation, events, began))
    await asyncio.to_thread(began.wait)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert events == ["cleaned up"]


_UNCLOSED = """
    import sys, tempfile, threading
    from pathlib import Path
    from harbor_gym import AsyncTerminalGymEnv
    from harbor_gym._runtime.portal import get_portal
    from harbor_gym.pool import shared_pool
    from tests.helpers.sandboxes.fake_episodes import fake_config

    config, stepping = fake_config(Path(sys.argv[1]) / "task"), threading.Event()

    async def lend():
        return shared_pool(config, size=2)

    async def stay_in_a_step(env):
        await env.reset()
        stepping.set()
        await env.step([("sleep 60\\n", 60.0)])

    portal = get_portal()
    idle, busy, pooled = AsyncTerminalGymEnv(config), AsyncTerminalGymEnv(config), None
    portal.call(idle.reset)
    running = portal.submit(stay_in_a_step, busy)
    pool = portal.call(lend)
    pooled = AsyncTerminalGymEnv(config, pool=pool)
    portal.call(pooled.reset)
    assert stepping.wait(60)
    folders = [p.name for p in Path(tempfile.gettempdir()).glob("harbor-gym-trial-*")]
    print("folders", len(folders) >= 3, flush=True)
"""


def test_the_exit_closes_every_episode_and_pool_and_waits_for_them(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_UNCLOSED), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SEC,
        check=False,
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    assert done.returncode == 0, done.stderr
    assert "folders True" in done.stdout
    assert list(scratch.glob("harbor-gym-*")) == []
    assert "Traceback" not in done.stderr
    assert "ignored" not in done.stderr
