"""Files of ours that a kill, a disk or a hand has broken: they are found, named, and mended where they can be."""

import json
import shutil
import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harbor_gym._runtime import cache, shipped
from harbor_gym._runtime.files import one_run_at_a_time
from harbor_gym._runtime.json_files import read_lines
from harbor_gym.adapters.tinker.training.config import TrainConfig
from harbor_gym.adapters.tinker.training.folder import write_run_config
from harbor_gym.cli.main import app
from harbor_gym.errors import UsageError
from harbor_gym.sandboxes.images import build
from tests.helpers.bases import is_whole_tar
from tests.helpers.engines import require_engine
from tests.helpers.paths import ROOT

TASK, SANDBOX = ROOT / "tasks/devops_task", "harbor_gym.testing:FakeEnvironment"
SAVED = '{"name": "000002", "batch": 2, "state_path": "tinker://a"}\n'
FINAL = '{"name": "final", "batch": 4, "final": true, "state_path": "tinker://b"}\n'


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    env = {"task_dir": TASK, "sandbox": SANDBOX}
    settings = {"env": env, "task_dirs": [TASK], "backend": "local", "num_batches": 4}
    write_run_config(folder, TrainConfig.model_validate(settings))
    return folder


def run(*words: str | Path) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [*map(str, words)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.server
@pytest.mark.tinker
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (SAVED + "{gar\n" + SAVED, "line 2, can't be read: Expecting"),
        (SAVED + '{"batch": 4}\n', "line 2, can't be read: the record has no name"),
        ("[]\n", "line 1, can't be read: it holds no JSON object"),
        ("\udcff", "can't be read: it is no text"),
    ],
)
def test_checkpoints_that_can_not_be_read_are_one_line_before_a_server_starts(
    text: str, says: str, run_dir: Path
) -> None:
    (run_dir / "checkpoints.jsonl").write_text(text, encoding="utf-8", errors="surrogateescape")
    code, printed, error = run("train", "--resume", run_dir)
    assert (code, printed, error.count("\n")) == (2, "", 1)
    assert f"{run_dir / 'checkpoints.jsonl'}" in error
    assert says in error
    assert "remove the line to go on from the checkpoint before it" in error


