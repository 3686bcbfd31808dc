"""The declarations of a Harbor task work under reset and step as in Harbor's own trial: both give one verdict."""

from pathlib import Path
from typing import Any

import pytest

from harbor_gym import EndReason
from harbor_gym.errors import TaskError, UsageError
from tests.helpers.harbor_trials import graded_in, instructions_of, rewards_of, run_episode, run_trial
from tests.helpers.tasks import BASE, write_task

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]


FACTS = """\
#!/bin/bash
echo "user $(id -un)" > facts
printf '%s\\n' "cwd $PWD" "plain $PLAIN" "default $DEFAULTED" "set $FROM_HOST" >> facts
"""

JUDGE = """\
#!/bin/bash
fact() { if grep -qx "$1" /app/work/facts; then echo 1; else echo 0; fi; }
is() { if [ "$1" = "$2" ]; then echo 1; else echo 0; fi; }
cat > /logs/verifier/reward.json <<JSON
{"agent_user": $(fact "user dev"), "workdir": $(fact "cwd /app/work"), "env": $(fact "plain one two"),
 "env_default": $(fact "default fallback"), "env_host": $(fact "set from outside"),
 "verifier_user": $(is "$(id -un)" grader), "verifier_env": $(is "$EXPECTED" "swordfish"),
 "host_env_stays_out": $(is "$FIDELITY_HOST" ""), "healthcheck": $(is "$(cat /run/healthy)" "checked by root"),
 "storage": $(is "$(($(df --output=size -BM / | tail -n 1 | tr -dc 0-9) / 100))" 3),
 "skills": $(is "$(ls /skills)" "tidy")}
JSON
echo 0 > /logs/verifier/reward.txt
"""

MANY_DECLARATIONS = """\
[agent]
user = "dev"
timeout_sec = 100
[verifier]
user = "grader"
timeout_sec = 90
env = { EXPECTED = "${NOT_SET_HERE:-swordfish}" }
[environment]
allow_internet = false
storage = "300M"
memory = "1G"
cpus = 1
workdir = "/app/work"
skills_dir = "/skills"
env = { PLAIN = "one two", DEFAULTED = "${NOT_SET_HERE:-fallback}", FROM_HOST = "${FIDELITY_HOST}" }
[environment.healthcheck]
command = "test -e /run/started || { touch /run/started; exit 1; }; echo checked by $(id -un) > /run/healthy"
interval_sec = 0.05
start_interval_sec = 0.05
start_period_sec = 1
[[environment.mcp_servers]]
name = "files"
transport = "stdio"
command = "serve-files"
args = ["--root", "/app work"]
[[environment.mcp_servers]]
name = "web"
transport = "http"
url = "http://127.0.0.1:8000/mcp"
"""

SKILL = "---\nname: tidy\ndescription: >-\n  Put things\n  in order.\n---\n# How\n"

DOCKERFILE = f"""\
FROM {BASE}
RUN useradd --create-home dev && useradd grader && mkdir -p /app/work && chown dev /app/work
COPY skills /skills
COPY facts.sh /usr/local/bin/facts.sh
WORKDIR /elsewhere
"""


def write_rich_task(task_dir: Path) -> Path:
    """Write a task that declares nearly all that a single-step task can."""
    write_task(
        task_dir,
        toml=MANY_DECLARATIONS,
        test_sh=JUDGE,
        dockerfile=DOCKERFILE,
        instruction="<!-- benchmark canary 1234 -->\n# canary GUID 1234\n\nFind out who you are.\n",
    )
    toml = task_dir / "task.toml"
    toml.write_text(toml.read_text().replace('schema_version = "1.4"', 'version = "1.0"'))  # its legacy name
    (task_dir / "environment/skills/tidy").mkdir(parents=True)
    (task_dir / "environment/skills/tidy/SKILL.md").write_text(SKILL)
    (task_dir / "environment/facts.sh").write_text(FACTS)
    return task_dir


