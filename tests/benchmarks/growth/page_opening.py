"""How long a browser takes until the page of a run shows something: Chromium, by its DevTools."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

BROWSER = ("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0")
SHOWN = (
    "document.querySelector('#list > *') !== null"
    " && document.querySelector('#main > :not(noscript)') !== null"
)
"""The list and the overview are drawn."""
ROLLOUT_SHOWN = "document.querySelector('#main .tabs') !== null"
ROW = re.compile('<script type="application/json" class="rows">.*?</script>\n')
ROLLOUT = re.compile('<script type="text/plain" class="rollout".*?</script>\n')
NAME = re.compile('("rollout_id":"|id="rollout:)train-')
POLL_S = 0.01
DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True)
class Opening:
    """Seconds by the clock from the request for a page."""

    first: float
    """Until the list and the overview were drawn."""
    last: float
    """Until the last rollout, which was asked for then, was drawn: all of the page is read."""


class Browser:
    """A connection to a running Chromium."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)

    async def call(self, method: str, page: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Return the result of a command, for a ``page`` or for the browser."""
        number = next(self._numbers)
        sent = {"id": number, "method": method, "params": parameters}
        await self._socket.send_json(sent | ({"sessionId": page} if page else {}))
        while (answer := await self._socket.receive_json()).get("id") != number:
            pass  # an event
        return dict(answer["result"])

    async def measure(self, file: Path) -> Opening:
        """Open a page, then its last rollout, and close it."""
        name = re.findall('id="rollout:([^"]+)"', file.read_text("utf-8"))[-1]
        target = (await self.call("Target.createTarget", url="about:blank"))["targetId"]
        attached = await self.call("Target.attachToTarget", targetId=target, flatten=True)
        page, clock = attached["sessionId"], asyncio.get_running_loop().time
        began = clock()
        await self.call("Page.navigate", page, url=file.as_uri())
        first = await self._wait(page, SHOWN, clock)
        await self.call("Runtime.evaluate", page, expression=f"go({{ place: '{name}' }})")
        last = await self._wait(page, f"state.place === '{name}' && {ROLLOUT_SHOWN}", clock)
        await self.call("Target.closeTarget", targetId=target)
        return Opening(first - began, last - began)

    async def _wait(self, page: str, condition: str, clock: Callable[[], float]) -> float:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                found = await self.call("Runtime.evaluate", page, expression=condition)
                if found["result"].get("value") is True:
                    return clock()
                await asyncio.sleep(POLL_S)


def copy_page(page: Path, copies: int, target: Path) -> None:
    """Write a page that holds the rollouts of another one several times, under other names."""
    text = page.read_text("utf-8")
    rows, blocks = re.findall(ROW, text), re.findall(ROLLOUT, text)
    head, _, rest = text.partition(rows[0])
    middle = rest.rpartition(rows[-1])[2].partition(blocks[0])[0]
    tail = rest.rpartition(blocks[-1])[2]
    with target.open("w", encoding="utf-8") as file:
        for part, pieces in ((head, rows), (middle, blocks)):
            file.write(part)
            for number in range(copies):
                file.writelines(re.sub(NAME, rf"\1train-{number}-", each) for each in pieces)
        file.write(tail)


@asynccontextmanager
async def running_browser(profile: Path) -> AsyncIterator[Browser]:
    """Start Chromium with a new profile, and end it."""
    process = await asyncio.create_subprocess_exec(
        *BROWSER,
        f"--user-data-dir={profile}",
        "--window-size=1200,800",
        "about:blank",
        stderr=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        port = profile / "DevToolsActivePort"
        async with asyncio.timeout(DEADLINE_S):
            while not (port.exists() and len(port.read_text().split()) == 2):
                if process.returncode is not None:
                    raise RuntimeError(f"{BROWSER[0]} ended with {process.returncode}")
                await asyncio.sleep(POLL_S)
        number, path = port.read_text().split()
        async with (
            aiohttp.ClientSession() as http,
            http.ws_connect(f"ws://127.0.0.1:{number}{path}", max_msg_size=0) as socket,
        ):
            yield Browser(socket)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
