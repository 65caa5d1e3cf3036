"""Commands on a machine that answers only short calls, each of which may be lost or made twice.

The host writes the command into a directory of its own and calls ``ATTEND`` until the exit code is
there; the first call starts it, since only one ``mkdir`` succeeds. ``SUPERVISE`` is started with it
and is root's. It runs the command as the agent in a session of its own, kills at the deadline even
if nobody calls any more, and writes the exit code last, however the command ended.

Invariant: an exit code is written when nothing of the agent's user runs any more. Whatever it did
(a new session, an emptied environment, a fork bomb), ``kill -1`` reaches it and root's processes
not. So a machine runs one command at a time.

Only ``sh``, coreutils and util-linux are needed inside. A shell cannot tell ``exit 137`` from a
SIGKILL; it is taken for the signal.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import shlex
import time
from dataclasses import dataclass

from runners.sandboxes.contract import TIMED_OUT, CommandResult, SandboxError
from runners.sandboxes.remote.machine import AGENT_ID, STATE, Machine

WAIT_S = 10
"""A call waits so long inside for the command's end, looking every 20 to 200 ms."""
CALL_S = 30.0
"""Beyond its wait, a call is lost after this."""
LATE_S = 60.0
"""The supervisor ends a command at its deadline; after this much more, the machine is lost."""
SUPERVISE_AT = f"{STATE}/supervise"
_MARK = b"agentrl-report\n"
"""What login profiles print comes before it."""
_SIGNALS = range(129, 129 + 64)
_ending: set[asyncio.Task[bytes]] = set()

DROP = (
    f"setpriv --reuid={AGENT_ID} --regid={AGENT_ID} --clear-groups "
    "--no-new-privs --bounding-set=-all --inh-caps=-all"
)
"""For good: with no_new_privs not even sudo gives rights back."""

KILL_ALL = f"{DROP} sh -c 'kill -KILL -1' 2>/dev/null"
"""Linux signals all at once, so that a fork bomb cannot run away, and spares the caller."""

SUPERVISE = f"""\
#!/bin/sh
# supervise DIRECTORY WORKDIR DEADLINE_S
directory=$1 workdir=$2 deadline=$3
umask 077
echo $$ > "$directory/pid"
end() {{
    trap '' EXIT HUP INT TERM
    {KILL_ALL}
    rm -f "$directory/command" "$directory/stdin"
    echo "$1" > "$directory/exit.new" && mv "$directory/exit.new" "$directory/exit"
    kill -KILL 0
}}
trap 'end lost' EXIT
trap 'exit 1' HUP INT TERM
cd -- "$workdir" || end 'no workdir'
[ -f "$directory/stdin" ] || : > "$directory/stdin"
# The watch is in the background, not the command: see --fork.
(
    trap - EXIT HUP INT TERM
    sleep "$deadline"
    : > "$directory/timed_out"
    exec {KILL_ALL}  # without a fork, which may fail where a fork bomb went off
) &
(
    trap - EXIT HUP INT TERM
    umask 022
    # The command's environment is not root's: its PATH may lead to programs of the agent.
    exec setsid {DROP} -- sh -c 'eval "$(cat <&3)"; exec "$@" 3<&-'
) < "$directory/stdin" > "$directory/stdout" 2> "$directory/stderr" 3< "$directory/command"
end $?
"""

ATTEND = """\
d={directory}
# --fork, not &: what a shell puts into the background ignores SIGINT and SIGQUIT for good.
mkdir "$d/started" 2>/dev/null &&
    setsid --fork sh {supervise} "$d" {workdir} {deadline} </dev/null >/dev/null 2>&1
looks=0
until [ -f "$d/exit" ] || [ "$looks" -ge {looks} ]; do
    [ "$looks" -lt 20 ] && sleep 0.02 || sleep 0.2
    looks=$((looks + 1))
done
echo agentrl-report
if [ ! -f "$d/exit" ]; then
    pid=$(cat "$d/pid" 2>/dev/null) || exit 0
    kill -0 "$pid" 2>/dev/null || [ -f "$d/exit" ] || echo lost
    exit 0
fi
cat "$d/exit"
[ -f "$d/timed_out" ] && echo timed_out || echo ended
for name in stdout stderr; do
    f="$d/$name"
    [ -f "$f" ] || : > "$f"
    size=$(wc -c < "$f")
    echo $size
    if [ $size -le {limit} ]; then
        base64 < "$f" | tr -d '\\n'; echo; echo
    else
        head -c {head} < "$f" | base64 | tr -d '\\n'; echo
        tail -c {tail} < "$f" | base64 | tr -d '\\n'; echo
    fi
done
"""

