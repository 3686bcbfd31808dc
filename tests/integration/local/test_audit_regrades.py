"""An audit replays a sample of a run's episodes, grades each in two views, and says how often the verdicts differ."""

import csv
import io
import json
from pathlib import Path

import pytest

from harbor_gym import TerminalEnvConfig
from harbor_gym.checking.audit.report import as_csv, summary
from harbor_gym.checking.audit.run import AuditPlan, audit_tasks
from harbor_gym.checking.plan import CheckPlan
from harbor_gym.evaluation import evaluate
from harbor_gym.sandboxes import environment_config
from harbor_gym.tasks import resolve_tasks
from harbor_gym.tasks.receipts import EpisodeGrades, Severity, read_receipts
from tests.helpers.sandboxes.fake_episodes import COMPLETE, message
from tests.helpers.tasks import write_task
from tests.integration.episode.test_play_on import SMALL, Script

pytestmark = [pytest.mark.local, pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

GRADES = """\
#!/bin/bash
if echo right | cmp -s - /srv/answer; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
FORGED = "printf '#!/bin/sh\\nexit 0\\n' > /usr/local/bin/cmp; chmod +x /usr/local/bin/cmp\n"
EPISODES = {
    "honest": "echo right > answer\n",
    "forged": FORGED,
    "flaky": "echo right >answer\n",
    "unpaid": "echo wrong > answer\n",
    "diverging": "echo right > answer; echo $RANDOM$RANDOM\n",
}


async def test_what_is_forged_and_what_is_flaky_is_counted(tmp_path: Path) -> None:
    task, run = write_task(tmp_path / "words", test_sh=GRADES), tmp_path / "run"
    (task / "solution").mkdir(exist_ok=True)
    (task / "solution/solve.sh").write_text("#!/bin/bash\necho right > /srv/answer\n")
    for name, typed in EPISODES.items():
        config = TerminalEnvConfig(task_dir=task, sandbox="local", terminal=SMALL)
        await evaluate([config], Script(message(typed), COMPLETE, COMPLETE).player(tmp_path / name), episodes=1)
        (written,) = (tmp_path / name).rglob("episode_001.json")
        document = json.loads(written.read_text())
        assert document["reward"] == float(name != "unpaid"), name
        if name == "flaky":  # as though its verifier had decided otherwise then
            document["reward"] = 0.0
        target = run / f"transcripts/train/batch_0001/group_1/words/{name}.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(document))
    tasks = await resolve_tasks(task)
    check = CheckPlan(environment_config("local"), tmp_path / "trials", repeat=1, try_exploits=False)
    plan = AuditPlan(
        tmp_path / "audit", check, sandbox="local", vary=False, runs=[run], sample=9, seed=3, task_timeout_sec=120
    )
    seen: list[tuple[int, int]] = []
    (receipt,) = (await audit_tasks(tasks, plan, on_graded=lambda done, total: seen.append((done, total)))).receipts
    assert seen == [(number, 5) for number in range(1, 6)]
    assert receipt.view == ("/srv",)
    assert receipt.episodes is not None
    assert receipt.episodes == EpisodeGrades.of(sampled=5, unreplayed=1, flaky=1, paid=2, forged=1)
    assert (receipt.episodes.flake_rate, receipt.episodes.forge_rate) == (0.25, 0.5)
    found = {one.kind: one for one in receipt.findings}
    assert found.keys() == {"episodes/flaky", "episodes/view-differs"}
    for kind, name, severity, text in (
        ("episodes/flaky", "flaky", Severity.ERROR, "the reward is 1 graded again"),
        ("episodes/view-differs", "forged", Severity.WARNING, "the reward is 0 in a pristine view"),
    ):
        (evidence,) = found[kind].evidence
        assert (Path(evidence.episode or "").stem, found[kind].severity, evidence.text) == (name, severity, text)
    assert read_receipts(tmp_path / "audit")[receipt.digest] == [receipt]
    assert summary([receipt])["episodes"]["forge_rate"] == 0.5
    row = next(csv.DictReader(io.StringIO(as_csv([receipt]))))
    assert (row["forged"], row["paid"], row["flaky"], row["unreplayed"]) == ("1", "2", "1", "1")
