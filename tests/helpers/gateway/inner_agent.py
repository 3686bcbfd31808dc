"""An agent that runs in the sandbox and calls its policy over HTTP, with nothing installed but python3."""

import shlex
from typing import Any, override

from harbor.agents.installed.base import NonZeroAgentExitCodeError

from tests.helpers.harbor_trials import ScriptAgent

INNER_AGENT = f"{__name__}:InnerAgent"
"""Import path for Harbor's configuration; the keyword argument ``url`` is the session's address in the sandbox."""

PROGRAM = """
import json, os, subprocess, sys, urllib.request
headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ.get("POLICY_KEY", "")}
messages = [{"role": "user", "content": sys.argv[2]}]
tools = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
while True:
    body = json.dumps({"model": "policy", "messages": messages, "tools": tools}).encode()
    request = urllib.request.Request(sys.argv[1] + "/v1/chat/completions", body, headers)
    message = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    message.pop("reasoning_content", None)
    messages.append(message)
    if not message.get("tool_calls"):
        break
    for call in message["tool_calls"]:
        command = json.loads(call["function"]["arguments"])["command"]
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": done.stdout + done.stderr})
"""
"""An agent in the sandbox: the loop that all of them have, in the standard library."""


class InnerAgent(ScriptAgent):
    """Run PROGRAM in the sandbox."""

    def __init__(self, *args: Any, url: str, key: str = "", **kwargs: Any) -> None:
        super().__init__(*args, scripts=[], **kwargs)
        self._url, self._key = url, key

    @override
    async def run(self, instruction: str, environment: Any, context: Any) -> None:
        command = f"python3 -c {shlex.quote(PROGRAM)} {self._url} {shlex.quote(instruction)}"
        result = await environment.exec(command, env={"POLICY_KEY": self._key})
        if result.return_code:
            raise NonZeroAgentExitCodeError(result.stderr)  # as Harbor's installed agents do
