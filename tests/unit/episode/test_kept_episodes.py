"""Files of an episode that show why it failed: its transcript, and the trial in Harbor's own format."""

import json
from pathlib import Path
from typing import Any, override

import pytest
from harbor.models.trajectories.trajectory import Trajectory

from harbor_gym import AsyncTerminalGymEnv, Sample, TokenTerminalEnv, run_episode
from harbor_gym.testing import FakeEnvironment
from harbor_gym.transcripts import add_logprobs, episode_name, write_transcript
from tests.helpers.chats.character_codec import CharacterCodec
from tests.helpers.sandboxes.fake_episodes import COMPLETE, fake_config, message

HERE = __name__
SAYS = "FAIL: /srv/answer holds nothing\n"


class Talking(FakeEnvironment):
    """A sandbox whose verifier prints and leaves files."""

    @override
    def grade(self) -> Any:
        self.files.write("/logs/verifier/test-stdout.txt", SAYS.encode())
        self.files.write("/logs/verifier/report.json", b"[]")
        return super().grade()


async def play(config: Any, *answers: str) -> tuple[TokenTerminalEnv, Any]:
    codec = CharacterCodec()
    env = TokenTerminalEnv(AsyncTerminalGymEnv(config), codec, max_tokens=5000)
    waiting = list(answers)

    async def sample(_: Any) -> Sample:
        tokens = [ord(char) for char in waiting.pop(0)]
        return Sample(tokens, [-0.123456] * len(tokens))

    return env, await run_episode(env, sample)


async def test_a_transcript_records_why_it_failed(tmp_path: Path) -> None:
    config = fake_config(tmp_path / "task", sandbox=f"{HERE}:Talking", solved_when={"/srv/answer": "done"})
    env, rollout = await play(config, message("ls\n"), "no json", COMPLETE)
    path = tmp_path / "episode.json"
    write_transcript(path, env.transcript, labels={"task": "t"})
    document = json.loads(path.read_text())
    assert (document["format"], document["end_reason"], document["reward"]) == (2, "completed", 0.0)
    assert rollout.reward == 0.0
    assert document["verifier"]["output"] == SAYS.strip()
    assert document["verifier"]["files"]["report.json"] == 2
    assert "terminus" not in document["system_prompt"]
    assert "task_complete" in document["system_prompt"]
    assert document["start"]["metrics"]["time/sandbox_start_sec"] >= 0
    assert document["start"]["sandbox"] == f"{HERE}:Talking"
    first, second, last = document["turns"]
    assert first["logprobs"] == [-0.1235] * len(message("ls\n"))
    assert first["thinking_sec"] >= 0
    assert first["metrics"]["time/step_sec"] >= 0
    assert second["parse_error"]
    assert last["verifier_output"] == SAYS.strip()


async def test_logprobs_that_come_late_are_added(tmp_path: Path) -> None:
    env, _ = await play(fake_config(tmp_path / "task"), message("ls\n"), COMPLETE)
    path = tmp_path / "episode.json"
    write_transcript(path, env.transcript, labels={})
    add_logprobs(path, [[-1.0, float("-inf")], None])
    first, second = json.loads(path.read_text())["turns"]
    assert first["logprobs"] == [-1.0, None]
    assert second["logprobs"] is not None, "what is not known late stays as it was"
    add_logprobs(tmp_path / "absent.json", [])


@pytest.mark.parametrize("steps", [0, 2])
async def test_a_kept_trial_holds_the_trajectory_that_harbor_view_shows(tmp_path: Path, steps: int) -> None:
    config = fake_config(tmp_path / "task", steps=steps, trials_dir=tmp_path / "jobs" / "mine")
    answers = [message("echo hello\n", "ls\n"), COMPLETE] * max(1, steps)
    await play(config, *answers)
    (trial,) = (tmp_path / "jobs" / "mine").iterdir()
    text = (trial / "agent" / "trajectory.json").read_text()
    trajectory = Trajectory.model_validate_json(text)
    sources = [step.source for step in trajectory.steps]
    assert sources == ["user", "agent", "agent"] * max(1, steps)
    agent = trajectory.steps[1]
    assert agent.message == answers[0]
    assert [call.arguments["keystrokes"] for call in agent.tool_calls or ()] == ["echo hello\n", "ls\n"]
    assert "hello" in str(agent.observation.results[0].content if agent.observation else "")
    assert trajectory.extra is not None
    assert trajectory.extra["end_reason"] == "completed"
    for number in range(1, steps + 1):
        own = trial / "steps" / f"step-{number}" / "agent" / "trajectory.json"
        first = Trajectory.model_validate_json(own.read_text()).steps[0]
        assert f"Do step-{number}." in str(first.message)

    from fastapi.testclient import TestClient
    from harbor.viewer.server import create_app

    client = TestClient(create_app(tmp_path / "jobs"))
    shown = client.get(f"/api/jobs/mine/trials/{trial.name}/trajectory")
    assert shown.status_code == 200
    assert shown.json() == json.loads(text)


async def test_a_link_that_a_policy_made_of_the_trajectory_is_replaced(tmp_path: Path) -> None:
    from harbor_gym.episode.trajectory import Trajectory as Recorded

    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "trial" / "agent").mkdir(parents=True)
    (tmp_path / "trial" / "agent" / "trajectory.json").symlink_to(victim)
    recorded = Recorded(sandbox="local", action_format="keystrokes")
    recorded.open_phase("Do it.", "$")
    recorded.write(tmp_path / "trial", {"turn": 0, "metrics": {}})
    assert victim.read_text() == "mine"
    assert not (tmp_path / "trial" / "agent" / "trajectory.json").is_symlink()


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        ({"task": "devops_task", "episode": 3, "group": "devops_task"}, "episode 3 of devops_task"),
        (
            {"task": "devops_task", "episode": 3, "group": "train/batch_0002/group_11"},
            "episode 3 of devops_task, batch 2, group 11",
        ),
        ({"task": "a", "episode": 1, "group": "test/batch_0004/a"}, "episode 1 of a, test after batch 4"),
        ({"task": "a", "episode": 1, "group": "test/batch_0000/group_1"}, "episode 1 of a, test"),
        ({"episode": 2}, "episode 2"),
        ({}, "an episode"),
    ],
)
def test_an_episode_is_called_by_words(labels: dict[str, Any], name: str) -> None:
    assert episode_name(labels) == name
