"""The differences between the doors, and the rule behind each: the list of docs/training.md, "Where they differ"."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

AGENTS = frozenset(
    {
        *("harbor-gateway", "nemo-gym-agent", "skyrl-agent", "tinker-agent", "trl-async-agent", "verifiers-agent"),
        "verl-agent",
    }
)
"""Where a foreign agent is the loop. It begins a new conversation in each step: Harbor runs it anew."""

VERIFIERS = frozenset({"verifiers", "verifiers-agent"})
NEMO_GYM = frozenset({"nemo-gym", "nemo-gym-agent", "nemo-gym-server"})


@dataclass(frozen=True)
class Difference:
    """One difference."""

    doors: Collection[str]
    whose: str
    """The owner of the rule, as the docs name it."""


DIFFERENCES: Mapping[str, Difference] = {
    "end of the session": Difference(AGENTS, "the agent's"),
    "conversation of a second step": Difference(AGENTS, "Harbor's"),
    "thinking that never closes": Difference(VERIFIERS, "verifiers' renderers'"),
    "thinking in marks of many tokens": Difference({"verifiers"}, "verifiers' renderers'"),
    "marks in content": Difference(VERIFIERS, "verifiers' renderers'"),
    "who writes the chat": Difference(NEMO_GYM, "the model server's (vLLM's)"),
    "tools in the prompt": Difference({"verifiers"}, "verifiers' clients'"),
    "form of a tool call": Difference(VERIFIERS | {"nemo-gym-agent"}, "verifiers' renderers' and vLLM's"),
    "a key that is refused": Difference(VERIFIERS, "verifiers'"),
    "thinking quoted in a command": Difference({"tinker", "tinker-agent"}, "tinker-cookbook's renderers'"),
    "a refusal of the engine": Difference({"tinker", "tinker-agent", "trl"}, "tinker-cookbook's and TRL's"),
    "one conversation an episode": Difference(
        {"nemo-gym", "nemo-gym-server", "openenv-server", "gymnasium", "skyrl", "trl", "verifiers", "verl"},
        "the trainer's",
    ),
    "limits in tokens": Difference({"gymnasium"}, "the loop's around it"),
}
"""By name."""


def doors(name: str) -> Collection[str]:
    """Return the doors of a difference."""
    return DIFFERENCES[name].doors
