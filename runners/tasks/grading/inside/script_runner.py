"""Run a shell script of a task and print what its processes report; runs in the grading sandbox.

Runs as ``python -I -S script_runner.py SITE REPORT [apart]`` in the work tree: two directories with
pytest and with our modules for the processes under test. Stdin has a nonce in the first line, then
the script. Every line on stdout begins with the nonce:

* ``start``, then ``begin`` when a pytest has loaded our plugin;
* ``OUTCOME "ID"`` per report of a test;
* at the end ``unproven KIND REASON`` per process (pytest, unittest, python, program) of which it is
  not proven that it came to its end; ``reached`` if the program of ``f2p_program.py`` did;
* ``exit CODE``.

The script's own stdout and stderr go to stderr, in their order. With ``apart`` its stdout goes to
stdout, and our lines follow at the end.

Printed output is never trusted, nor is an exit code alone: the code under test shares a process
with the plugin, and can end it. This program does not share it: it reads the nonce, cannot be read
by others, and only it marks lines. Code that speaks the relay's protocol could still forge a
report: this stops shortcuts, not a determined attack.
"""

# ruff: noqa: PTH118, PTH120, PTH123 (pathlib takes 4 ms to import)

from __future__ import annotations

import _socket
import os
import subprocess
import sys
import tempfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from runners.tasks.grading.inside import relay
else:
    sys.path.insert(0, os.path.dirname(__file__))
    import relay

    sys.path.pop(0)


def main() -> None:
    """Run the script; print the reports and the script's exit code."""
    relay.set_readable(False)
    site, report, *options = sys.argv[1:]
    nonce, _, script = relay.read_request().partition("\n")
    relay.print_line(f"{nonce} start")
    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, "eval.sh")
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(script)
        shim = os.path.join(scratch, "pytest")
        with open(shim, "w", encoding="utf-8") as file:
            file.write('#!/bin/sh\nexec python -m pytest "$@"\n')
        os.chmod(shim, 0o755)  # noqa: PTH101
        listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        address = os.path.join(scratch, "relay")
        listener.bind(address)
        relay.attach_credentials(listener)
        listener.listen(64)
        child = subprocess.Popen(
            ["bash", path],
            stdin=subprocess.DEVNULL,
            stdout=1 if "apart" in options else 2,
            stderr=2,
            env=environment(site, report, scratch, address),
        )
        observed = Observed()

        def handle(connection: relay.Peer, message: str) -> None:
            lines = observed.handle(connection, message)
            if "apart" in options:  # in the midst of its output, a line could begin anywhere
                late.extend(lines)
            else:
                print_all(nonce, lines)

        late: list[str] = []
        peers = relay.serve(child.pid, handle, listener=listener)
        code = child.wait()
    if "apart" in options:
        relay.print_line("")
    print_all(nonce, [*late, *observed.end_lines(peers), f"exit {code}"])


def print_all(nonce: str, lines: list[str]) -> None:
    """Print lines with the nonce."""
    for line in lines:
        relay.print_line(f"{nonce} {line}")


def environment(site: str, report: str, scratch: str, address: str) -> dict[str, str]:
    """Return the environment in which any started Python reports, and any pytest has our plugin."""
    inherited = os.environ
    paths = (report, site, inherited.get("PYTHONPATH"))
    return {
        **inherited,
        "PATH": f"{scratch}:{inherited.get('PATH', os.defpath)}",
        "PYTHONPATH": ":".join(filter(None, paths)),
        "PYTEST_ADDOPTS": f"-p agentrl_report {inherited.get('PYTEST_ADDOPTS', '')}".strip(),
        "AGENTRL_CHANNEL": address,
    }


class Observed:
    """Reports of the processes of a script; mutated by ``handle`` alone."""

    def __init__(self) -> None:
        self.begun = False
        self.processes: dict[relay.Peer, Process] = {}

    def handle(self, connection: relay.Peer, message: str) -> list[str]:
        """Take one message in, and return what is to be printed at once.

        A message that nobody of ours sends breaks the connection.
        """
        process = self.processes.setdefault(connection, Process())
        word, _, rest = message.partition(" ")
        if process.exited:
            connection.broken = True
        elif word == "process":
            process.kind = rest
        elif word == "begin":
            process.begun += 1
            if not self.begun:
                self.begun = True
                return ["begin"]
        elif word == "test":
            return [rest]
        elif word == "finish":
            process.finishes.append(rest)
        elif word == "reached":
            process.reached = True
        elif word == "exit":
            process.exited = True
        else:
            connection.broken = True
        return []

    def end_lines(self, peers: list[relay.Peer]) -> list[str]:
        """Return what is to be printed at the end about the processes that connected.

        One that said nothing has not come to its end either.
        """
        lines = []
        for connection in peers:
            process = self.processes.get(connection, Process())
            if doubt := process.find_doubt(connection):
                lines.append(f"unproven {process.name} {doubt}")
            elif process.reached:
                lines.append("reached")
        return lines


class Process:
    """One Python that the script started; mutated by ``Observed.handle`` alone."""

    def __init__(self) -> None:
        self.kind = "python"
        self.begun = 0
        self.finishes: list[str] = []
        self.reached = False
        self.exited = False

    @property
    def name(self) -> str:
        """Kind in the printed lines."""
        return "pytest" if self.begun else self.kind

    def find_doubt(self, connection: relay.Peer) -> str:
        """Return why it is not proven that it came to its end; "" if it is."""
        name = self.name
        if connection.broken:
            return f"something else than {name} reported its results"
        if not self.exited and not (name == "python" and connection.alive()):
            return f"{name} ended before its end"
        if self.kind == "program" and not self.reached:
            return "the program did not come to its end"
        sessions = self.begun or int(name == "unittest")
        if len(self.finishes) < sessions:
            return f"{name} did not finish its tests"
        for finish in self.finishes:
            status, good, bad, replaced = finish.split(" ", 3)
            if replaced != "-":
                return f"{replaced} was replaced"
            if status == "0" and (good == "0" or bad != "0"):
                return f"{name} ended with exit code 0, {good} tests passed and {bad} did not"
        return ""


if __name__ == "__main__":
    main()
