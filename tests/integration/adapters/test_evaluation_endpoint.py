"""Evaluations of a model behind a chat endpoint: our own loop, and agents, over real HTTP."""

import asyncio
import json
import os
import signal as signals
import sys
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from harbor.models.trial.config import AgentConfig

from harbor_gym import AsyncTerminalGymEnv, EndReason, Snapshot, TerminalEnvConfig
from harbor_gym.adapters.harbor.evaluation import AgentPlayer
from harbor_gym.evaluation import ChatPlayer, describe_episode, evaluate
from harbor_gym.samplers import ChatEndpoint, EngineSettingsError
from harbor_gym.sandboxes import reaper
from tests.helpers.cluster.nodes import ray_of_its_own
from tests.helpers.engine_double import EngineDouble, in_turn, serve
from tests.helpers.paths import ROOT
from tests.helpers.patience import eventually
from tests.helpers.recipe_runs import expect_refused, run_recipe
from tests.helpers.sandboxes.fake_episodes import COMPLETE, FAKE, by_agent, fake_config, message
from tests.helpers.tasks import DONE, UNDONE, write_steps, write_task

pytestmark = pytest.mark.usefixtures("nothing_left")

KEY = "sk-very-secret-key"
AGENT = AgentConfig(import_path="tests.helpers.gateway.format_agent:FormatAgent", kwargs={"base_url": "{gateway_url}"})


def serving(*answers: str) -> AbstractAsyncContextManager[EngineDouble]:
    return serve(EngineDouble(write=in_turn(*(answers or (message(DONE), COMPLETE))), key=KEY))


def endpoint(model: EngineDouble) -> ChatEndpoint:
    return ChatEndpoint(model.url, "m", max_tokens=100, api_key_env="OWN_KEY", max_attempts=1)


def tokens_of(model: EngineDouble) -> tuple[int, int]:
    """Return the length of the last prompt, and how many tokens were sampled."""
    return len(model.exchanges[-1].prompt), sum(len(exchange.sampled) for exchange in model.exchanges)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWN_KEY", KEY)


def fake_task(folder: Path, **settings: Any) -> TerminalEnvConfig:
    return fake_config(write_task(folder), solved_when={"/srv/answer": "done"}, **settings)


async def test_our_own_loop(tmp_path: Path) -> None:
    async with serving() as model, endpoint(model) as chat:
        player = ChatPlayer(chat, transcripts_dir=tmp_path / "transcripts")
        (result,) = await evaluate([fake_task(tmp_path / "task")], player, episodes=1)
    assert (result.reward, result.end_reason, result.turns) == (1.0, EndReason.COMPLETED, 2)
    assert (result.prompt_tokens, result.sampled_tokens) == tokens_of(model)
    assert list((tmp_path / "transcripts").rglob("episode_001.json"))


async def test_an_episode_that_goes_on_has_the_whole_chat(tmp_path: Path) -> None:
    config, start = fake_task(tmp_path / "task"), tmp_path / "snapshot.json"
    said = [message("echo one > a\n"), message("cat /srv/a\n")]
    async with AsyncTerminalGymEnv(config) as env:
        first = [(await env.reset())[0], *[(await env.step(text)).observation for text in said]]
        (await env.snapshot()).write(start)
    later = TerminalEnvConfig.model_validate({"start_from": start})
    async with serving(*said, message(DONE), COMPLETE) as model, endpoint(model) as chat:
        (result,) = await evaluate([later], ChatPlayer(chat, transcripts_dir=tmp_path / "transcripts"), episodes=1)
    assert (result.reward, result.turns) == (1.0, 4)
    chat_so_far = model.requests[0]["messages"]
    assert [item["role"] for item in chat_so_far] == ["system", *["user", "assistant"] * 2, "user"]
    assert [item["content"] for item in chat_so_far[2::2]] == said
    shown = [item["content"] for item in chat_so_far[1::2]]
    assert all(content.endswith(screen) for content, screen in zip(shown, first, strict=True))
    (written,) = (tmp_path / "transcripts").rglob("*.json")
    assert [turn.action for turn in Snapshot.read(written).turns] == [*said, message(DONE)]