@pytest.mark.filterwarnings("ignore:The '.*' field is deprecated:DeprecationWarning")
async def test_one_task_with_nearly_every_declaration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIDELITY_HOST", "from outside")
    task_dir = write_rich_task(tmp_path / "rich")
    script = ["bash /usr/local/bin/facts.sh"]
    theirs = await run_trial(task_dir, script, sandbox="local", trials_dir=tmp_path / "trials")
    ((reward, done, info),), first = await run_episode(task_dir, script, sandbox="local", reward_function="min")
    assert [info.get("rewards")] == rewards_of(theirs)
    assert set((info.get("rewards") or {}).items()) == {(name, 1.0) for name in info.get("rewards") or {}}
    assert (reward, done) == (1.0, True)
    instruction = first.get("instruction") or ""
    assert instructions_of(theirs) == ["Find out who you are.\n"]
    assert instruction.startswith("Find out who you are.\n")
    assert "<name>tidy</name>" in instruction
    assert "<description>Put things in order.</description>" in instruction
    assert "<location>/skills/tidy/SKILL.md</location>" in instruction
    assert "- files (stdio): serve-files --root '/app work'" in instruction
    assert first.get("skills_dir") == "/skills"
    assert [server["transport"] for server in first.get("mcp_servers") or ()] == ["stdio", "streamable-http"]


STEP = """\
#!/bin/bash
made=$(cat "/srv/$STEP" 2>/dev/null)
[ "$made" = "$STEP" ] && reward=1 || reward=0
printf '{"reward": %s, "shared": %s}' "$reward" "$SHARED" > /logs/verifier/reward.json
ls /tests > /logs/verifier/tests.txt
"""


def write_steps(task_dir: Path, toml: str, strategy: str = "mean") -> Path:
    """Write a task of three steps: each requires its own name in a file of that name; setup.sh makes the third's."""
    names = ("one", "two", "three")
    root_toml = f'multi_step_reward_strategy = "{strategy}"\n'
    dockerfile = f"FROM {BASE}\nRUN useradd dev\nWORKDIR /srv\n"
    write_task(task_dir, root_toml=root_toml, toml=toml, test_sh=STEP, dockerfile=dockerfile)
    (task_dir / "instruction.md").unlink()
    for name in names:
        (task_dir / "steps" / name).mkdir(parents=True)
        (task_dir / "steps" / name / "instruction.md").write_text(f"# canary {name}\nWrite {name} into /srv/{name}.\n")
    workdir = task_dir / "steps/three/workdir"
    workdir.mkdir()
    (workdir / "setup.sh").write_text("#!/bin/bash\ncp seed three\n")
    (workdir / "seed").write_text("three\n")
    return task_dir


def steps_toml(gate: str = "") -> str:
    return f"""\
[verifier.env]
SHARED = "0.25"
[[steps]]
name = "one"
verifier.env = {{ STEP = "one" }}
[[steps]]
name = "two"
verifier.env = {{ STEP = "two", SHARED = "0.75" }}
{gate}
[[steps]]
name = "three"
verifier.env = {{ STEP = "three" }}
healthcheck = {{ command = "test -s /srv/three", retries = 1 }}
"""


STEPS = {
    "mean": (steps_toml(), ["echo one > one", "true", "true"], 3, EndReason.COMPLETED, (1.0 + 0 + 1) / 3),
    "final": (steps_toml(), ["true", "echo two > two", "rm three"], 3, EndReason.COMPLETED, 0.0),
    "a gate that opens": (
        steps_toml("min_reward = { reward = 1.0, shared = 0.5 }"),
        ["true", "echo two > two", "true"],
        3,
        EndReason.COMPLETED,
        2 / 3,
    ),
    "a gate that stays shut": (
        steps_toml("min_reward = { reward = 0.0, shared = 0.8 }"),
        ["echo one > one", "echo two > two", "true"],
        2,
        EndReason.STEP_GATE,
        1.0,
    ),
}


