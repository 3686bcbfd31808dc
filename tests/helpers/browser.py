"""A real browser: Chromium without a window, driven by its own protocol."""

import asyncio
import base64
import contextlib
import itertools
import json
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp

from tests.helpers.patience import PATIENCE_SEC

_KEYS = MappingProxyType({"ArrowDown": 40, "ArrowUp": 38, "Enter": 13, "Escape": 27, "Tab": 9, " ": 32})


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.errors: list[str] = []
        """Errors that the page threw, and violations of its security policy."""

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol; return its result."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json(timeout=PATIENCE_SEC)
            self._note(message)
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]

    async def run(self, expression: str) -> Any:
        """Evaluate JavaScript and return its value; a promise is awaited."""
        found = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def open(self, url: str) -> None:
        """Go to an address, and wait until the page has run."""
        await self.call("Page.enable")
        await self.call("Runtime.enable")
        await self.call("Log.enable")
        await self.call("Page.navigate", url=url)
        await self.wait_for("document.readyState === 'complete'")

    async def wait_for(self, expression: str, *, timeout_sec: float = 120) -> None:
        """Wait until JavaScript is true."""
        async with asyncio.timeout(timeout_sec):
            while not await self.run(expression):  # noqa: ASYNC110 - the page has no event for it here
                await asyncio.sleep(0.05)

    async def press(self, *keys: str, shift: bool = False) -> None:
        """Type keys, by name or as characters."""
        for key in keys:
            text = {} if key in _KEYS and key not in (" ", "Enter") else {"text": "\r" if key == "Enter" else key}
            code = _KEYS.get(key, ord(key.upper()) if len(key) == 1 else 0)
            common = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
            await self.call("Input.dispatchKeyEvent", type="keyDown", **common, **text)
            await self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    async def screenshot(self, path: Path) -> None:
        """Write a picture of the window."""
        picture = await self.call("Page.captureScreenshot", format="png")
        await asyncio.to_thread(path.write_bytes, base64.b64decode(picture["data"]))

    def _note(self, message: dict[str, Any]) -> None:
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(message["params"]))
        entry = message.get("params", {}).get("entry", {})
        if message.get("method") == "Log.entryAdded" and entry.get("level") == "error":
            self.errors.append(f"{entry.get('text')} {entry.get('url', '')}")


@contextlib.asynccontextmanager
async def browser(profile: Path, *, width: int = 1400, height: int = 900) -> AsyncGenerator[Page]:
    """Run Chromium; yield its tab.

    Args:
        profile: A folder for its files.
        width: Of the window, in pixels.
        height: Likewise.
    """
    process = await asyncio.create_subprocess_exec(
        *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
        *("--disable-background-networking", "--remote-debugging-port=0", f"--user-data-dir={profile}"),
        *(f"--window-size={width},{height}", "about:blank"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    draining = None
    try:
        assert process.stderr is not None
        async with asyncio.timeout(PATIENCE_SEC):
            line = ""
            while not (found := re.search(r"DevTools listening on ws://([^/]+)/", line)):
                line = (await process.stderr.readline()).decode(errors="replace")
                assert line, "Chromium ended before it listened"
        draining = asyncio.ensure_future(process.stderr.read())
        async with aiohttp.ClientSession() as client:
            async with client.get(f"http://{found[1]}/json/list") as answer:
                tabs = await answer.json()
            address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
            async with client.ws_connect(address, max_msg_size=0) as socket:
                yield Page(socket)
                with contextlib.suppress(ConnectionError, AssertionError):
                    await socket.send_json({"id": 0, "method": "Browser.close", "params": {}})
    finally:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), PATIENCE_SEC)
        if process.returncode is None:
            process.kill()
            await process.wait()
        if draining is not None:
            await draining
