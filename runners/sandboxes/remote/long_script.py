"""Run a script of ours as root that may take longer than one call to a machine.

The first call starts it apart from the call; each call waits a while for its end. A server may
limit how long one call takes (ROCK's E2B interface: 60 s).
"""

from __future__ import annotations

import base64
import secrets
import shlex
import time

from runners.sandboxes.contract import SandboxError
from runners.sandboxes.remote.detached import CALL_S, WAIT_S
from runners.sandboxes.remote.machine import STATE, Machine

START = b"agentrl-script\n"
"""First line of a report; login profiles may print something before it."""

# mkdir lets one of repeated calls through, so the script runs once.
SCRIPT = """\
for tool in base64 setsid; do
    command -v "$tool" >/dev/null || {{ echo "the image has no $tool" >&2; exit 1; }}
done
d={directory}
mkdir -p {parent}
mkdir "$d" 2>/dev/null && setsid --fork sh -c '
    sh -c "$1" > "$0/stdout" 2> "$0/stderr"
    echo $? > "$0/exit.new" && mv "$0/exit.new" "$0/exit"
' "$d" {script} </dev/null >/dev/null 2>&1
looks=0
until [ -f "$d/exit" ] || [ "$looks" -ge {looks} ]; do
    [ "$looks" -lt 20 ] && sleep 0.02 || sleep 0.2
    looks=$((looks + 1))
done
echo agentrl-script
[ -f "$d/exit" ] || exit 0
cat "$d/exit"
for name in stdout stderr; do
    base64 < "$d/$name" | tr -d '\\n'
    echo
done
"""


async def run_long_script(machine: Machine, script: str, *, deadline_s: float) -> bytes:
    """Run a script to its end and return what it printed; raises SandboxError.

    At the deadline it is given up, not killed: its machine is ended then.
    """
    parent = f"{STATE}/scripts"
    call = SCRIPT.format(
        parent=parent,
        directory=f"{parent}/{secrets.token_hex(8)}",
        script=shlex.quote(script),
        looks=20 + 5 * WAIT_S,
    )
    started = time.monotonic()
    while True:
        report = await machine.run_script(call, deadline_s=WAIT_S + CALL_S)
        lines = report.partition(START)[2].decode("ascii", "replace").split("\n")
        if lines != [""]:
            return _read(lines)
        if time.monotonic() - started > deadline_s:
            raise SandboxError(f"a script did not end within {deadline_s:g} s")


def _read(lines: list[str]) -> bytes:
    """Return the output in a report; raises SandboxError if the script failed."""
    try:
        code, *streams, _ = lines
        stdout, stderr = (base64.b64decode(each, validate=True) for each in streams)
    except ValueError as error:
        raise SandboxError("a script's report is cut short") from error
    if code != "0":
        printed = (stderr or stdout).decode(errors="replace").strip()[-500:] or "nothing"
        raise SandboxError(f"a script ended with {code} and printed: {printed}")
    return stdout
