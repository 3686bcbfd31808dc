"""Mutation testing of the core: which changes of the code does no test notice?

Each module is copied with its tests into a folder of its own under build/mutants, where mutmut changes one thing at a
time and runs the tests that reach it. Texts and the words of errors and logs are not worth a test, and left out.

    [MUTANTS_SAMPLE=N] .ci/mutants/run.sh [MODULE ...]

With MUTANTS_SAMPLE only so many of a module's mutants are tried, the same ones each time.
"""

import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "mutants"
COPIED = ("harbor_gym", "tests", "tasks", "recipes", "pyproject.toml", "README.md")
UNTOUCHED = (r"^\s*raise ", r"logger\.", r"warnings\.warn", r"^\s*assert ", r"TYPE_CHECKING", r"\bcast\(")
SAMPLE = int(os.environ.get("MUTANTS_SAMPLE", "0"))
CAUGHT = ("killed", "timeout", "caught by type check", "segfault", "suspicious")


@dataclass(frozen=True)
class Module:
    """Modules that are mutated together, and the fast tests that should notice."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]


_FORMATS = (
    "test_actions.py",
    "test_actions_formats.py",
    "test_actions_xml.py",
    "test_actions_table.py",
)
_ENVIRONMENT = (
    "test_env_endings.py",
    "test_env_rewards.py",
    "test_episode_fakes.py",
    "test_fork.py",
    "test_kept_episodes.py",
)
MODULES = {
    "formats": Module(("formats/*",), _FORMATS),
    "rewards": Module(("episode/grading/rewards.py",), ("test_rewards.py",)),
    "statistics": Module(("evaluation/statistics.py",), ("test_statistics.py",)),
    "evaluation": Module(
        ("evaluation/*",),
        (
            "test_statistics.py",
            "test_evaluation.py",
            "test_evaluation_parts.py",
            "test_run_evaluation.py",
        ),
    ),
    "tasks": Module(
        ("tasks/*",),
        (
            "test_task_sources.py",
            "test_many_tasks.py",
            "test_git_sources.py",
        ),
    ),
    "tokens": Module(("tokens.py",), ("test_token_env.py", "test_fork.py", "test_kept_episodes.py")),
    "rollout": Module(("rollout.py",), ("test_token_env.py",)),
    "env": Module(("env.py",), _ENVIRONMENT),
    "pool": Module(("pool.py", "_runtime/rate_limit.py"), ("test_pool_order.py",)),
    "screen": Module(("terminal/screen/screen.py",), ("test_screen.py", "test_gymnasium_spaces.py")),
    "episode": Module(
        ("episode/*",),
        (
            *_ENVIRONMENT,
            "test_breakage.py",
            "test_cleanup_answers.py",
            "test_event_loops.py",
            "test_guarded_turn.py",
            "test_phase_parts.py",
            "test_released.py",
            "test_rewards.py",
            "test_throttling.py",
            "test_trial_loggers.py",
            "test_verifier_view.py",
        ),
    ),
    "dockerfile": Module(
        ("sandboxes/dockerfile.py", "sandboxes/images/recipe.py", "sandboxes/images/words.py"),
        ("test_dockerfile.py", "test_dockerfile_references.py", "test_words.py"),
    ),
}
"""Name for MODULES= → module."""

_SLOW = "not megabyte and not subprocess and not loads_nothing_else and not recipe"


def main() -> int:
    """Run the modules that are named, or all; print a table."""
    names = sys.argv[1:] or list(MODULES)
    if unknown := sorted(set(names) - set(MODULES)):
        print(f"error: no module {', '.join(unknown)}; known: {', '.join(MODULES)}", file=sys.stderr)
        return 2
    rows = [("module", "mutants", "caught", "survived", "no test", "share")]
    for name in names:
        statuses = _mutate(name, MODULES[name])
        caught = sum(statuses[status] for status in CAUGHT)
        survived, untested = statuses["survived"], statuses["no tests"] + (0 if SAMPLE else statuses["not checked"])
        total = caught + survived + untested
        rows.append((name, *map(str, (total, caught, survived, untested)), f"{caught / max(total, 1):.0%}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    print(f"what no test noticed: {WORK}/MODULE/survivors.diff")
    return 0


def _mutate(name: str, module: Module) -> Counter[str]:
    folder = WORK / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for entry in COPIED:
        source = ROOT / entry
        ignored = shutil.ignore_patterns("__pycache__")
        if source.is_dir():
            shutil.copytree(source, folder / entry, ignore=ignored, symlinks=True)
        else:
            shutil.copy(source, folder / entry)
    with (folder / "pyproject.toml").open("a") as config:
        config.write(_configuration(module))
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    tool = [sys.executable, "-c", "import sys; sys.path.insert(0, sys.argv.pop(1)); import mutants; mutants.run_tool()"]
    arguments = [str(Path(__file__).parent), "run", "--max-children", "1"]
    print(f"==> {name}", file=sys.stderr, flush=True)
    with (folder / "mutmut.log").open("w") as log:
        subprocess.run([*tool, *arguments], cwd=folder, env=environment, stdout=log, stderr=log, check=False)
    return _read_results(folder, environment)


def _configuration(module: Module) -> str:
    tests = [str(path.relative_to(ROOT)) for test in module.tests for path in (ROOT / "tests").rglob(test)]
    # The cache and reruns of a test's history are of no use where every run has other code.
    arguments = [
        "-p",
        "no:cacheprovider",
        "--hypothesis-profile=mutants",
        "-k",
        _SLOW,
        "-m",
        "not local and not docker",
    ]
    settings = {
        "source_paths": ["harbor_gym"],
        "only_mutate": [f"harbor_gym/{source}" for source in module.sources],
        "do_not_mutate_patterns": list(UNTOUCHED),
        "also_copy": ["tasks", "recipes", "README.md"],
        "pytest_add_cli_args_test_selection": tests,
        "pytest_add_cli_args": arguments,
    }
    # A list of texts is written alike in Python and, as literal strings, in TOML.
    lines = [f"{key} = {value!r}" for key, value in settings.items()]
    return (
        "\n[tool.mutmut]\n"
        + "\n".join(lines).replace("\\\\", "\\")
        + "\ntimeout_multiplier = 4.0\ntimeout_constant = 3.0\n"
    )


def run_tool() -> None:
    """Run mutmut, without its changes of texts."""
    from mutmut import __main__ as tool
    from mutmut.mutation import file_mutation, mutators

    collect = tool.collect_source_file_mutation_data

    def collect_sample(*, mutant_names: tuple[str, ...]) -> Any:
        mutants, sources = collect(mutant_names=mutant_names)
        return random.Random(0).sample(mutants, min(SAMPLE, len(mutants))), sources

    if SAMPLE:
        tool.collect_source_file_mutation_data = collect_sample

    kept = [
        (kind, operator) for kind, operator in mutators.mutation_operators if operator is not mutators.operator_string
    ]
    file_mutation.mutation_operators = kept
    tool.cli()


def _read_results(folder: Path, environment: dict[str, str]) -> Counter[str]:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import mutants; mutants.tell_results()"
    command = [sys.executable, "-c", code, str(Path(__file__).parent)]
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return Counter(done.stdout.splitlines())


def tell_results() -> None:
    """Print each mutant's fate, and write the survivors' diffs."""
    from mutmut.__main__ import collect_source_file_mutation_data, get_diff_for_mutant
    from mutmut.stats import status_by_exit_code

    mutants, _ = collect_source_file_mutation_data(mutant_names=())
    with Path("survivors.diff").open("w", encoding="utf-8") as diffs:
        for data, name, code in mutants:
            status = status_by_exit_code[code]
            print(status)
            if status not in CAUGHT and not (SAMPLE and status == "not checked"):
                diffs.write(f"# {name}: {status}\n{get_diff_for_mutant(name, path=data.path)}\n")


if __name__ == "__main__":
    sys.exit(main())
