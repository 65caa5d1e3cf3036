"""Run commands on a machine that answers only short calls, each of which may be lost or repeated.

The host writes the command into a directory of its own and calls ``ATTEND`` until the exit code is
there. The first call starts the command: of two calls only one succeeds in ``mkdir``. ``SUPERVISE``
runs the command. It belongs to root, starts the command as the agent's user in a new session, kills
it at the deadline even if the host calls no more, and writes the exit code last, however the
command ended.

Invariant: the exit code is written when no process of the agent's user is left. Whatever a process
did (a new session, an empty environment, a fork bomb), ``kill -1`` by its user reaches it, and none
of root's. So a machine runs one command at a time.

Only ``sh``, coreutils and util-linux are needed inside. A shell cannot tell ``exit 137`` from
SIGKILL; 137 is taken for the signal.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import shlex
import time
from dataclasses import dataclass

from runners.sandboxes.contract import TIMED_OUT, CommandResult, SandboxError, join_output
from runners.sandboxes.remote.machine import AGENT_ID, STATE, BusyError, Machine

WAIT_S = 10
"""Time for which one call waits inside for the command to end, checking every 20 to 200 ms."""
CALL_S = 30.0
"""Time after its wait at which a call counts as lost."""
LATE_S = 60.0
"""Time after a command's deadline at which the machine counts as lost: its supervisor is gone."""
BUSY_S = 0.5
"""Time between calls while the machine can start no process."""
SUPERVISE_AT = f"{STATE}/supervise"
_REPORT_START = b"agentrl-report\n"
"""First line of a report; login profiles may print something before it."""
_SIGNALS = range(129, 129 + 64)
"""Exit codes by which a shell says that a signal ended a command: 128 + its number."""
_abandoning: set[asyncio.Task[bytes]] = set()

DROP = (
    f"setpriv --reuid={AGENT_ID} --regid={AGENT_ID} --clear-groups "
    "--no-new-privs --bounding-set=-all --inh-caps=-all"
)
"""Become the agent's user for good: with no_new_privs, not even sudo gives rights back."""

KILL_ALL = f"{DROP} sh -c 'kill -KILL -1' 2>/dev/null"
"""Kill everything of the agent's user. kill(-1) signals all processes in one system call, so a fork
bomb cannot outrun it, and Linux spares the caller.
"""

LEADER = """sh -c 'echo $PPID' > "$directory/leader\""""
"""Write down the process that becomes the command: setsid makes it the leader of a session."""

KILL_SESSION = """\
leader=$(cat "$directory/leader" 2>/dev/null) || leader=none
    looks=0 left=yes
    while [ -n "$left" ] && [ "$looks" -lt 50 ]; do
        left='' looks=$((looks + 1))
        for stat in /proc/[0-9]*/stat; do
            { read -r line < "$stat"; } 2>/dev/null || continue
            set -- ${line##*) }
            [ "$4" = "$leader" ] && [ "$1" != Z ] || continue
            number=${stat#/proc/}
            kill -KILL "${number%/stat}" 2>/dev/null && left=yes
        done
    done"""
"""Kill the session of a check. It is root's, so kill(-1) would end the machine too; a process that
left the session stays until the machine ends.
"""