async def test_each_episode_draws_where_it_begins(tmp_path: Path) -> None:
    config, out, said = (
        fake_task(tmp_path / "task"),
        tmp_path / "out",
        [message("echo one > a\n"), message(DONE), COMPLETE],
    )
    async with serving(*said) as model, endpoint(model) as chat:
        await evaluate([config], ChatPlayer(chat, transcripts_dir=out / "transcripts"), episodes=1)
    args = (str(config.task_dir), "--start-from", str(out), "--model", "m", "--api-key-env", "OWN_KEY")
    async with serving(*said) as model:
        code, shown = await eval_here(*args, "--start-turn", "mid", "-k", "2", "--base-url", model.url)
        assert code == 0, shown
        firsts = [request["messages"] for request in model.requests if len(request["messages"]) == 4]
    assert [chat[2]["content"] for chat in firsts] == said[:1] * 2
    assert "episode 2 of task: completed, reward 1, 3 turns" in shown
    for choice, expected in ((("backward",), "backward follows a training run"), (("9",), "9 is beyond the end")):
        code, shown = await eval_here(*args, "--start-turn", *choice, "--base-url", "http://127.0.0.1:9")
        assert (code, shown.count("\n")) == (2, 1)
        assert expected in shown


WORK = [message("cd /tmp; x=41\n"), message("echo $((x+1)) > made; cat made\n"), message(DONE), COMPLETE]


@pytest.mark.local
@pytest.mark.parametrize("signal", ["SIGINT", "SIGKILL"])
async def test_an_interrupted_evaluation_goes_on_in_the_middle_of_its_episodes(tmp_path: Path, signal: str) -> None:
    out = tmp_path / "out"
    args = [str(write_task(tmp_path / "task")), "--env", "local", "--episodes", "1", "--attempts", "1"]
    args += ["--no-confirm-task-complete", "--output", str(out), "--model", "m", "--api-key-env", "OWN_KEY"]
    async with serving(*WORK) as model:
        model.modes += [200, 200, "hang"]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "harbor_gym", "eval", *args, "--base-url", model.url), cwd=ROOT
        )
        await eventually(lambda: len(model.requests) == 3)
        process.send_signal(getattr(signals, signal))
        await process.wait()
        model.released.set()
        before = model.requests[2]["messages"]
        assert list(out.rglob("*.snapshot"))
        code, shown = await run_eval(*args, "--base-url", model.url)
    # The evaluation may have ended before it was through with what the killed one had left.
    assert await asyncio.to_thread(lambda: reaper.remove(reaper.find_leftovers())) == []
    assert code == 0, shown
    assert "episode 1 of task: completed, reward 1, 4 turns" in shown
    assert model.requests[3]["messages"] == before, "the chat goes on where it was"
    assert [len(request["messages"]) for request in model.requests[3:]] == [6, 8]
    assert "42" in before[-1]["content"]
    assert not list(out.rglob("*.snapshot"))
    (row,) = [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()][1:]
    assert row["sampled_tokens"] == sum(
        len(exchange.sampled) for exchange in model.exchanges[:2] + model.exchanges[-2:]
    )


