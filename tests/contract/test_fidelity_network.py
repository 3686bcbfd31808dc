"""A task's network modes, phase by phase: an episode and Harbor's own trial reach the same hosts."""

import asyncio
from pathlib import Path

import pytest

from tests.helpers.engines import require_engine
from tests.helpers.harbor_trials import graded_in, rewards_of, run_episode, run_trial
from tests.helpers.tasks import write_task

COUNT = "grep -Ec '^ *(eth|tap)[0-9]' /proc/net/dev"
"""Prints how many ways out a sandbox has: one or none."""

STEPS = {
    "plain": ("", (True, True)),
    "policy": ('agent.network_mode = "{other}"', (False, True)),
    "verifier": ('verifier.network_mode = "{other}"', (True, False)),
    "both": ('agent.network_mode = "{other}"\nverifier.network_mode = "{other}"', (False, False)),
    "apart": ('verifier.environment = {{ network_mode = "{other}" }}', (True, False)),
}
"""Step → its settings, and whether the policy and the verifier then have the network of ``[environment]``."""

LOCAL, DOCKER = pytest.mark.local, pytest.mark.docker


@pytest.mark.parametrize(
    ("engine", "baseline", "steps"),
    [
        pytest.param("local", "public", tuple(STEPS), marks=LOCAL),
        pytest.param("local", "no-network", tuple(STEPS), marks=LOCAL),
        pytest.param("docker", "public", ("policy", "verifier"), marks=DOCKER),
        pytest.param("docker", "no-network", ("verifier", "apart"), marks=DOCKER),
    ],
)
async def test_every_phase_has_the_network_that_it_is_to_have(
    engine: str, baseline: str, steps: tuple[str, ...], tmp_path: Path
) -> None:
    require_engine(engine)
    other = "no-network" if baseline == "public" else "public"
    declared = (f'[[steps]]\nname = "{step}"\n{STEPS[step][0].format(other=other)}\n' for step in steps)
    judge = f'#!/bin/bash\nprintf \'{{"policy": %s, "verifier": %s}}\' "$(cat /srv/count)" "$({COUNT})"'
    task_dir = write_task(
        tmp_path / f"net-{baseline}",
        root_toml='artifacts = ["/srv/count"]\n',
        toml=f'[environment]\nnetwork_mode = "{baseline}"\n{"".join(declared)}',
        test_sh=f"{judge} > /logs/verifier/reward.json\n",
    )
    for step in steps:
        (task_dir / "steps" / step).mkdir(parents=True)
        (task_dir / "steps" / step / "instruction.md").write_text("Look about.\n")
    scripts = [f"{COUNT} > /srv/count"] * len(steps)
    async with asyncio.TaskGroup() as group:
        trial = group.create_task(run_trial(task_dir, scripts, sandbox=engine, trials_dir=tmp_path / "trials"))
        episode = group.create_task(run_episode(task_dir, scripts, sandbox=engine, reward_function="sum"))
    ends, _ = episode.result()
    has = {True: float(baseline == "public"), False: float(other == "public")}
    expected = [
        {"policy": has[policy], "verifier": has[verifier]} for policy, verifier in (STEPS[step][1] for step in steps)
    ]
    assert graded_in(ends) == rewards_of(trial.result()) == expected
