"""Run a shell script that runs pytest, and say what pytest reported; mounted into the grading
sandbox.

Runs as ``python -I -S script_runner.py SITE REPORT`` in the work tree: two directories with pytest
and with our plugin. Stdin has a nonce in the first line, then the script. Stdout has the line
``NONCE start``, then ``NONCE begin`` when pytest has loaded the plugin, ``NONCE OUTCOME "ID"`` per
report, and at the end ``NONCE exit CODE``. What the script prints goes to stderr, both its channels
in their order.

The plugin shares a process with the code under test, this program does not: it reads the nonce, and
alone writes to stdout. The plugin proves itself by a word which it finds in a pipe, once, before
any code of the work tree runs. What is printed is never believed. Code that searches the
interpreter for that word could still lie: this stops shortcuts, not a siege.
"""

# ruff: noqa: PTH118, PTH123 (pathlib takes 6 ms to import)

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile

CHUNK = 65536
WORD = 32
"""Characters."""


def main() -> None:
    """Run the script, pass on what the plugin reports, say how the script ended."""
    site, report = sys.argv[1:3]
    nonce, _, script = sys.stdin.buffer.read().decode().partition("\n")
    say(f"{nonce} start")
    word = os.urandom(WORD // 2).hex()
    ask_read, ask_write = os.pipe()
    tell_read, tell_write = os.pipe()
    os.write(ask_write, word.encode())
    os.close(ask_write)
    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, "eval.sh")
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(script)
        shim = os.path.join(scratch, "pytest")
        with open(shim, "w", encoding="utf-8") as file:
            file.write('#!/bin/sh\nexec python -m pytest "$@"\n')
        os.chmod(shim, 0o755)  # noqa: PTH101
        child = subprocess.Popen(
            ["bash", path],
            stdin=subprocess.DEVNULL,
            stdout=2,
            stderr=2,
            pass_fds=(ask_read, tell_write),
            env=environment(site, report, scratch, f"{ask_read},{tell_write}"),
        )
        os.close(ask_read)
        os.close(tell_write)
        relay(tell_read, child, word.encode(), nonce)
        code = child.wait()
    say(f"{nonce} exit {code}")


def environment(site: str, report: str, scratch: str, pipes: str) -> dict[str, str]:
    """Return the environment in which any pytest finds itself and loads the plugin."""
    given = os.environ
    return {
        **given,
        "PATH": f"{scratch}:{given.get('PATH', os.defpath)}",
        "PYTHONPATH": ":".join(filter(None, (site, report, given.get("PYTHONPATH")))),
        "PYTEST_ADDOPTS": f"-p agentrl_report {given.get('PYTEST_ADDOPTS', '')}".strip(),
        "AGENTRL_REPORT": pipes,
    }


def relay(channel: int, child: subprocess.Popen[bytes], word: bytes, nonce: str) -> None:
    """Print every report that carries the word, until the script has ended."""
    pid_fd = os.pidfd_open(child.pid)
    waiting = select.poll()
    waiting.register(channel, select.POLLIN)
    waiting.register(pid_fd, select.POLLIN)
    rest = b""
    while True:
        # A process that the tests left behind may hold the pipe open: the script's end is the end.
        ready = {descriptor for descriptor, _ in waiting.poll()}
        data = os.read(channel, CHUNK) if channel in ready else b""
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            given, _, report = line.partition(b" ")
            if given == word:
                say(f"{nonce} {report.decode(errors='replace')}")
        if not data and pid_fd in ready:
            return
        if not data and channel in ready:  # every writer is gone
            waiting.unregister(channel)


def say(line: str) -> None:
    """Print one line at once."""
    data = f"{line}\n".encode()
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    main()
