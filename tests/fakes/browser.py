"""A real headless Chromium, driven over the DevTools protocol: its keys, links and complaints."""

from __future__ import annotations

import asyncio
import base64
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

PATH = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(PATH is None, reason="no Chromium")
DEADLINE_S = 120.0
"""For anything that is waited for: CI machines stall."""
_CODES = {"Escape": 27, "Enter": 13, "ArrowDown": 40, "ArrowUp": 38, "Tab": 9}


class Browser:
    """One page."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.complaints: list[str] = []
        """Errors of scripts, of the content security policy, of loading."""
        self.requests: list[str] = []
        """Addresses that were loaded."""
        self._reading = asyncio.create_task(self._read())

    async def open(self, address: str) -> None:
        """Load a page, and wait until it has drawn itself."""
        await self.call("Page.navigate", url="about:blank")
        await self.call("Page.navigate", url=address)
        await self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    async def run(self, script: str) -> Any:
        """Return the value of an expression in the page; promises are awaited."""
        found = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def until(self, script: str) -> Any:
        """Wait until an expression is true, and return its value."""
        async with asyncio.timeout(DEADLINE_S):
            while not (value := await self._try(script)):
                await asyncio.sleep(0.05)
        return value

    async def _try(self, script: str) -> Any:
        with suppress(AssertionError):  # the page is being loaded
            return await self.run(script)

    async def text(self, selector: str) -> str:
        """Return the text of the first element that matches."""
        return cast(str, await self.until(f"document.querySelector({selector!r})?.innerText"))

    async def press(self, key: str) -> None:
        """Press and release a key."""
        code = _CODES.get(key, ord(key[0].upper()))
        keys: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": code}
        text = {"text": key} if len(key) == 1 else {}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **keys, **text)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **keys)

    async def write(self, text: str) -> None:
        """Write into what has the focus."""
        await self.call("Input.insertText", text=text)

    async def show_as(self, width: int, height: int, *, dark: bool = False) -> None:
        """Give the window a size, and its user a preference."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self, path: Path) -> None:
        """Write what is seen to a file."""
        found = await self.call("Page.captureScreenshot", format="png")
        await asyncio.to_thread(path.write_bytes, base64.b64decode(found["data"]))

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command of the protocol and return its result."""
        number = next(self._ids)
        future = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(DEADLINE_S):
            answer = await future
        assert "error" not in answer, answer
        return cast(dict[str, Any], answer["result"])

    async def close(self) -> None:
        """End the page's connection."""
        self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading
        await self._socket.close()

    async def _read(self) -> None:
        async for message in self._socket:
            said = message.json()
            if "id" in said:
                self._answers.pop(said["id"]).set_result(said)
            elif said["method"] == "Runtime.exceptionThrown":
                self.complaints.append(str(said["params"]["exceptionDetails"]))
            elif said["method"] == "Log.entryAdded":
                if said["params"]["entry"]["level"] in ("error", "warning"):
                    self.complaints.append(str(said["params"]["entry"]))
            elif said["method"] == "Network.requestWillBeSent":
                self.requests.append(said["params"]["request"]["url"])


@asynccontextmanager
async def start_browser(folder: Path) -> AsyncIterator[Browser]:
    """Start Chromium with a profile in ``folder``, and end it."""
    assert PATH is not None
    process = await asyncio.create_subprocess_exec(
        *(PATH, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"),
        *(f"--user-data-dir={folder / 'profile'}", "about:blank"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        port = await _find_port(folder / "profile" / "DevToolsActivePort")
        async with aiohttp.ClientSession() as client:
            async with client.get(f"http://127.0.0.1:{port}/json") as answer:
                targets = await answer.json(content_type=None)
            address = next(each for each in targets if each["type"] == "page")
            async with client.ws_connect(
                address["webSocketDebuggerUrl"], max_msg_size=1 << 26
            ) as socket:
                browser = Browser(socket)
                try:
                    for domain in ("Page", "Runtime", "Log", "Network"):
                        await browser.call(f"{domain}.enable")
                    await browser.call("Emulation.setFocusEmulationEnabled", enabled=True)
                    await browser.show_as(1280, 800)
                    yield browser
                finally:
                    await browser.close()
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _find_port(path: Path) -> int:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with suppress(OSError, IndexError, ValueError):
                return int(path.read_text().splitlines()[0])
            await asyncio.sleep(0.05)
