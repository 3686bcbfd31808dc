"""What the policy started runs on while it is graded, as in a plain trial, and has no say in the verdict."""

import shlex
from pathlib import Path

import pytest

from harbor_gym import AsyncTerminalGymEnv, TerminalEnvConfig
from harbor_gym.checking.plan import CheckPlan
from harbor_gym.checking.trials import run_plain_oracle
from harbor_gym.sandboxes import environment_config
from tests.helpers.harbor_trials import COMPLETE
from tests.helpers.tasks import BASE, FORGER, write_task
from tests.integration.episode.test_honest_grading import episode

pytestmark = [pytest.mark.local, pytest.mark.usefixtures("nothing_left")]

DOCKERFILE = f"FROM {BASE}\nRUN useradd --create-home dev\nWORKDIR /srv\n"

ACCEPT = "while ($c = $s->accept) { print $c qq(served\\n); close $c }"
TCP = (
    f"perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(LocalPort => 8080, Listen => 5, ReuseAddr => 1); {ACCEPT}'"
)
UNIX = f"perl -MIO::Socket::UNIX -e '$s = IO::Socket::UNIX->new(Local => \"%s\", Listen => 5); {ACCEPT}'"
ASK_TCP = 'exec 3<>/dev/tcp/127.0.0.1/8080 && read -r word <&3 && [ "$word" = served ]'
ASK_UNIX = (
    "perl -MIO::Socket::UNIX -e '$s = IO::Socket::UNIX->new(Peer => \"%s\") or exit 1; exit <$s> ne qq(served\\n)'"
)
ABSTRACT = "\\0service"

SERVICES: dict[str, tuple[str, str]] = {
    "a job of the shell": (f"{TCP} >/dev/null 2>&1 &", ASK_TCP),
    "a server under nohup": (f"nohup {TCP} >/srv/log 2>&1 </dev/null &", ASK_TCP),
    "a daemon that forked twice": (f"(setsid {TCP} >/dev/null 2>&1 </dev/null &)", ASK_TCP),
    "another user's server": (
        "setsid su dev -c \"exec bash -c 'exec $(printf %q /srv/serve)'\" >/dev/null 2>&1 </dev/null &",
        ASK_TCP,
    ),
    "a socket in the file system": (f"setsid {UNIX % '/srv/socket'} >/dev/null 2>&1 &", ASK_UNIX % "/srv/socket"),
    "an abstract socket": (f"setsid {UNIX % ABSTRACT} >/dev/null 2>&1 &", ASK_UNIX % ABSTRACT),
    "a reader of a pipe": (
        "mkfifo asked told; setsid bash -c 'while read -r word <asked; do echo \"$word\" >told; done' &",
        'echo hello >asked; read -r -t 5 word <told && [ "$word" = hello ]',
    ),
    "a process with a file of its id": (
        "setsid bash -c 'echo $$ >/run/it.pid; exec sleep 1007' &",
        'kill -0 "$(cat /run/it.pid)" && [ "$(tr "\\0" " " </proc/"$(cat /run/it.pid)"/cmdline)" = "sleep 1007 " ]',
    ),
    "a process by its name": ("setsid sleep 1008 &", "pgrep -f '[s]leep 1008'"),
    "a writer of a file": (
        "setsid bash -c 'while :; do echo x >>/srv/beat; sleep 0.05; done' &",
        'before=$(stat -c %s /srv/beat); sleep 0.5; [ "$(stat -c %s /srv/beat)" -gt "$before" ]',
    ),
    "a job that ends during the verification": (
        "setsid bash -c 'sleep 1; echo done >/srv/late' &",
        "for _ in {1..100}; do [ -e /srv/late ] && break; sleep 0.1; done; [ -e /srv/late ]",
    ),
    "a file in memory": ("setsid sleep 1009 & echo hello >/dev/shm/note", "grep -q hello /dev/shm/note"),
    "a file in /tmp": ("setsid sleep 1010 & echo hello >/tmp/note", "grep -q hello /tmp/note"),
}