@pytest.mark.local
@pytest.mark.parametrize("why", ["its screens differ", "its task has changed", "its file is broken"])
async def test_an_episode_that_cannot_go_on_begins_anew(
    tmp_path: Path, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    task, kept = write_task(tmp_path / "task"), tmp_path / "transcripts/test/batch_0000/task/episode_001.snapshot"
    config = TerminalEnvConfig(task_dir=task, sandbox="local", confirm_task_complete=False)
    async with serving(message("date +%N\n"), message(DONE), COMPLETE) as model, endpoint(model) as chat:
        player = ChatPlayer(chat, transcripts_dir=tmp_path / "transcripts")
        model.modes += [200, "hang"]
        playing = asyncio.ensure_future(evaluate([config], player, episodes=1))
        await eventually(lambda: len(model.requests) == 2)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        model.released.set()
        assert Snapshot.read(kept).turn == 1
        if why == "its task has changed":
            (task / "instruction.md").write_text("Write the word done into /srv/answer. Now.")
        if why == "its file is broken":
            kept.write_text("{")
        (result,) = await evaluate([config], player, episodes=1)
    assert (result.reward, result.turns, result.failed_attempts) == (1.0, 3, 0)
    assert len(model.requests) == 2 + 3
    assert "episode_001 begins anew" in caplog.text
    assert not kept.exists()


@pytest.mark.parametrize("agent", [AGENT])
async def test_an_agent_never_sees_the_key(agent: AgentConfig, tmp_path: Path) -> None:
    async with serving() as model, endpoint(model) as chat:
        player = AgentPlayer(chat, transcripts_dir=tmp_path / "transcripts")
        (result,) = await evaluate([by_agent(fake_task(tmp_path / "task"), agent)], player, episodes=1)
    assert (result.reward, result.end_reason, result.turns) == (1.0, EndReason.COMPLETED, 2)
    assert (result.prompt_tokens, result.sampled_tokens) == tokens_of(model)
    assert [item["role"] for item in model.requests[1]["messages"]] == ["system", "user", "assistant", "user"]
    assert model.requests[1]["messages"][:2] == model.requests[0]["messages"]
    kept = json.loads((tmp_path / "transcripts/test/batch_0000/task/episode_001.json").read_text())
    assert [turn["action"] for turn in kept["turns"]] == [message(DONE), COMPLETE]
    assert (kept["reward"], kept["end_reason"]) == (1.0, "completed")


async def test_an_agents_calls_that_the_endpoint_leaves_in_its_text_are_counted(tmp_path: Path) -> None:
    agent = AGENT.model_copy(update={"import_path": "tests.helpers.gateway.format_agent:ToolAgent"})
    task = by_agent(fake_task(tmp_path / "task"), agent)
    unread = "<function=bash><parameter=command>true</parameter></function>"
    async with serving(unread) as model, endpoint(model) as chat:
        (result,) = await evaluate([task], AgentPlayer(chat), episodes=1)
    assert (result.reward, result.unread_calls) == (0.0, 1)
    assert "reward 0, 1 turns (1 with a tool call that can't be read), " in describe_episode(result)


@pytest.mark.local
@pytest.mark.slow
async def test_terminus_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LITELLM_LOCAL_MODEL_COST_MAP", raising=False)
    played = ["--env", "local", "--max-turns", "9", "--agent", "terminus-2", "--episodes", "1", "--attempts", "1"]
    # Terminus-2 waits out each duration. The rest of the time is litellm's: its import and its first call.
    async with serving(message(DONE, duration=0.1), COMPLETE, COMPLETE) as model:
        where = ["--model", "m", "--base-url", model.url, "--api-key-env", "OWN_KEY"]
        code, shown = await run_eval(str(write_task(tmp_path / "task")), *played, *where)
    assert code == 0, shown
    assert "[1/1, solved 1/1] episode 1 of task: completed, reward 1, 3 turns" in shown
    assert "LiteLLM" not in shown, "litellm looked for prices, on the internet or in vain"


async def test_a_wrong_key_ends_the_evaluation_and_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWN_KEY", "sk-wrong-but-secret")
    for is_agent in (False, True):
        async with serving() as model, endpoint(model) as chat:
            player = AgentPlayer(chat, max_retries=0) if is_agent else ChatPlayer(chat, max_retries=0)
            own = fake_task(tmp_path / "task")
            config = by_agent(own, AGENT) if is_agent else own
            with pytest.raises(EngineSettingsError, match=r"--api-key-env.*status 401") as refused:
                await evaluate([config], player, episodes=3, n_concurrent=1)
        assert "sk-wrong-but-secret" not in str(refused.value)


async def run_eval(*args: str, environment: Mapping[str, str] | None = None) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "harbor_gym", "eval", *args),
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