@pytest.mark.parametrize("case", STEPS)
async def test_a_task_of_several_steps(tmp_path: Path, case: str) -> None:
    toml, scripts, graded, reason, episode_reward = STEPS[case]
    task_dir = write_steps(tmp_path / "steps", toml, "final" if case == "final" else "mean")
    theirs = await run_trial(task_dir, scripts, sandbox="local", trials_dir=tmp_path / "trials")
    ends, first = await run_episode(task_dir, scripts, sandbox="local")
    assert first.get("instruction") == "Write one into /srv/one.\n"
    assert graded_in(ends) == rewards_of(theirs)
    assert [done for _, done, _ in ends] == [False] * (graded - 1) + [True]
    *_, (_, _, last) = ends
    assert theirs.verifier_result is not None
    assert last.get("episode_reward") == (theirs.verifier_result.rewards or {})["reward"]
    assert last.get("episode_reward") == pytest.approx(episode_reward)
    assert last.get("end_reason") is reason


@pytest.mark.parametrize("step_rewards", [False, True])
async def test_one_final_reward_for_all_steps(tmp_path: Path, step_rewards: bool) -> None:
    task_dir = write_steps(tmp_path / "steps", steps_toml())
    scripts = ["echo one > one", "echo two > two", "rm three"]
    ends, _ = await run_episode(task_dir, scripts, sandbox="local", step_rewards=step_rewards)
    paid = [1 / 3, 1 / 3, 0.0] if step_rewards else [0.0, 0.0, 2 / 3]
    assert [reward for reward, _, _ in ends] == pytest.approx(paid)
    assert [item["reward"] for item in graded_in(ends)] == [1.0, 1.0, 0.0]


@pytest.mark.parametrize("gate", ["", "min_reward = 0.5"])
@pytest.mark.parametrize(
    ("end", "reason"), [("true", EndReason.MAX_TURNS), ("exit", EndReason.SESSION_ENDED)], ids=["a budget", "exit"]
)
async def test_further_steps_are_graded_without_an_action(
    tmp_path: Path, gate: str, end: str, reason: EndReason
) -> None:
    task_dir = write_steps(tmp_path / "steps", steps_toml(gate))
    scripts = ["echo one > one", end]
    ends, _ = await run_episode(task_dir, scripts, sandbox="local", max_turns=3, trials_dir=tmp_path / "trials")
    theirs = await run_trial(task_dir, ["echo one > one", "true", "true"], sandbox="local", trials_dir=tmp_path / "h")
    assert theirs.verifier_result is not None
    *_, (_, done, info) = ends
    assert done
    assert info.get("end_reason") is reason
    assert list(info.get("step_rewards", ())) == rewards_of(theirs)
    assert info.get("episode_reward") == (theirs.verifier_result.rewards or {})["reward"]
    assert info.get("episode_reward") == pytest.approx(0.5 if gate else 2 / 3)


ARTIFACTS = 'artifacts = ["/srv/answer", { source = "/srv/notes", exclude = ["*.tmp"] }]\n'

SEPARATE = """\
[verifier]
environment_mode = "separate"
collect = [{ command = "id -un > /srv/notes/collected" }]
[verifier.environment]
storage_mb = 200
"""

SEPARATE_JUDGE = """\
#!/bin/bash
there() { if [ "$1" ]; then echo 1; else echo 0; fi; }
cat > /logs/verifier/reward.json <<JSON
{"artifact": $(there "$(grep -x done /srv/answer)"), "planted": $(there "$(ls /opt/planted 2>/dev/null)"),
 "collected": $(there "$(grep -x root /srv/notes/collected)"),
 "excluded": $(there "$(ls /srv/notes/*.tmp 2>/dev/null)")}
JSON
"""


async def test_a_separate_verifier_sees_the_artifacts_and_nothing_else(tmp_path: Path) -> None:
    task_dir = write_task(tmp_path / "separate", root_toml=ARTIFACTS, toml=SEPARATE, test_sh=SEPARATE_JUDGE)
    # An image of its own brings its own tests, as Harbor has it.
    (task_dir / "tests/Dockerfile").write_text(f"FROM {BASE}\nCOPY test.sh /tests/test.sh\n")
    script = ["echo done > answer; mkdir notes; touch notes/x.tmp /opt/planted; echo 1 > /logs/verifier/reward.txt"]
    theirs = await run_trial(task_dir, script, sandbox="local", trials_dir=tmp_path / "trials")
    ((_, _, info),), _ = await run_episode(task_dir, script, sandbox="local", reward_key="artifact")
    assert [info.get("rewards")] == rewards_of(theirs)
    assert info.get("rewards") == {"artifact": 1.0, "planted": 0.0, "collected": 1.0, "excluded": 0.0}


