"""Look into a sandbox whose agent has ended, by a script of ours.

The script is a check, not a command: a command would be given the way to the gateway, whose session
has ended too.

What is looked for are symbolic links by which an agent would have the verifier read the tests as
its own answer. The tests are put at their place after the agent has ended, so a link to them leads
nowhere before, and a task's own files have none. ``answer.txt -> /tests/expected.txt`` would pass
any comparison.
"""

from __future__ import annotations

import posixpath
import shlex

from runners.sandboxes.contract import CheckCommand, CommandResult, Sandbox, SandboxError

OUTPUT = "/logs/verifier"
"""Directory that every check has for itself."""
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH without the image's own directories, in which an agent may have put programs."""
SEARCH_S = 60.0
LIMIT = 8 << 20
PRINT = 'for link; do printf "%s\\0%s\\0" "$link" "$(readlink "$link")"; done'
"""Prints links and their targets; busybox has no ``find -printf``."""
GUARDED = "/tests"


async def inspect(
    sandbox: Sandbox, script: str, *, deadline_s: float, output_limit: int = 65536
) -> CommandResult:
    """Run a shell script with the verifier's rights; raises SandboxError and OversizedError."""
    check = CheckCommand(
        argv=["sh", "-c", script],
        files={},
        output=OUTPUT,
        reads=(),
        deadline_s=deadline_s,
        env={"PATH": SYSTEM_PATH},
        output_limit=output_limit,
    )
    return (await sandbox.run_check(check)).result


async def find_planted_link(sandbox: Sandbox) -> str:
    """Return ``LINK leads to TARGET`` for a link to the tests; "" if there is none.

    Raises SandboxError. Places are those that the agent can write.
    """
    places = [sandbox.workdir, *sandbox.spec.trees, "/tmp", "/var/tmp", "/dev/shm", "/home"]
    words = shlex.join(dict.fromkeys(places))
    script = f"exec find {words} -type l -exec sh -c '{PRINT}' sh {{}} + 2>/dev/null"
    done = await inspect(sandbox, script, deadline_s=SEARCH_S, output_limit=LIMIT)
    if done.exit_code < 0:
        raise SandboxError(f"the search for links was ended by signal {-done.exit_code}")
    if done.timed_out or len(done.stdout) >= LIMIT:
        return "its symbolic links are too many to be looked at"
    words_found = done.stdout.decode(errors="replace").split("\0")
    for link, target in zip(words_found[::2], words_found[1::2], strict=False):
        if leads_to_tests(link, target):
            return f"{link} leads to {target}"
    return ""


def leads_to_tests(link: str, target: str) -> bool:
    """Return whether a link leads to the tests, or to a directory through which they are reached.

    >>> leads_to_tests("/app/a", "../tests/x"), leads_to_tests("/app/a", "/")
    (True, True)
    >>> leads_to_tests("/app/a", "tests/x"), leads_to_tests("/app/a", "/proc/self/root")
    (False, True)
    """
    at = "/" + posixpath.normpath(posixpath.join(posixpath.dirname(link), target)).lstrip("/")
    return at in ("/", GUARDED) or at.startswith((f"{GUARDED}/", "/proc/"))