def write_service_task(task_dir: Path, keys: str, asks: str) -> Path:
    test_sh = (
        f"#!/bin/bash\ncd /srv\nif ( {asks} ) >/dev/null; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
    )
    dockerfile = f"{DOCKERFILE}RUN printf '%s\\n' {shlex.quote(TCP)} > serve && chmod 755 serve\n"
    task = write_task(task_dir, dockerfile=dockerfile, test_sh=test_sh)
    (task / "solution/solve.sh").write_text(f"#!/bin/bash\ncd /srv\n{keys}\nsleep 0.5\n")
    return task


@pytest.mark.parametrize("service", SERVICES)
async def test_a_service_of_the_policys_is_there_for_the_verifier_as_in_a_plain_trial(
    tmp_path: Path, service: str
) -> None:
    keys, asks = SERVICES[service]
    task = write_service_task(tmp_path / "task", keys, asks)
    plain, output = await run_plain_oracle(
        task,
        CheckPlan(
            environment=environment_config("local"),
            trials_dir=tmp_path / "trials",
        ),
    )
    assert plain == 1.0, output
    reward, info = await episode(task, keys, "sleep 0.5")
    assert reward == 1.0
    assert info["metrics"]["stopped_processes"] == 0


async def test_what_runs_on_is_stopped_where_that_is_asked_for_and_a_zero_is_explained(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys, asks = SERVICES["a daemon that forked twice"]
    task = write_service_task(tmp_path / "explained-once-a-process", keys, asks)  # the name of no other test's task
    for _ in range(2):
        reward, info = await episode(task, keys, "sleep 0.5", keep_agent_processes=False)
        assert (reward, info["metrics"]["stopped_processes"]) == (0.0, 1)
        assert info.get("stopped_processes") == ("perl",)
    assert (
        caplog.text.count("the reward is 0, and before grading these processes of the policy were stopped: perl") == 1
    )
    (task / "task.toml").write_text(f"{(task / 'task.toml').read_text()}[metadata]\nkeep_agent_processes = false\n")
    assert (await episode(task, keys, "sleep 0.5"))[0] == 0.0


async def test_a_server_in_the_foreground_serves_on(tmp_path: Path) -> None:
    task = write_service_task(tmp_path / "task", "", ASK_TCP)
    config = TerminalEnvConfig(task_dir=task, sandbox="local", confirm_task_complete=False)
    async with AsyncTerminalGymEnv(config) as env:
        await env.reset()
        await env.step([(f"{TCP}\n", 1.0)])
        _, reward, done, _ = await env.step(COMPLETE)
    assert (reward, done) == (1.0, True)


async def test_the_terminal_alone_is_no_process_that_runs_on(tmp_path: Path) -> None:
    """Its shell and its helpers end; so nothing is inside that could disturb the verifier."""
    task = write_task(
        tmp_path / "task", test_sh="#!/bin/bash\nps -eo args= > /logs/verifier/ps; echo 1 > /logs/verifier/reward.txt\n"
    )
    reward, info = await episode(task, "true", trials_dir=tmp_path / "trials")
    trial_dir = info.get("trial_dir")
    assert trial_dir is not None
    assert (reward, info["metrics"]["stopped_processes"]) == (1.0, 0)
    lines = (trial_dir / "verifier/ps").read_text().splitlines()
    assert not [line for line in lines if "harbor" in line or line.strip() in ("bash", "-bash")], lines


# --- what runs on has no say in the verdict --------------------------------------------------------------------------

NO = """\
#!/bin/bash
for _ in {1..8}; do echo 0 > /logs/verifier/reward.txt; sleep 0.05; done
"""
PAYS = "echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh; chmod 755 /tests/test.sh"
FORGERS = {
    "one that writes the verdict": FORGER,
    "one that writes through the verifier's own root": (
        "while :; do for p in /proc/[0-9]*; do echo 1 > $p/root/logs/verifier/reward.txt; "
        "echo 1 > $p/cwd/../logs/verifier/reward.txt; done; done"
    ),
    "one that moves the directory away": (
        "while :; do mv /logs/verifier /logs/$RANDOM; mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; done"
    ),
    "one that moves the directory above away": (
        "while :; do mv /logs /$RANDOM; mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; done"
    ),
    "one that removes the directory": (
        "while :; do rmdir /logs/verifier /tests; mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; done"
    ),
    "one that leads elsewhere": (
        "mkdir /srv/mine; echo 1 > /srv/mine/reward.txt; "
        "while :; do rm -rf /logs/verifier; ln -sfn /srv/mine /logs/verifier; done"
    ),
    "one that holds the directory": (
        "mkdir -p /logs/verifier; cd /logs/verifier; exec 5</logs; "
        "while :; do echo 1 > reward.txt; mv /proc/self/fd/5/verifier /proc/self/fd/5/v; done"
    ),
    "one that writes the tests": f"while :; do mkdir -p /tests; {PAYS}; done",
    "one that moves the tests away": f"while :; do mv /tests /$RANDOM; mkdir /tests; {PAYS}; done",
    "one that stops what is new": (
        'while :; do for p in /proc/[0-9]*; do p=${p#/proc/}; [ "$p" -gt $$ ] && kill -STOP $p; done; '
        "sleep 0.05; kill -CONT -- -1; done"
    ),
}


@pytest.mark.parametrize("user", ["root", "dev"])
@pytest.mark.parametrize("forger", FORGERS)
async def test_what_runs_on_has_no_say_in_the_verdict(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, forger: str, user: str
) -> None:
    toml = f'[agent]\nuser = "{user}"\n'
    task = write_task(tmp_path / "task", dockerfile=DOCKERFILE, test_sh=NO, toml=toml)
    await_start = "sleep 0.2"
    reward, info = await episode(
        task, f"setsid bash -c {shlex.quote(FORGERS[forger])} >/dev/null 2>&1 </dev/null & {await_start}"
    )
    assert reward == 0.0
    # Where root moves /logs at the moment in which the view is made, the sandbox is broken.
    assert info.get("rewards") == {"reward": 0.0} or (user == "root" and info.get("end_reason") == "sandbox_broken"), (
        info
    )
    assert "stops" in forger or "stopped before grading" not in caplog.text, "it was to run on"


@pytest.mark.parametrize("user", ["root", "dev"])
async def test_who_kills_the_verifier_has_failed(tmp_path: Path, user: str) -> None:
    """An ordinary user can't; where root does, the same verifier gives a verdict in an untouched sandbox."""
    task = write_task(tmp_path / "task", dockerfile=DOCKERFILE, test_sh=NO, toml=f'[agent]\nuser = "{user}"\n')
    kills = 'while :; do for p in /proc/[0-9]*; do p=${p#/proc/}; [ "$p" -gt $$ ] && kill -9 $p; done; done'
    reward, info = await episode(task, f"setsid bash -c {shlex.quote(kills)} >/dev/null 2>&1 </dev/null & sleep 0.2")
    assert reward == 0.0
    assert info.get("end_reason") in (["sandbox_broken", "completed"] if user == "root" else ["completed"])


@pytest.mark.parametrize("job", ["( {}; ) &", "( ( {}; ) & )", "f() {{ {}; }}; f & disown", "{{ {}; }} &"])
async def test_a_job_without_a_program_of_its_own_runs_on(tmp_path: Path, job: str) -> None:
    """The shell forks for it and executes nothing, so it looks like the terminal's own shell."""
    test_sh = (
        '#!/bin/bash\nread -r -t 5 word </srv/pipe; [ "$word" = beat ]; echo $((1 - $?)) > /logs/verifier/reward.txt\n'
    )
    task = write_task(tmp_path / "task", dockerfile=DOCKERFILE, test_sh=test_sh)
    reward, _ = await episode(
        task, f"mkfifo /srv/pipe; {job.format('while :; do echo beat >/srv/pipe; done')}", "sleep 0.3"
    )
    assert reward == 1.0
