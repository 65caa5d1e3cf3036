"""A real terminal (tmux), typed into and photographed as SVG."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

DEADLINE_S = 1800.0
COLUMNS, LINES = 100, 30
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
"""Finds this environment's ``agentrl`` first."""
THEME = TerminalTheme(
    (24, 26, 31),
    (214, 217, 222),
    [
        *((44, 47, 54), (240, 113, 120), (125, 200, 120), (225, 180, 90)),
        *((100, 160, 240), (200, 130, 220), (80, 190, 200), (200, 204, 210)),
    ],
    [
        *((120, 125, 135), (250, 140, 145), (150, 220, 145), (240, 200, 120)),
        *((130, 180, 250), (215, 155, 235), (110, 210, 220), (240, 242, 245)),
    ],
)
"""Background, text, and the sixteen colours of a dark terminal: readable on pages of any colour."""


class Terminal:
    """One tmux window with a shell in it."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    def write(self, command: str) -> None:
        """Clear the screen, type a command, and press Enter."""
        self.tmux("send-keys", "-R", "-t", "0")
        self.tmux("clear-history", "-t", "0")
        self.tmux("send-keys", "-t", "0", "C-l")
        self.tmux("send-keys", "-t", "0", "-l", command)
        self.tmux("send-keys", "-t", "0", "Enter")

    def wait_for(self, pattern: str) -> str:
        """Return the screen, coloured, once a pattern is on it; raises TimeoutError."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            if re.search(pattern, self.tmux("capture-pane", "-p", "-t", "0"), re.M):
                return self.tmux("capture-pane", "-e", "-p", "-t", "0")
            time.sleep(0.2)
        raise TimeoutError(f"{pattern!r} did not appear:\n{self.tmux('capture-pane', '-p')}")

    def run(self, command: str) -> str:
        """Run a command to its end, and return the screen."""
        self.write(command)
        return self.wait_for(r"\n\$\s*\Z")

    def read(self, command: str) -> str:
        """Run a command to its end, and return all that it printed, also what has scrolled away."""
        self.run(command)
        return self.tmux("capture-pane", "-e", "-p", "-S", "-", "-t", "0")

    def tmux(self, *arguments: str) -> str:
        """Run a command of tmux and return what it prints."""
        return subprocess.run(
            ["tmux", "-S", str(self._socket), *arguments],
            check=True,
            capture_output=True,
            text=True,
            env=os.environ | {"PATH": PATH},  # a new session's is its client's, whatever -e says
        ).stdout


@contextmanager
def start_terminal(folder: Path) -> Iterator[Terminal]:
    """Start a shell in ``folder`` that finds ``agentrl``, and end it."""
    terminal = Terminal(folder / "tmux.sock")
    environment = {
        "PS1": "$ ",
        "COLORTERM": "truecolor",
        "TERM": "xterm-256color",
    }
    size = ("-x", str(COLUMNS), "-y", str(LINES))
    variables = [word for pair in environment.items() for word in ("-e", "=".join(pair))]
    shell = ("bash", "--noprofile", "--norc")
    terminal.tmux(
        "-f", "/dev/null", "new-session", "-d", *size, "-c", str(folder), *variables, *shell
    )
    try:
        terminal.tmux("set-option", "-g", "status", "off")
        terminal.wait_for(r"^\$")
        yield terminal
    finally:
        terminal.tmux("kill-server")


def draw(screen: str, title: str, name: str = "t") -> str:
    """Return a coloured screen as SVG that loads nothing from elsewhere.

    ``name`` begins the names of its styles; pictures within one page differ in it.
    """
    text = Text.from_ansi("\n".join(screen.rstrip().splitlines()))
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(text, soft_wrap=False, highlight=False)
    drawn = console.export_svg(title=title, theme=THEME, unique_id=name)
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.S)