async def test_a_verifier_of_ones_own(tmp_path: Path, task_dir: Path) -> None:
    verifier = {
        "import_path": "tests.helpers.harbor_trials:FileVerifier",
        "kwargs": {"path": "/srv/answer"},
        "env": {"LEVEL": "high"},
    }
    script = ["echo anything > /srv/answer"]
    theirs = await run_trial(task_dir, script, sandbox="local", trials_dir=tmp_path / "trials", verifier=verifier)
    ((reward, _, info),), _ = await run_episode(
        task_dir, script, sandbox="local", verifier=verifier, reward_function="tests.contract.test_fidelity:halved"
    )
    assert [info.get("rewards")] == rewards_of(theirs) == [{"there": 1.0, "env": 1.0}]
    assert reward == 0.5


def halved(rewards: dict[str, float]) -> float:
    """A reward function of one's own, found by its name."""
    return rewards["there"] / 2


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"reward_function": "median"}, "median"),
        ({"reward_function": "tests.contract.test_fidelity:missing"}, "missing"),
        ({"reward_function": "min", "reward_key": "reward"}, "exclude"),
        ({"verifier": {"disable": True}}, "disable"),
        ({"verifier": {"timeout": 3}}, "timeout"),
    ],
)
async def test_a_setting_that_means_nothing_is_refused(
    task_dir: Path, settings: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        await run_episode(task_dir, [], sandbox="local", **settings)


ALLOWLIST = 'network_mode = "allowlist"\nallowed_hosts = ["example.org", "fe80::1"]\n'
CLOSED = "fe80::1, which no sandbox may reach"

REFUSED = {
    "a closed address in an allowlist": (f"[environment]\n{ALLOWLIST}", CLOSED),
    "a closed address in an allowlist of the policy's": (f"[agent]\n{ALLOWLIST}", CLOSED),
    "a closed address in an allowlist of the verifier's": (f"[verifier]\n{ALLOWLIST}", CLOSED),
    "a closed address in an allowlist of a step's": (f'[[steps]]\nname = "one"\n[steps.agent]\n{ALLOWLIST}', CLOSED),
    "a closed address in an allowlist of a separate verifier's": (f"[verifier.environment]\n{ALLOWLIST}", CLOSED),
    "graphics processors of a separate verifier's": ("[verifier.environment]\ngpus = 1\n", r"gpus = 1: .*--env docker"),
    "graphics processors": ("[environment]\ngpus = 2\n", r"gpus = 2: local .*--env docker"),
    "Windows": ('[environment]\nos = "windows"\n', "windows"),
    "sizes that disagree": ('[environment]\nmemory = "1G"\nmemory_mb = 5\n', "Conflicting"),
    "a shared verifier with a sandbox": (
        '[verifier]\nenvironment_mode = "shared"\n[verifier.environment]\ncpus = 1\n',
        "incompatible",
    ),
}


@pytest.mark.filterwarnings("ignore:The '.*' field is deprecated:DeprecationWarning")
@pytest.mark.parametrize("case", REFUSED)
async def test_what_can_not_be_honoured_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    toml, complaint = REFUSED[case]
    task_dir = write_task(tmp_path / "refused", toml=toml)
    (task_dir / "steps/one").mkdir(parents=True)
    (task_dir / "steps/one/instruction.md").write_text("Do it.\n")
    with pytest.raises(TaskError, match=complaint) as caught:
        await run_episode(task_dir, [], sandbox="local")
    assert "\n" not in str(caught.value)


async def test_a_recorded_session_to_go_on_from_is_refused(task_dir: Path) -> None:
    (task_dir / "trajectory.json").write_text("{}")
    with pytest.raises(TaskError, match="recorded session"):
        await run_episode(task_dir, [], sandbox="local")