async def eval_here(*args: str) -> tuple[int, str]:
    """Run the command in a thread of this process."""
    done = await asyncio.to_thread(run_recipe, "eval", *args)
    return done.exit_code, done.output


async def test_the_command_takes_the_tasks_of_a_registry(tmp_path: Path) -> None:
    config = fake_task(tmp_path / "task")
    listed = [{"name": "task", "path": str(config.task_dir)}]
    registry = tmp_path / "registry.json"
    registry.write_text(json.dumps([{"name": "org/few", "version": "1.0", "description": "d", "tasks": listed}]))
    sandbox = ["--env", config.sandbox, "--sandbox-option", f"solved_when={json.dumps({'/srv/answer': 'done'})}"]
    async with serving() as model:
        where = ["--model", "m", "--base-url", model.url, "--api-key-env", "OWN_KEY", "--attempts", "1"]
        given = [*sandbox, *where, "--episodes", "1", "--registry-path", str(registry)]
        code, shown = await eval_here("org/few@1.0", *given)
        assert code == 0, shown
        assert "[1/1, solved 1/1] episode 1 of task: completed" in shown
        code, shown = await eval_here("org/few@2.0", *given)
        assert (code, shown.count("\n")) == (2, 1), shown
        assert "org/few@2.0" in shown


async def test_the_command_resumes_and_shows_how_it_stands(tmp_path: Path) -> None:
    config = fake_task(tmp_path / "task")
    sandbox = ["--env", config.sandbox, "--sandbox-option", f"solved_when={json.dumps({'/srv/answer': 'done'})}"]
    output = ["--output", str(tmp_path / "out")]
    async with serving() as model:
        where = ["--model", "m", "--base-url", model.url, "--api-key-env", "OWN_KEY"]
        given = [str(config.task_dir), *sandbox, *where, *output]
        code, shown = await eval_here(*given, "--episodes", "2", "--attempts", "1,2")
        assert code == 0, shown
        assert "[2/2, solved 2/2]" in shown
        assert "pass@2" in shown
        asked = len(model.requests)
        code, shown = await run_eval(*given, "--episodes", "3")
        assert code == 0, shown
        assert "2 episodes were played before" in shown
        assert "[3/3, solved 3/3]" in shown
        assert len(model.requests) == asked * 3 // 2
        code, shown = await eval_here(*given, "--episodes", "3", "--temperature", "0.5")
        assert code == 2
        assert "other settings (temperature differ)" in shown
        result = json.loads((tmp_path / "out/eval.json").read_text())
        (config.task_dir / "tests/test.sh").write_text("#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")
        code, shown = await eval_here(*given, "--episodes", "3")
        assert code == 2
        assert "other versions of these tasks: task: give another output folder, or --fresh" in shown
        assert json.loads((tmp_path / "out/eval.json").read_text()) == result, "nothing was averaged"
        code, shown = await eval_here(*given, "--episodes", "1", "--fresh")
        assert code == 0, shown
        assert "[1/1, solved" in shown
        anew = json.loads((tmp_path / "out/eval.json").read_text())
    assert result["settings"]["versions"].keys() == {"harbor-gym", "harbor", "python"}
    assert result["provenance"]["episodes"] == 3
    assert result["provenance"]["sampled_tokens"] > 0
    assert result["provenance"]["started"] <= result["provenance"]["ended"] <= anew["provenance"]["started"]
    assert result["provenance"]["tasks"]["task"]["digest"] != anew["provenance"]["tasks"]["task"]["digest"]
    kept = "".join(path.read_text() for path in (tmp_path / "out").rglob("*.json*"))
    assert KEY not in kept + shown
    assert result["overall"]["solved"] == 3


