"""Run a SWE-bench-Pro parser on the tests' output; runs in the grading sandbox.

Runs as ``python -I -S pro_parser.py``, after the tests' processes are gone. Stdin is JSON with
``parser`` (its source), ``stdout`` and ``stderr``; stdout is the JSON that the parser wrote. It
ends by the signal that ended the parser.
"""

# ruff: noqa: PTH118, PTH123 (pathlib takes 4 ms to import)

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile


def main() -> None:
    """Write everything to files, run the parser, print its result; exit with its code."""
    given = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as scratch:
        path = {
            name: os.path.join(scratch, name)
            for name in ("parser.py", "stdout.log", "stderr.log", "result.json")
        }
        for name in list(path)[:3]:
            with open(path[name], "w", encoding="utf-8") as file:
                file.write(given[name.partition(".")[0]])
        command = [sys.executable, "-I", *path.values()]
        done = subprocess.run(command, cwd=scratch, stdout=2, check=False)
        if done.returncode < 0:  # the grader is to know, too
            os.kill(os.getpid(), -done.returncode)
        if done.returncode:
            sys.exit(done.returncode)
        with open(path["result.json"], encoding="utf-8") as file:
            sys.stdout.write(file.read())


if __name__ == "__main__":
    main()
