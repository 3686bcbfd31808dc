"""One episode with tool calls, any trainer: in every family's form, in marks too, the same tokens, reward and end."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from harbor_gym import EndReason
from tests.contract.differences import AGENTS, doors
from tests.contract.players.episode import FORGE, Episode, Played, Script, by_run_episode
from tests.contract.test_same_episode import ADAPTERS, adapters
from tests.helpers.tasks import DONE, write_task

pytestmark = pytest.mark.usefixtures("nothing_left")


def hermes(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def qwen3_coder(name: str, **arguments: str) -> str:
    values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


def glm(name: str, **arguments: str) -> str:
    values = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments.items())
    return f"<tool_call>{name}\n{values}</tool_call>"


def mistral(name: str, **arguments: str) -> str:
    return f"[TOOL_CALLS]{json.dumps([{'name': name, 'arguments': arguments}])}"


def llama3(name: str, **arguments: str) -> str:
    return json.dumps({"name": name, "parameters": arguments})


OWN_LOOPS = frozenset(ADAPTERS) - AGENTS
FORMS = {form.__name__: form for form in (hermes, qwen3_coder, glm, mistral, llama3)}
WITHOUT_TOOLS = ("nemo-gym-agent",)
"""Here the framework's server reads the calls, which no test here runs with a tool parser."""

SOLVED = Played(1.0, EndReason.COMPLETED)


def episode_of(form: str, last: str, adapter: str, model_dir: str, task: Path, **settings: Any) -> Episode:
    """Return an episode that shows a forged turn, solves the task, and says that it did."""
    call = FORMS[form]
    first = "pwd" if adapter in doors("marks in content") else FORGE  # the script would count the forged turn
    commands = (call("bash", command=first), f"<think>\nNow.\n</think>\n\n{call('bash', command=DONE.strip())}")
    options = {"solved_when": {"/srv/answer": "done"}}
    script = Script((*commands, last))
    sandbox = "tests.contract.players.episode:Vanishing"
    return Episode(write_task(task), model_dir, script, sandbox, options, **settings)


def is_foreign(adapter: str, form: str) -> bool:
    """Return whether the framework drops a call of this form: one in tags that its renderer reads another form from."""
    return adapter in doors("form of a tool call") and form in ("qwen3_coder", "glm")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("adapter", adapters(but=AGENTS))
async def test_of_our_own_loop(adapter: str, form: str, model_dir: str, tmp_path: Path) -> None:
    last = FORMS[form]("submit")
    episode = episode_of(form, last, adapter, model_dir, tmp_path / "task", action_format="bash-tool")
    spelt = dataclasses.replace(episode, sampler=dataclasses.replace(episode.sampler, spelling="but tags"))  # pyright: ignore[reportArgumentType]  # a Script
    for one in (episode, spelt):
        played = await ADAPTERS[adapter](one)
        if is_foreign(adapter, form):
            assert played.reward == 0.0
            continue
        assert played == SOLVED
        if adapter not in (*doors("tools in the prompt"), *doors("who writes the chat")):
            assert played.trained == (await by_run_episode(one)).trained


MAKEFILE = "all: prog\n\ncc:\n\tgcc -o prog main.c\n\n\t@echo !! !cc done\n"
TYPED = (f"cat > /srv/Makefile <<'EOF'\n{MAKEFILE}EOF", 'echo "#!/bin/bash" > /srv/run.sh && touch "/srv/new!"')
TEST_SH = f"""\
#!/bin/bash
cmp /srv/Makefile <<'EOF' && [ "$(cat /srv/run.sh)" = '#!/bin/bash' ] && [ -e '/srv/new!' ]
{MAKEFILE}EOF
echo $((! $?)) >/logs/verifier/reward.txt
"""


@pytest.mark.parametrize(
    "adapter",
    [pytest.param(*door.values, marks=[*door.marks, pytest.mark.local]) for door in adapters(but=AGENTS)],
)
async def test_a_tools_command_is_typed_as_it_stands(adapter: str, model_dir: str, tmp_path: Path) -> None:
    """In other sandboxes: ``test_command_text.py``."""
    script = Script((*(hermes("bash", command=command) for command in TYPED), hermes("submit")))
    task = write_task(tmp_path / "task", test_sh=TEST_SH)
    played = await ADAPTERS[adapter](Episode(task, model_dir, script, "local", {}, action_format="bash-tool"))
    assert played == SOLVED


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("adapter", adapters(but=(*OWN_LOOPS, *WITHOUT_TOOLS)))
async def test_of_an_agent(adapter: str, form: str, model_dir: str, tmp_path: Path) -> None:
    agent = "tests.helpers.gateway.format_agent:ToolAgent"
    episode = episode_of(form, "Done.", adapter, model_dir, tmp_path / "task", agent_path=agent)
    played = await ADAPTERS[adapter](episode)
    if adapter in doors("form of a tool call"):
        assert played.reward == (1.0 if form == "hermes" else 0.0)
        return
    assert played == SOLVED
    assert played.trained == (await ADAPTERS["harbor-gateway"](episode)).trained
