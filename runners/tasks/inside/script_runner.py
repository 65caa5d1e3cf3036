"""Run a shell script that runs pytest, and print what pytest reports; runs in the grading sandbox.

Runs as ``python -I -S script_runner.py SITE REPORT`` in the work tree: two directories with pytest
and with our plugin. Stdin has a nonce in the first line, then the script. Stdout has the line
``NONCE start``, then ``NONCE begin`` when pytest has loaded the plugin, ``NONCE OUTCOME "ID"`` per
report, and at the end ``NONCE exit CODE``. The script's own stdout and stderr go to
stderr, in their order.

The plugin shares a process with the code under test, this program does not: it reads the nonce, and
only it writes to stdout. The plugin authenticates its reports by a secret, which it reads from a
pipe once, before any code of the work tree runs. Printed output is never trusted. Code that
searches the interpreter's memory for the secret could still forge a report: this stops shortcuts,
not a determined attack.
"""

# ruff: noqa: PTH118, PTH123 (pathlib takes 4 ms to import)

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile

CHUNK = 65536
SECRET_CHARS = 32


def main() -> None:
    """Run the script; print the plugin's reports and the script's exit code."""
    site, report = sys.argv[1:3]
    nonce, _, script = sys.stdin.buffer.read().decode().partition("\n")
    print_line(f"{nonce} start")
    secret = os.urandom(SECRET_CHARS // 2).hex()
    secret_read, secret_write = os.pipe()
    report_read, report_write = os.pipe()
    os.write(secret_write, secret.encode())
    os.close(secret_write)
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
            pass_fds=(secret_read, report_write),
            env=environment(site, report, scratch, f"{secret_read},{report_write}"),
        )
        os.close(secret_read)
        os.close(report_write)
        relay(report_read, child, secret.encode(), nonce)
        code = child.wait()
    print_line(f"{nonce} exit {code}")


def environment(site: str, report: str, scratch: str, pipes: str) -> dict[str, str]:
    """Return the environment in which any started pytest is found and loads the plugin."""
    inherited = os.environ
    return {
        **inherited,
        "PATH": f"{scratch}:{inherited.get('PATH', os.defpath)}",
        "PYTHONPATH": ":".join(filter(None, (site, report, inherited.get("PYTHONPATH")))),
        "PYTEST_ADDOPTS": f"-p agentrl_report {inherited.get('PYTEST_ADDOPTS', '')}".strip(),
        "AGENTRL_REPORT": pipes,
    }


def relay(channel: int, child: subprocess.Popen[bytes], secret: bytes, nonce: str) -> None:
    """Print every report that carries the secret, until the script has ended."""
    pid_fd = os.pidfd_open(child.pid)
    waiting = select.poll()
    waiting.register(channel, select.POLLIN)
    waiting.register(pid_fd, select.POLLIN)
    rest = b""
    while True:
        # Not until the pipe closes: a process that the tests left behind may hold it open.
        ready = {descriptor for descriptor, _ in waiting.poll()}
        data = os.read(channel, CHUNK) if channel in ready else b""
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            prefix, _, report = line.partition(b" ")
            if prefix == secret:
                print_line(f"{nonce} {report.decode(errors='replace')}")
        if not data and pid_fd in ready:
            return
        if not data and channel in ready:  # every writer has closed it
            waiting.unregister(channel)


def print_line(line: str) -> None:
    """Print one line, unbuffered."""
    data = f"{line}\n".encode()
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    main()
