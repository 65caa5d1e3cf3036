"""The console script ``agentrl``: answer a TAB, or run a command; turn a last error into an exit
code.

What a command needs is imported when it runs: a TAB and ``agentrl --help`` are waited for.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from io import TextIOWrapper

from cli.complete_line import print_completions
from cli.complete_words import VARIABLE


def main(arguments: list[str] | None = None) -> None:
    """Run ``agentrl ARGUMENTS…``, by default those of this process; raises SystemExit."""
    if arguments is None and (line := os.environ.get(VARIABLE)) is not None:
        print_completions(line)
        return
    from cli.app import app
    from cli.invocation import Invocation, keep_stdout_for_json

    # Known before the arguments are parsed, so that every later error can be printed as JSON.
    words = sys.argv[1:] if arguments is None else arguments
    own = words[: words.index("--")] if "--" in words else words  # the rest is a program's
    json = "--json" in own
    invocation = Invocation(json=json)
    # A path may contain bytes that are not UTF-8, and a terminal may have another encoding.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with keep_stdout_for_json() if json else nullcontext():
            try:
                # typer would print its own errors, about options and arguments, as text alone
                code = app(arguments, prog_name="agentrl", obj=invocation, standalone_mode=not json)
                sys.exit(code if isinstance(code, int) else 0)
            except Exception as error:  # the top of the process
                invocation.fail(error)
    except SystemExit as end:
        if arguments is None:
            _leave_threads(end)
        raise


def _leave_threads(end: SystemExit) -> None:
    """End the process here if a call still goes on that was left to itself, as torch's may."""
    calls = sys.modules.get("runners.system.concurrency.daemon_thread")
    if calls is None or not calls.is_one_left():
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(end.code if isinstance(end.code, int) else 1 if end.code else 0)


if __name__ == "__main__":
    main()