def test_a_last_line_that_a_kill_has_cut_is_taken_out(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    for text, left in ((SAVED + FINAL[:-9], SAVED), (SAVED + FINAL[:-1], SAVED + FINAL), (SAVED[:3], ""), ("", "")):
        path.write_text(text, encoding="utf-8")
        whole = [json.loads(line) for line in left.splitlines()]
        assert read_lines(path, remedy="") == whole
        assert path.read_text(encoding="utf-8") == text, "another process may still be writing it"
        assert read_lines(path, remedy="", mends=True) == whole
        assert path.read_text(encoding="utf-8") == left


@pytest.mark.tinker
def test_a_finished_run_is_not_trained_again(run_dir: Path) -> None:
    (run_dir / "checkpoints.jsonl").write_text(SAVED + FINAL, encoding="utf-8")
    code, printed, error = run("train", "--resume", run_dir)
    assert (code, error) == (0, "")
    assert printed.startswith(f"nothing to do: the run in {run_dir} is finished")


@pytest.mark.server
@pytest.mark.tinker
@pytest.mark.parametrize("action", ["resume", "delete"])
def test_a_second_run_in_a_folder_is_told_what_to_do(action: str, run_dir: Path) -> None:
    words = ["--resume", run_dir]
    if action == "delete":
        words = [
            "--task-dir",
            TASK,
            "--env",
            SANDBOX,
            "--log-path",
            run_dir,
            "--log-dir-exists",
            "delete",
            "--num-batches",
            "1",
        ]
        words += ["--backend", "local"]
    with one_run_at_a_time(run_dir, flag="--log-path"):
        code, printed, error = run("train", *words)
    assert (code, printed, error.count("\n")) == (2, "", 1)
    assert f"a run is under way in {run_dir}: wait for its end, or name another folder (--log-path)" in error
    assert (run_dir / "run.json").is_file()


@pytest.mark.parametrize("name", ["best.json", "tasks.json"])
def test_a_record_of_a_run_that_can_not_be_read_is_named(name: str, run_dir: Path) -> None:
    from harbor_gym.adapters.tinker.training.plan import TrainRun
    from harbor_gym.adapters.tinker.training.preparation import claimed_folder
    from harbor_gym.evaluation import read_best

    (run_dir / name).write_text("{", encoding="utf-8")
    config = TrainConfig.model_validate(json.loads((run_dir / "run.json").read_text(encoding="utf-8"))["config"])
    trained = TrainRun(config.model_copy(update={"log_dir_exists": "resume"}), config.env, (), (), run_dir)
    with pytest.raises(UsageError, match=rf"{name} can't be read: .*: remove it"):  # noqa: PT012
        if name == "best.json":
            read_best(run_dir)
        with claimed_folder(trained):
            pytest.fail("it was read")


def test_a_transcript_that_can_not_be_read_is_named_in_the_page_and_by_the_command(run_dir: Path) -> None:
    folder = run_dir / "transcripts/train/batch_0001/group_000"
    folder.mkdir(parents=True)
    whole = {"format": 2, "task": "t", "reward": 1.0, "end_reason": "completed", "turns": []}
    (folder / "episode_000.json").write_text(json.dumps(whole), encoding="utf-8")
    (folder / "episode_001.json").write_text(json.dumps(whole)[:20], encoding="utf-8")
    code, printed, _ = run("report", run_dir)
    assert code == 0
    assert printed.endswith(
        "report.html: 2 episodes; transcripts that can't be read: train/batch_0001/group_000/episode_001\n"
    )
    page = (run_dir / "report.html").read_text(encoding="utf-8")
    assert "left out" not in page.partition("<script")[0].partition("</style>")[2]
    assert "episode_001.json can't be read as a transcript" in page


@pytest.mark.parametrize("harm", ["changed", "lost", "emptied"])
def test_a_shipped_task_that_was_damaged_in_the_cache_is_copied_again(
    harm: str, own_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copied = shipped.resolve_shipped("task:devops_task")
    whole = {path.relative_to(copied): path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    if harm == "changed":
        (copied / "task.toml").write_text("", encoding="utf-8")
    elif harm == "lost":
        (copied / "instruction.md").unlink()
    else:
        shutil.rmtree(copied)
        copied.mkdir()
    shipped._copy.cache_clear()  # pyright: ignore[reportPrivateUsage]  # as another process would begin
    assert shipped.resolve_shipped("task:devops_task") == copied
    assert {path.relative_to(copied): path.read_bytes() for path in copied.rglob("*") if path.is_file()} == whole
    assert f"{copied} was damaged since it was copied: it is copied again" in caplog.text
    assert copied.is_relative_to(own_cache)
    assert [path.name for path in copied.parent.iterdir()] == [copied.name]


@pytest.mark.local
@pytest.mark.parametrize("harm", ["layer emptied", "name lost", "layer lost", "record changed"])
async def test_an_image_that_was_damaged_in_the_cache_is_made_again(
    harm: str, own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    require_engine("local")
    (tmp_path / "environment/usr").mkdir(parents=True)
    (tmp_path / "environment/usr/file").touch()
    (tmp_path / "environment/Dockerfile").write_text("FROM scratch\nCOPY usr /usr\n", encoding="utf-8")
    source = build.ImageSource(tmp_path / "environment")
    image = await build.build_image(source)
    layer = next(path for path in image.directories if (path / "usr").is_dir())
    match harm:
        case "layer emptied":
            for path in layer.iterdir():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        case "name lost":
            shutil.rmtree(layer / "usr")
        case "layer lost":
            shutil.rmtree(layer)
        case _:
            (image.home / "image.json").write_bytes(b"[\xff")
    assert not image.is_there or harm == "record changed"
    again = await build.build_image(source)
    assert again.is_there
    assert (layer / "usr/file").is_file()
    assert ("the layer" in caplog.text and "has lost files: it is made again" in caplog.text) is (
        harm in ("layer emptied", "name lost")
    )
    entries = cache.entries()
    assert [entry.kind for entry in entries if entry.can_be_pruned] == ["image"]
    assert cache.prune(everything=True)
    assert list((own_cache / "layers").iterdir()) == []


@pytest.mark.parametrize("harm", ["cut", "changed", "emptied"])
def test_a_base_that_was_damaged_in_the_cache_is_not_taken(harm: str, tmp_path: Path) -> None:
    path = tmp_path / "base.tar"
    with tarfile.open(path, "w") as archive:
        archive.add(__file__, "file")
    assert is_whole_tar(path)
    content = path.read_bytes()
    path.write_bytes({"cut": content[:700], "changed": b"x" * len(content), "emptied": b""}[harm])
    assert not is_whole_tar(path)
    assert not is_whole_tar(tmp_path / "absent")