def _write_supervisor(
    drop: str, kill: str, at_deadline: str, *, head: str = "", before: str = ":"
) -> str:
    """Return the supervisor's script; ``drop`` becomes the command's user, ``kill`` ends it.

    ``at_deadline`` runs in the watchdog, also at signal USR1.

    ``before`` runs in the process that becomes the command, ``head`` when the supervisor starts.
    """
    return f"""\
#!/bin/sh
# supervise DIRECTORY WORKDIR DEADLINE_S
directory=$1 workdir=$2 deadline=$3 watchdog=
umask 077
{head}
# Renamed: a call that read the file between its creation and the write would find no pid in it,
# and take this process for dead.
echo $$ > "$directory/pid.new" && mv "$directory/pid.new" "$directory/pid"
# No fork in here for an agent's command: it may have taken all processes of a container.
end() {{
    trap '' EXIT HUP INT TERM
    code=$1
    {kill}
    : > "$directory/command"
    : > "$directory/stdin"
    echo "$code" > "$directory/exit"
    kill -KILL 0
}}
trap 'end lost' EXIT
trap 'exit 1' HUP INT TERM
cd -- "$workdir" || end 'no workdir'
[ -f "$directory/stdin" ] || : > "$directory/stdin"
# The watchdog is in the background, not the command: see --fork in ATTEND.
(
    trap - EXIT HUP INT TERM
    stop() {{
        {at_deadline}
    }}
    trap stop USR1
    # A shell handles a signal while it waits, not while a command in the foreground runs.
    sleep "$deadline" &
    wait $!
    : > "$directory/timed_out"
    stop
) &
watchdog=$!
(
    trap - EXIT HUP INT TERM
    umask 022
    {before}
    # The command sets its environment itself, after the drop: its PATH may lead to programs that
    # the agent wrote, and no process of root must look there.
    exec setsid {drop} -- sh -c 'eval "$(cat <&3)"; exec "$@" 3<&-'
) < "$directory/stdin" > "$directory/stdout" 2> "$directory/stderr" 3< "$directory/command"
end $?
"""


# The watchdog becomes what kills, as a fork may fail where a fork bomb went off.
SUPERVISE = _write_supervisor(
    DROP,
    f"""\
if [ -n "$watchdog" ]; then
        kill -USR1 "$watchdog" 2>/dev/null
        wait "$watchdog"
        # Killed itself, perhaps before it could handle the signal.
        [ $? -lt 128 ] || {KILL_ALL}
    fi""",
    # Ignored from here on: the signal for the command's end must not stop what kills.
    f"trap '' USR1\n        exec {KILL_ALL}",
)


def write_check_supervisor(user: str | None) -> str:
    """Return the supervisor of a check: root's, or of another user, by name or number."""
    head, drop = "", "setpriv --no-new-privs"
    if not is_root(user):
        head = "\n".join(
            f"{name}=$(id -{name[0]} {user} 2>/dev/null || echo {user})" for name in ("uid", "gid")
        )
        rights = "--clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all"
        drop = f'setpriv --reuid="$uid" --regid="$gid" {rights}'
    return _write_supervisor(drop, KILL_SESSION, KILL_SESSION, head=head, before=LEADER)


def is_root(user: str | None) -> bool:
    """Return whether a check's user is root."""
    return user in (None, "root", "0")


ATTEND = """\
d={directory}
# --fork, not &: what a shell puts into the background ignores SIGINT and SIGQUIT for good.
mkdir "$d/started" 2>/dev/null &&
    setsid --fork sh {supervisor} "$d" {workdir} {deadline} </dev/null >/dev/null 2>&1
looks=0
until [ -s "$d/exit" ] || [ "$looks" -ge {looks} ]; do
    [ "$looks" -lt 20 ] && sleep 0.02 || sleep 0.2
    looks=$((looks + 1))
done
echo agentrl-report
if [ ! -s "$d/exit" ]; then
    pid=$(cat "$d/pid" 2>/dev/null) || exit 0
    kill -0 "$pid" 2>/dev/null || [ -s "$d/exit" ] || echo lost
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
until [ -s "$d/exit" ] || [ "$looks" -ge 200 ]; do
    {kill_all}
    sleep 0.05
    looks=$((looks + 1))
done
true
"""


@dataclass(frozen=True, slots=True)
class DetachedCommand:
    """A command for a machine; fields as in ``Sandbox.run``."""

    argv: list[str]
    env: dict[str, str]
    workdir: str
    stdin: bytes
    deadline_s: float
    output_limit: int
    supervisor: str = SUPERVISE_AT
    """Path of the script that runs it."""


