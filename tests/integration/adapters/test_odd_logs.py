"""What a policy wrote into an agent's logs, which Harbor reads on the host, ends no run and voids no verdict."""

from pathlib import Path

import pytest
from harbor.models.trial.config import AgentConfig

from tests.helpers.tasks import DONE, write_task
from tests.integration.adapters.test_guarded_grading import play

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]

AGENT = AgentConfig(
    import_path="tests.helpers.gateway.format_agent:LogReadingAgent", kwargs={"base_url": "{gateway_url}"}
)
SWE, ATIF = "/logs/agent/mini-swe-agent.trajectory.json", "/logs/agent/trajectory.json"

LOGS = {
    "a list": f"echo '[1]' > {SWE}\n",
    "a number": f"echo 7 > {SWE}\n",
    "a text for messages": f"""echo '{{"messages": "abc"}}' > {SWE}\n""",
    "a text for a count": f"""echo '{{"messages": [{{"extra": {{"response": {{"usage": 5}}}}}}]}}' > {SWE}\n""",
    "a text for a cost": f"""echo '{{"info": {{"model_stats": {{"instance_cost": "dear"}}}}}}' > {SWE}\n""",
    "half a character for a cost": (
        f"""printf '{{"info":{{"model_stats":{{"instance_cost":"\\\\ud800"}}}}}}' > {SWE}\n"""
    ),
    "broken UTF-8": f"printf '\\377' > {SWE}\n",
    "deep JSON": f"for i in $(seq 9); do printf '[%.0s' $(seq 9999); done > {SWE}\n",
    "a folder": f"mkdir {SWE}\n",
    "a FIFO": f"mkfifo {SWE}\n",
    "too much": f"truncate -s 600M {SWE}\n",
    "broken UTF-8 for all agents": f"printf '\\377' > {ATIF}\n",
    "a folder for all agents": f"mkdir {ATIF}\n",
    "too much for all agents": f"truncate -s 600M {ATIF}\n",
}


@pytest.mark.parametrize("log", LOGS)
async def test_an_odd_log_of_an_agent_leaves_the_verdict(log: str, tmp_path: Path) -> None:
    rollout = await play("agent", write_task(tmp_path / "task"), DONE, LOGS[log], agent=AGENT)
    assert (rollout.reward, rollout.error) == (1.0, None)


@pytest.mark.parametrize("log", [log for log in LOGS if log.endswith("for all agents")])
@pytest.mark.parametrize("door", ["own loop", "terminus-2"])
async def test_an_odd_log_that_all_agents_share_leaves_the_verdict(door: str, log: str, tmp_path: Path) -> None:
    rollout = await play(door, write_task(tmp_path / "task"), DONE, LOGS[log])
    assert (rollout.reward, rollout.error) == (1.0, None)