@pytest.mark.parametrize("flag", ["--step-rewards", "--no-step-rewards"])
async def test_a_half_solved_task_is_not_solved(tmp_path: Path, flag: str) -> None:
    sandbox = ["--env", FAKE, "--sandbox-option", f"solved_when={json.dumps({'/srv/answer': 'done'})}"]
    handed_in = (COMPLETE, COMPLETE)
    async with serving(message(DONE), *handed_in, message(UNDONE), *handed_in) as model:
        where = ["--model", "m", "--base-url", model.url, "--api-key-env", "OWN_KEY", "--output", str(tmp_path / "out")]
        code, shown = await eval_here(
            str(write_steps(tmp_path / "task")), *sandbox, *where, flag, "--episodes", "1", "--attempts", "1"
        )
    assert code == 0, shown
    assert "[1/1, solved 0/1] episode 1 of task: completed, reward 0.5, 6 turns" in shown
    report = json.loads((tmp_path / "out/eval.json").read_text())["overall"]
    assert (report["solved"], report["reward"]["value"], report["pass_at"]["1"]["value"]) == (0, 0.5, 0.0)
    (transcript,) = (tmp_path / "out").rglob("episode_001.json")
    kept = json.loads(transcript.read_text())
    assert (kept["reward"], kept["rewards"]) == (0.5, {"reward": 0.5})
    assert kept["step_rewards"] == [{"reward": 1.0}, {"reward": 0.0}]


@pytest.mark.parametrize(
    ("kind", "agent"), [("process", None), ("ray", AGENT.import_path)], ids=["process, our own loop", "ray, an agent"]
)
async def test_episodes_in_other_processes(kind: str, agent: str | None, tmp_path: Path) -> None:
    if kind == "ray":
        pytest.importorskip("ray", reason='pip install "harbor-gym[ray]"')
    (place := tmp_path / "place").mkdir()
    sandbox = ["--env", "tests.helpers.sandboxes.meeting:Meeting", "--sandbox-option", f"place={place}"]
    played = ["--rollout-executor", kind, "--n-concurrent", "2", "--episodes", "4", "--output", str(tmp_path / "out")]
    if agent is not None:
        played += ["--agent", agent, "--agent-option", "base_url={gateway_url}"]
    async with serving() as model:
        where = ["--model", "m", "--base-url", model.url, "--api-key-env", "OWN_KEY"]
        args = [str(write_task(tmp_path / "task")), *sandbox, "--sandbox-option", "processes=2", *where, *played]
        with ray_of_its_own() as environment:
            code, shown = await run_eval(*args, environment=environment)
    assert code == 0, shown
    assert "[4/4, solved 4/4]" in shown
    assert len(list(place.iterdir())) == 2, "two workers shared the episodes"
    written = sorted(path.name for path in (tmp_path / "out").rglob("episode_*.json"))
    assert written == [f"episode_00{number}.json" for number in range(1, 5)]


NOWHERE = ["--model", "m", "--base-url", "http://127.0.0.1:1"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--model", "m"], "--base-url"),
        (["--model", "m", "--rollout-starts-per-sec", "1"], "--rollout-executor ray"),
        (["--model-name", "x", "--agent", "terminus-2"], "--model and --base-url"),
        (["--model", "m", "--base-url", "http://127.0.0.1:1", "--api-key-env", "NOT_SET"], "NOT_SET is not set"),
        ([*NOWHERE, "--agent", "terminus2"], "did you mean terminus-2"),
        ([*NOWHERE, "--agent", "terminus-2", "--setup-command", "true"], "--setup-command: for our own loop"),
    ],
)
def test_misuse(args: list[str], words: str, tmp_path: Path) -> None:
    sandbox = ("--env", "harbor_gym.testing:FakeEnvironment")
    expect_refused(run_recipe("eval", str(write_task(tmp_path / "task")), *sandbox, *args), words)
