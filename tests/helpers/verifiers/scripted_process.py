"""A token-id server as a process of its own: answers tasks from a script, and appends every exchange to a file.

    python -m tests.helpers.verifiers.scripted_process SCRIPT LOG ADDRESS

``SCRIPT`` is JSON: words of a prompt → the answers to it, turn by turn. The address is written when it listens.
"""

import asyncio
import base64
import contextlib
import json
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harbor_gym import HFCodec, Sample
from harbor_gym.tasks import read_instruction
from tests.contract.players.episode import Script
from tests.helpers.chats.chat_templates import QWEN3
from tests.helpers.chats.tokenizers import byte_level_tokenizer
from tests.helpers.engine_double import EngineDouble, serve
from tests.helpers.paths import ROOT
from tests.helpers.sandboxes.fake_episodes import COMPLETE, message


@dataclass(frozen=True)
class ScriptedTasks:
    """A sampler with an answer to each task."""

    answers: Mapping[str, Sequence[str]]

    async def __call__(self, prompt: Sequence[int]) -> Sample:
        text = byte_level_tokenizer().decode(list(prompt))
        found = next((answers for words, answers in self.answers.items() if words in text), [COMPLETE])
        return await Script(tuple(found))(prompt)


def solving_answers(task_dir: Path, solutions: Sequence[Path]) -> dict[str, list[str]]:
    """Return the entry of a script that runs a task's own solutions, step by step."""
    answers: list[str] = []
    for solution in solutions:
        encoded = base64.b64encode(solution.read_bytes()).decode()
        run = message(f"echo {encoded} | base64 -d | bash\n", duration=20.0)
        answers += [run, COMPLETE, COMPLETE]
    return {read_instruction(task_dir).strip()[:60]: answers}


@contextlib.contextmanager
def scripted_process(tmp_path: Path, script: Mapping[str, Sequence[str]]) -> Generator[tuple[str, Path]]:
    """Start the process; yield its address and the file of its exchanges."""
    files = [tmp_path / name for name in ("script.json", "exchanges.jsonl", "address")]
    files[0].write_text(json.dumps(script))
    command = [sys.executable, "-m", __spec__.name, *map(str, files)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield files[2].read_text(), files[1]
        finally:
            process.kill()


async def listen(answers: Mapping[str, Sequence[str]], log: Path, address: Path) -> None:
    """Serve until killed."""
    codec = HFCodec(byte_level_tokenizer(), QWEN3)
    async with serve(EngineDouble(ScriptedTasks(answers), codec=codec, log=log)) as server:
        await asyncio.to_thread(address.write_text, server.base_url)
        print("ready", flush=True)  # noqa: T201  # the signal that the parent waits for
        await asyncio.Event().wait()


def main(script: str, log: str, address: str) -> None:
    """Read the script and serve."""
    asyncio.run(listen(json.loads(Path(script).read_text(encoding="utf-8")), Path(log), Path(address)))


if __name__ == "__main__":
    main(*sys.argv[1:])
