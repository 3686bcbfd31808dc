"""A run as a data set: chats or exact tokens, a row an episode."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import AsyncTerminalGymEnv, Rollout, Sample, TokenTerminalEnv, UsageError, flatten, run_episode
from harbor_gym.report import export, messages
from harbor_gym.transcripts import write_transcript
from harbor_gym.types import EpisodeInfo, Transcript, Turn
from tests.helpers.chats.character_codec import CharacterCodec
from tests.helpers.recipe_runs import run_here
from tests.helpers.sandboxes.fake_episodes import COMPLETE, fake_config, message

INFO: EpisodeInfo = {"turn": 1, "metrics": {}}


async def play(folder: Path, *answers: str, logprob: float | None = -0.5) -> Rollout:
    given = iter(answers)

    async def sample(_prompt: Sequence[int]) -> Sample:
        tokens = [*map(ord, next(given))]
        return Sample(tokens, None if logprob is None else [logprob] * len(tokens), version=3)

    env = TokenTerminalEnv(AsyncTerminalGymEnv(fake_config(folder)), CharacterCodec(), max_tokens=1000)
    return await run_episode(env, sample)


def keep(run: Path, transcript: Transcript, *, group: int = 1, episode: int = 1, **more: Any) -> None:
    name = f"transcripts/train/batch_0002/group_{group}/episode_{episode:03d}.json"
    write_transcript(run / name, transcript, labels={"task": "tiny"}, **more)


def chat_of(answer: str, reward: float) -> Transcript:
    return Transcript([Turn("see", answer, INFO, reward)], system_prompt="Act.")


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


async def test_every_token_is_the_episodes(tmp_path: Path) -> None:
    run, played = tmp_path / "run", await play(tmp_path / "task", message("ls\n"), message("pwd\n"), COMPLETE)
    keep(run, played.transcript)
    export([run], tmp_path / "out.jsonl", form="tokens")
    (row,) = rows_of(tmp_path / "out.jsonl")
    sequence = flatten(played)
    assert row["input_ids"] == sequence.token_ids
    assert row["assistant_masks"] == sequence.token_mask
    assert row["roles"] == [role.value for role in sequence.token_roles]
    assert [value is not None for value in row["logprobs"]] == [*map(bool, row["assistant_masks"])]
    assert {value for value in row["logprobs"] if value is not None} == {-0.5}
    assert (row["version"], row["reward"], row["advantage"], row["group"]) == (3, 1.0, None, "group_1")


async def test_unknown_log_probabilities_are_null(tmp_path: Path) -> None:
    keep(tmp_path / "run", (await play(tmp_path / "task", COMPLETE, logprob=None)).transcript)
    export([tmp_path / "run"], tmp_path / "out.jsonl", form="tokens")
    assert [set(row["logprobs"]) for row in rows_of(tmp_path / "out.jsonl")] == [{None}]


def test_a_chat_is_what_messages_returns(tmp_path: Path) -> None:
    keep(tmp_path, chat_of("ls", 1.0))
    export([tmp_path], tmp_path / "out.jsonl")
    (row,), (chat,) = rows_of(tmp_path / "out.jsonl"), messages(tmp_path)
    assert row["messages"] == chat["messages"]
    assert "settings" not in row
    assert (row["run"], row["task"], row["batch"]) == (tmp_path.name, "tiny", 2)


def test_conditions_rewards_and_groups_choose_the_episodes(tmp_path: Path) -> None:
    for group, rewards in ((1, (0.0, 0.5, 0.5)), (2, (1.0, 0.0))):
        for number, reward in enumerate(rewards, start=1):
            keep(tmp_path, chat_of(f"{group}.{number}", reward), group=group, episode=number)
    keep(tmp_path, chat_of("lost", 0.0), group=3, error="it went away")

    def chosen(**settings: Any) -> list[str]:
        export([tmp_path], tmp_path / "out.jsonl", **settings)
        return [row["messages"][-1]["content"] for row in rows_of(tmp_path / "out.jsonl")]

    assert chosen() == ["1.1", "1.2", "1.3", "2.1", "2.2"]
    assert chosen(min_reward=0.5) == ["1.2", "1.3", "2.1"]
    assert chosen(best_of_group=True) == ["1.2", "2.1"]
    assert chosen(where=["group=group_2", "reward!=0"]) == ["2.1"]
    assert chosen(where=["reward=0.5,1"], best_of_group=True) == ["1.2", "2.1"]


async def test_an_advantage_is_the_reward_less_the_groups_mean_whatever_is_chosen(tmp_path: Path) -> None:
    run = tmp_path / "run"
    keep(run, (await play(tmp_path / "task", message("ls\n"), COMPLETE)).transcript)
    keep(run, chat_of("no tokens", 0.0), episode=2)
    export([run], tmp_path / "out.jsonl", form="tokens", min_reward=1)
    assert [row["advantage"] for row in rows_of(tmp_path / "out.jsonl")] == [0.5]


def test_equal_chats_are_there_once_and_everything_left_out_is_counted(tmp_path: Path) -> None:
    keep(tmp_path, chat_of("same", 1.0))
    keep(tmp_path, chat_of("same", 1.0), episode=2)
    keep(tmp_path, chat_of("lost", 0.0), episode=3, error="it went away")
    (tmp_path / "transcripts/half.json").write_text('{"turns": [')
    secret = tmp_path / "elsewhere.json"
    secret.write_text(json.dumps({"turns": [], "reward": 1.0}))
    (tmp_path / "transcripts/link.json").symlink_to(secret)
    done = export([tmp_path], tmp_path / "out")
    left = {"are there already": 1, "have no verdict": 1, "can't be read": 2}
    assert (done.episodes, {why: count for why, count in done.left_out.items() if count}) == (1, left)
    card = (tmp_path / "out/README.md").read_text()
    assert all(f"- {count} {why}" in card for why, count in left.items())
    with pytest.raises(UsageError, match=r"no episode is left of 5: .*1 have no verdict"):
        export([tmp_path], tmp_path / "none.jsonl", min_reward=2)
    assert not (tmp_path / "none.jsonl").exists()


@pytest.mark.parametrize("form", ["messages", "tokens"])
@pytest.mark.parametrize("turn", ["no object", {}, {"observation": 1, "action": [], "prompt_tokens": "x"}])
def test_a_file_that_is_json_and_no_transcript_costs_the_others_nothing(form: Any, turn: Any, tmp_path: Path) -> None:
    good = chat_of("ls", 1.0)
    good.tokens, good.turns = [1, 2, 3], [Turn("see", "ls", INFO, 1.0, prompt_tokens=2, sampled_tokens=1)]
    keep(tmp_path, good)
    odd = {"turns": [turn], "reward": 1.0, "tokens": "1 2"}
    (tmp_path / "transcripts/odd.json").write_text(json.dumps(odd))
    done = export([tmp_path], tmp_path / "out.jsonl", form=form)
    assert done.episodes >= 1
    assert done.episodes + done.left_out.get("can't be read", 0) == 2


async def test_secrets_of_this_process_are_in_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", secret := 'hunter2"and more')
    run, played = tmp_path / "run", await play(tmp_path / "task", message(f"echo {secret}\n"), COMPLETE)
    keep(run, played.transcript)
    export([run], tmp_path / "out.jsonl")
    text = (tmp_path / "out.jsonl").read_text()
    assert "hunter2" not in text
    assert "[SOME_API_KEY]" in text
    assert str(tmp_path) not in text
    with pytest.raises(UsageError, match="1 hold a secret"):
        export([run], tmp_path / "tokens.jsonl", form="tokens")


def test_the_folder_is_a_data_set_and_a_parquet_file_has_the_same_rows(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    for number in (1, 2):
        keep(tmp_path / "run", chat_of(f"answer {number}", 1.0), episode=number)
    for name in ("out", "out.parquet"):
        done = run_here("export", tmp_path / "run", "-o", tmp_path / name)
        assert (done.returncode, done.stdout) == (0, f"{tmp_path / name}: 2 episodes\n")
    cache = str(tmp_path / "cache")
    loaded = datasets.load_dataset(str(tmp_path / "out"), split="train", cache_dir=cache)
    stored = datasets.load_dataset("parquet", data_files=str(tmp_path / "out.parquet"), split="train", cache_dir=cache)
    assert loaded["messages"][1][-1] == {"role": "assistant", "content": "answer 2"}
    assert [*loaded["messages"]] == [*stored["messages"]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "-o", "out.txt"], "name a .jsonl or .parquet file, or a folder"),
        (["run", "-o", "out", "--where", "mood=good"], "episodes have no mood"),
        (["run", "-o", "out", "--where", "reward"], "write key=value"),
        (["run", "-o", "out", "--form", "tokens"], "have no tokens"),
        (["none", "-o", "out"], "has no transcript"),
    ],
)
def test_what_can_not_be_exported_is_said_in_one_line(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keep(tmp_path / "run", chat_of("ls", 1.0))
    done = run_here("export", *words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
