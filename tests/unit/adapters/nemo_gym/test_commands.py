"""``harbor-gym nemo-gym init`` and ``failures``."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from harbor_gym._runtime import imports
from harbor_gym.adapters import nemo_gym
from harbor_gym.adapters.nemo_gym.datasets import Datasets
from harbor_gym.adapters.nemo_gym.failures import FailedRow, failed_rows
from harbor_gym.adapters.nemo_gym.server import SERVER
from harbor_gym.adapters.nemo_gym.settings import RolloutSettings
from harbor_gym.cli.main import app
from harbor_gym.errors import MissingDependencyError, UsageError
from tests.helpers.tasks import write_task

RUNNER = CliRunner()
NEMO_GYMS_OWN = {"entrypoint", "domain", "description", "value", "model_server"}


def init(directory: Path, *more: str) -> Any:
    return RUNNER.invoke(app, ["nemo-gym", "init", str(directory), *more])


def test_init_writes_a_server_that_its_own_settings_read(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks/one")
    write_task(tmp_path / "tasks/two")
    done = init(tmp_path, "--alias", "mine: own", "--env", "local", "--requirement", "-e /checkout")
    assert done.exit_code == 0, done.output
    folder = tmp_path / SERVER
    assert sorted(done.output.split()) == sorted(str(file) for file in folder.rglob("*") if file.is_file())
    compile((folder / "app.py").read_text(), "app.py", "exec")
    # NeMo Gym leaves out the first line where it is installed from a package index.
    assert (folder / "requirements.txt").read_text() == "-e nemo-gym[dev] @ ../../\n-e /checkout\n"
    rows = [json.loads(line) for line in (folder / "data/example.jsonl").read_text().splitlines()]
    assert [row["instance_id"] for row in rows] == ["mine: own::one", "mine: own::two"]
    for name, is_training in (("harbor_gym_agent", False), ("harbor_gym_agent_training", True)):
        config = yaml.safe_load((folder / f"configs/{name}.yaml").read_text())
        block = config[rows[0]["agent_ref"]["name"]]["responses_api_agents"][SERVER.name]
        own = {key: value for key, value in block.items() if key not in NEMO_GYMS_OWN}
        assert set(own) <= set(RolloutSettings.model_fields)
        settings = RolloutSettings(**own)
        assert (settings.env["sandbox"], settings.require_token_ids) == ("local", is_training)
        assert settings.harbor_datasets["mine: own"].local_dataset_path == Path("tasks")
        assert config["harbor_gym_environment"]["environment_servers"]["legacy_agent"]["agent_server"]["name"] in config
        assert ("policy_model" in config) is is_training


async def test_a_shipped_task_is_found_wherever_the_folder_is(tmp_path: Path) -> None:
    done = init(tmp_path, "--tasks", "task:devops_task")
    assert done.exit_code == 0, done.output
    config = yaml.safe_load((tmp_path / SERVER / "configs/harbor_gym_agent.yaml").read_text())
    block = config["harbor_gym_agent"]["responses_api_agents"][SERVER.name]
    settings = RolloutSettings(**{key: value for key, value in block.items() if key not in NEMO_GYMS_OWN})
    row = json.loads((tmp_path / SERVER / "data/example.jsonl").read_text())
    assert row["instance_id"] == "tasks::devops_task"
    found = await Datasets(settings.harbor_datasets, root=tmp_path).find(row["instance_id"])
    assert (found / "task.toml").is_file()


def test_init_replaces_nothing_unasked(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks/one")
    assert init(tmp_path).exit_code == 0
    program = tmp_path / SERVER / "app.py"
    program.write_text("mine\n")
    again = init(tmp_path)
    assert (again.exit_code, program.read_text()) == (2, "mine\n")
    assert "--force" in again.output
    assert init(tmp_path, "--force").exit_code == 0
    assert program.read_text() != "mine\n"


@pytest.mark.parametrize("more", [("--tasks", "nowhere"), ("--alias", "a::b"), ("--env", "lokal")])
def test_init_refuses(more: tuple[str, ...], tmp_path: Path) -> None:
    write_task(tmp_path / "tasks/one")
    done = init(tmp_path, *more)
    assert (done.exit_code, done.output.count("\n")) == (2, 1)
    assert not (tmp_path / SERVER).exists()


def write_run(folder: Path) -> Path:
    trial = folder / "trials/t1"
    (trial / "verifier").mkdir(parents=True)
    (trial / "verifier/test-stdout.txt").write_text("assert 1 == 2\nfailed\n")
    rows = [
        {"instance_id": "b::solved", "reward": 1.0, "mask_sample": False, "failure_kind": None},
        {
            "instance_id": "b::broken",
            "mask_sample": True,
            "failure_kind": "verifier_error",
            "failure_reason": "VerifierError: no reward",
            "trial_dir": str(trial),
            "verifier_output": None,
        },
        {
            "instance_id": "a::late",
            "mask_sample": False,
            "failure_kind": "agent_timeout",
            "failure_reason": "the episode's time ran out",
            "trial_dir": str(folder / "gone"),
            "verifier_output": "from the row",
        },
    ]
    run = folder / "rollouts.jsonl"
    run.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    refused = {
        "instance_id": "c::none",
        "_ng_failure_class": "agent_run_error",
        "_ng_failure_message": "500",
        "_ng_failure_response_body": "no task 'none'",
    }
    (folder / "rollouts_failures.jsonl").write_text(f"{json.dumps(refused)}\n")
    (folder / "rollouts_materialized_inputs.jsonl").write_text(f"{json.dumps(rows[0])}\n")
    (folder / "rollout_verdicts.jsonl").write_text('{"rollout_id": "0-0", "verdict": "unobserved"}\n')
    return run


def test_failures_are_found_by_instance_id(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    expected = [
        FailedRow("a::late", "agent_timeout", "the episode's time ran out", False, tmp_path / "gone", "from the row"),
        FailedRow(
            *("b::broken", "verifier_error", "VerifierError: no reward", True),
            *(tmp_path / "trials/t1", "assert 1 == 2\nfailed"),
        ),
        FailedRow("c::none", "agent_run_error", "no task 'none'", True, None, ""),
    ]
    assert failed_rows(run) == failed_rows(tmp_path) == expected
    shown = RUNNER.invoke(app, ["nemo-gym", "failures", str(run)]).output
    assert f"b::broken  verifier_error  masked\n  VerifierError: no reward\n  trial: {tmp_path}/trials/t1\n" in shown
    assert "  | failed\n" in shown
    assert shown.endswith("3 failed, 2 of them masked\n")
    as_json = json.loads(RUNNER.invoke(app, ["nemo-gym", "failures", str(run), "--json"]).output)
    assert [(row["instance_id"], row["is_masked"]) for row in as_json] == [
        ("a::late", False),
        ("b::broken", True),
        ("c::none", True),
    ]


def test_failures_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        failed_rows(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match=r"no \.jsonl"):
        failed_rows(tmp_path)
    (tmp_path / "x.jsonl").write_text('{"instance_id": "a::b"}\n{"other": 1}\n')
    with pytest.raises(UsageError, match=r"x\.jsonl, line 2"):
        failed_rows(tmp_path)


def _no_spec(name: str) -> None:
    pass


def test_without_nemo_gym_the_agent_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "find_spec", _no_spec)
    with pytest.raises(MissingDependencyError, match=r"harbor-gym\[nemo-gym\]"):
        _ = nemo_gym.HarborGymAgent
