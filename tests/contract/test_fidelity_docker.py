"""Sidecars and their evidence, on Docker and on local; limits by Docker's daemon."""

import asyncio
from pathlib import Path

import pytest

from harbor_gym.errors import VerifierOutOfMemoryError
from tests.helpers.harbor_trials import rewards_of, run_episode, run_trial
from tests.helpers.tasks import BASE, write_task

SANDBOXES = [
    pytest.param("docker", marks=pytest.mark.docker),
    pytest.param("local", marks=[pytest.mark.local, pytest.mark.compose]),
]

COMPOSE = f"""\
services:
  ledger:
    image: {BASE}
    init: true
    stop_grace_period: 1s
    command: bash -c 'echo kept apart > /evidence; sleep infinity'
"""

ROOT = 'artifacts = ["/srv/answer", { source = "/evidence", service = "ledger" }]\n'

TOML = """\
[agent]
user = "games"
[verifier]
environment_mode = "separate"
env = { EXPECTED = "done by games" }
[[verifier.collect]]
command = "cat /evidence > /collected; echo seen >> /evidence"
service = "ledger"
[[verifier.collect]]
command = "id -un >> /srv/answer"
user = "games"
[verifier.environment]
memory_mb = 200
[environment]
memory_mb = 300
cpus = 1
"""

JUDGE = """\
#!/bin/bash
is() { if [ "$1" = "$2" ]; then echo 1; else echo 0; fi; }
cat > /logs/verifier/reward.json <<JSON
{"answer": $(is "$(head -n 1 /srv/answer)" "$EXPECTED"), "collected": $(is "$(tail -n 1 /srv/answer)" games),
 "sidecar": $(is "$(tr '\\n' . < /evidence)" "kept apart.seen."), "apart": $(is "$(ls /opt)" ""),
 "memory": $(is "$(sed -n 2p /srv/answer)" 314572800)}
JSON
"""

DOCKERFILE = f"FROM {BASE}\nRUN chmod 777 /srv /opt\nWORKDIR /srv\n"

LIMIT = "/sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes"


@pytest.mark.parametrize("sandbox", SANDBOXES)
async def test_a_compose_task_with_sidecar_evidence_and_a_separate_verifier(sandbox: str, tmp_path: Path) -> None:
    task_dir = write_task(tmp_path / "composed", root_toml=ROOT, toml=TOML, test_sh=JUDGE, dockerfile=DOCKERFILE)
    (task_dir / "environment/docker-compose.yaml").write_text(COMPOSE)
    (task_dir / "tests/Dockerfile").write_text(f"FROM {BASE}\nCOPY test.sh /tests/test.sh\n")
    script = [f"echo done by $(id -un) > answer; cat {LIMIT} 2>/dev/null >> answer; touch /opt/planted"]
    async with asyncio.TaskGroup() as group:
        trial = group.create_task(run_trial(task_dir, script, sandbox=sandbox, trials_dir=tmp_path / "trials"))
        episode = group.create_task(run_episode(task_dir, script, sandbox=sandbox, reward_function="min"))
    ((reward, _, info),), _ = episode.result()
    assert [info.get("rewards")] == rewards_of(trial.result())
    # local gives a tolerance above memory_mb
    memory = float(sandbox == "docker")
    assert info.get("rewards") == {"answer": 1.0, "collected": 1.0, "sidecar": 1.0, "apart": 1.0, "memory": memory}
    assert reward == memory


HUNGRY = """\
#!/bin/bash
pgrep -f 'while sleep 0[.]01' && echo 1 > /logs/verifier/reward.txt
x=$(head -c 200M /dev/zero | tr '\\0' x)
true
"""


@pytest.mark.docker
async def test_memory_that_runs_out_while_grading_is_reported_and_nothing_of_the_policys_runs(tmp_path: Path) -> None:
    task_dir = write_task(tmp_path / "hungry", test_sh=HUNGRY, toml="[environment]\nmemory_mb = 64\n")
    exploit_agent = (
        "(setsid env -i bash -c 'while sleep 0.01; do echo 1 > /logs/verifier/reward.txt; done' &>/dev/null &)"
    )
    with pytest.raises(VerifierOutOfMemoryError, match="memory limit killed") as caught:
        await run_episode(
            task_dir, [exploit_agent], sandbox="docker", ambiguous_failures="infrastructure", keep_agent_processes=False
        )
    assert caught.value.is_infrastructure
