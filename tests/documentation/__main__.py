"""Run the quickstart's commands, and take its pictures: ``python -m tests.documentation``.

With tmux and Chromium; some minutes, most of them of training. ``--run DIR`` takes those of a run
that is over again, without the live view. Look at all of them before they are committed: the page
tells what is on them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.documentation.recording import animate, scroll
from tests.documentation.terminal import Terminal, draw, start_terminal
from tests.fakes.browser import Browser, start_browser

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
RUN = "runs/first"
CAMPAIGN = f"agentrl run scenario=linear run.steps=5 run.dir={RUN}"
UNSOLVED = f"agentrl rollouts {RUN} --only train --only unsolved --step 5 --limit 4"
AGENTRL = [sys.executable, "-m", "cli.main"]


def main() -> None:
    """Take all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="a run that is over: do not run one")
    parser.add_argument("--keep", type=Path, help="copy the run to this directory")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="agentrl-") as name:
        folder = Path(name)
        if options.run:
            shutil.copytree(options.run, folder / RUN)
        with start_terminal(folder) as terminal:
            if not options.run:
                photograph_campaign(terminal)
            unsolved = list_rollouts(folder, UNSOLVED)[0]
            save("rollouts", terminal.run(UNSOLVED), UNSOLVED)
            record_failure(terminal, folder, unsolved)
        if options.keep:
            shutil.copytree(folder / RUN, options.keep)
        asyncio.run(photograph_pages(folder, str(unsolved["rollout_id"])))


def photograph_campaign(terminal: Terminal) -> None:
    """Run a campaign; take its live view in the middle."""
    terminal.write(CAMPAIGN)
    screen = terminal.wait_for(r" 4/5(.*\n)* rollouts .* [1-9]\d/64").splitlines()
    first = next(number for number, line in enumerate(screen) if "elapsed" in line)
    save("live", "\n".join(screen[first:]), CAMPAIGN)  # what scrolls is the line before
    terminal.wait_for(r"^report: ")


def list_rollouts(folder: Path, command: str) -> list[dict[str, Any]]:
    """Return the rollouts that a command of ``agentrl rollouts`` lists."""
    found = subprocess.run(
        [*AGENTRL, *command.split()[1:], "--json"],
        cwd=folder, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return list(json.loads(found.stdout)["rollouts"])


def record_failure(terminal: Terminal, folder: Path, unsolved: dict[str, Any]) -> None:
    """Record how an unsolved rollout is explained: its task, it, and one that is solved."""
    task = f"agentrl rollouts {RUN} --task {unsolved['task']}"
    solved = next(row for row in list_rollouts(folder, task) if row["solved"])
    commands = [
        task,
        *(f"agentrl rollouts {RUN} {row['rollout_id']}" for row in (unsolved, solved)),
    ]
    screens = [(screen, each) for each in commands for screen in scroll(terminal.read(each))]
    (PICTURES / "why.svg").write_text(animate(screens), "utf-8")


async def photograph_pages(folder: Path, unsolved: str) -> None:
    """Take the report and the viewer, as a browser draws them."""
    for command in ("view", "report"):
        written = [*AGENTRL, command, RUN, "--out", f"{command}.html"]
        await asyncio.to_thread(subprocess.run, written, cwd=folder, check=True)
    view = (folder / "view.html").as_uri()
    async with start_browser(folder) as browser:
        await browser.open((folder / "report.html").as_uri())
        await photograph(browser, "report")
        await browser.open(view)
        await photograph(browser, "overview")
        await browser.open(f"{view}#{unsolved}")
        await browser.press("c")
        await photograph(browser, "side_by_side")


async def photograph(browser: Browser, name: str) -> None:
    """Save what the window shows, once it has drawn."""
    await asyncio.sleep(1)
    await browser.picture(PICTURES / f"{name}.png")


def save(name: str, screen: str, title: str) -> None:
    """Write a screen as a picture."""
    (PICTURES / f"{name}.svg").write_text(draw(screen, title), "utf-8")


if __name__ == "__main__":
    main()