async def run_detached(machine: Machine, command: DetachedCommand) -> CommandResult:
    """Run a command to its end or deadline; cancellation kills it. Raises SandboxError."""
    directory = f"{STATE}/runs/{secrets.token_hex(8)}"
    try:
        await machine.write_file(f"{directory}/command", _source(command))
        if command.stdin:
            await machine.write_file(f"{directory}/stdin", command.stdin)
        return await _attend(machine, command, directory)
    except BaseException:
        await _abandon(machine, directory)
        raise


async def _attend(machine: Machine, command: DetachedCommand, directory: str) -> CommandResult:
    """Call ``ATTEND`` until there is a result."""
    tail = command.output_limit // 2
    script = ATTEND.format(
        directory=directory,
        supervisor=command.supervisor,
        workdir=shlex.quote(command.workdir),
        deadline=f"{command.deadline_s:g}",
        looks=20 + 5 * WAIT_S,
        limit=command.output_limit,
        head=command.output_limit - tail,
        tail=tail,
    )
    started = time.monotonic()
    while True:
        try:
            report = await machine.run_script(script, deadline_s=WAIT_S + CALL_S)
        except BusyError:
            # The command may have taken all processes or memory of its machine, until its end.
            if time.monotonic() - started > command.deadline_s + LATE_S:
                raise
            await asyncio.sleep(BUSY_S)
            continue
        elapsed = time.monotonic() - started
        result = read_report(report, elapsed)
        if result is not None:
            return result
        if elapsed > command.deadline_s + LATE_S:
            raise SandboxError(f"a command did not end {LATE_S:.0f} s after its deadline")


async def _abandon(machine: Machine, directory: str) -> None:
    """Kill a command that nobody waits for any more; cancelling the caller does not stop this."""
    script = ABANDON.format(directory=directory, kill_all=KILL_ALL)
    task = asyncio.ensure_future(machine.run_script(script, deadline_s=CALL_S))
    _abandoning.add(task)
    task.add_done_callback(_abandoning.discard)
    try:
        await asyncio.shield(task)
    except SandboxError:
        return  # the sandbox will be closed, and that ends the machine


def _source(command: DetachedCommand) -> bytes:
    """Return the text that the agent's shell evaluates: environment and arguments.

    It goes by a file, not an argument: secrets are in it, and arguments are visible in /proc.
    """
    exports = [f"export {name}={shlex.quote(value)}" for name, value in command.env.items()]
    text = "\n".join([*exports, f"set -- {shlex.join(command.argv)}", ""])
    return text.encode("utf-8", "surrogateescape")


def read_report(output: bytes, duration_s: float) -> CommandResult | None:
    """Return the result in what ``ATTEND`` printed, None while the command runs.

    Raises SandboxError if the supervisor is gone, or the report is cut off.
    """
    lines = output.partition(_REPORT_START)[2].decode("ascii", "replace").split("\n")
    if lines == [""]:
        return None
    if not lines[0].isdigit():
        raise SandboxError(f"a command's supervisor reports: {lines[0] or 'nothing'}")
    try:
        code, ending, *streams, _ = lines
        stdout, stderr = _decode_output(*streams[:3]), _decode_output(*streams[3:])
    except (ValueError, TypeError) as error:
        raise SandboxError(f"a command's report is cut short after {len(output)} bytes") from error
    if ending == "timed_out":
        return CommandResult(TIMED_OUT, stdout, stderr, duration_s, timed_out=True)
    exit_code = int(code)
    exit_code = 128 - exit_code if exit_code in _SIGNALS else exit_code
    return CommandResult(exit_code, stdout, stderr, duration_s)


def _decode_output(size: str, head: str, tail: str) -> bytes:
    first, last = (base64.b64decode(part, validate=True) for part in (head, tail))
    return join_output(first, last, int(size) - len(first) - len(last))