ABANDON = """\
d={directory}
mkdir -p "$d"
mkdir "$d/started" 2>/dev/null && {{ echo lost > "$d/exit"; exit 0; }}
looks=0
until [ -f "$d/exit" ] || [ "$looks" -ge 200 ]; do
    {kill_all}
    sleep 0.05
    looks=$((looks + 1))
done
true
"""


@dataclass(frozen=True, slots=True)
class Command:
    """What is run."""

    argv: list[str]
    env: dict[str, str]
    workdir: str
    stdin: bytes
    deadline_s: float
    output_limit: int


async def execute(machine: Machine, command: Command) -> CommandResult:
    """Run a command to its end or deadline; cancellation kills it. Raises SandboxError."""
    directory = f"{STATE}/runs/{secrets.token_hex(8)}"
    try:
        await machine.put(f"{directory}/command", _source(command))
        if command.stdin:
            await machine.put(f"{directory}/stdin", command.stdin)
        return await _attend(machine, command, directory)
    except BaseException:
        await _abandon(machine, directory)
        raise


async def _attend(machine: Machine, command: Command, directory: str) -> CommandResult:
    """Call until there is a result."""
    tail = command.output_limit // 2
    script = ATTEND.format(
        directory=directory,
        supervise=SUPERVISE_AT,
        workdir=shlex.quote(command.workdir),
        deadline=f"{command.deadline_s:g}",
        looks=20 + 5 * WAIT_S,
        limit=command.output_limit,
        head=command.output_limit - tail,
        tail=tail,
    )
    started = time.monotonic()
    while True:
        said = await machine.sh(script, deadline_s=WAIT_S + CALL_S)
        spent = time.monotonic() - started
        result = read_report(said, spent)
        if result is not None:
            return result
        if spent > command.deadline_s + LATE_S:
            raise SandboxError(f"a command did not end {LATE_S:.0f} s after its deadline")


async def _abandon(machine: Machine, directory: str) -> None:
    """Kill a command that nobody waits for; cancelling the caller does not stop this."""
    script = ABANDON.format(directory=directory, kill_all=KILL_ALL)
    task = asyncio.ensure_future(machine.sh(script, deadline_s=CALL_S))
    _ending.add(task)
    task.add_done_callback(_ending.discard)
    try:
        await asyncio.shield(task)
    except SandboxError:
        return  # whoever closes the sandbox ends the machine


def _source(command: Command) -> bytes:
    """Return what the agent's shell reads: environment and arguments, secrets among them."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in command.env.items()]
    text = "\n".join([*exports, f"set -- {shlex.join(command.argv)}", ""])
    return text.encode("utf-8", "surrogateescape")


def read_report(said: bytes, spent_s: float) -> CommandResult | None:
    """Return what ``ATTEND`` says of a command, None while it runs; raises SandboxError."""
    lines = said.partition(_MARK)[2].decode("ascii", "replace").split("\n")
    if lines == [""]:
        return None
    if not lines[0].isdigit():
        raise SandboxError(f"a command's supervisor says: {lines[0] or 'nothing'}")
    try:
        code, ending, *streams, _ = lines
        stdout, stderr = _output(*streams[:3]), _output(*streams[3:])
    except (ValueError, TypeError) as error:
        raise SandboxError(f"a command's report is cut short after {len(said)} bytes") from error
    if ending == "timed_out":
        return CommandResult(TIMED_OUT, stdout, stderr, spent_s, timed_out=True)
    exit_code = int(code)
    exit_code = 128 - exit_code if exit_code in _SIGNALS else exit_code
    return CommandResult(exit_code, stdout, stderr, spent_s)


def _output(size: str, head: str, tail: str) -> bytes:
    kept = [base64.b64decode(part, validate=True) for part in (head, tail)]
    left_out = int(size) - sum(map(len, kept))
    note = b"\n[%d bytes left out]\n" % left_out if left_out else b""
    return kept[0] + note + kept[1]
