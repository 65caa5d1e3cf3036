"""Run mini-swe-agent inside a sandbox: its own command ``mini``, set to ask nobody.

``python -I -S start.py PACKAGES SETTINGS``; the task comes on stdin, and the last line of stdout is
a JSON object with the end. Only this process has the package on its path: ``PYTHONPATH`` would put
it on the path of the repository's programs too.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

KEY = "AGENTRL_API_KEY"
PR_SET_DUMPABLE = 4


def main(packages: str, settings: list[str]) -> int:
    """Work on the task; return the exit code."""
    sys.path.append(packages)
    key = os.environ.pop(KEY)  # the commands that it runs need none, nor find it in /proc
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    import litellm
    from minisweagent import __version__
    from minisweagent.run.mini import main as mini

    # Not among the settings: it prints those, and writes them to a file that its commands can read.
    litellm.api_key = key
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "trajectory.json"
        error_text = ""
        try:
            mini(
                model_name=None,
                model_class=None,
                agent_class="default",
                environment_class="local",
                task=sys.stdin.read(),
                yolo=False,
                cost_limit=None,
                config_spec=settings,
                output=output,
                exit_immediately=True,
            )
        except Exception as error:  # top of the process: the error is part of the result
            error_text = f"{type(error).__name__}: {error}"
        end = _read_end(output)
    end["version"], end["error"] = __version__, error_text.replace(key, "***")
    print(json.dumps(end))
    return 1 if error_text else 0


def _read_end(output: Path) -> dict[str, Any]:
    """Return the end according to its own trajectory file."""
    if not output.exists():
        return {"exit_status": "", "submission": "", "turns": None}
    info = json.loads(output.read_text())["info"]
    return {
        "exit_status": info["exit_status"],
        "submission": info["submission"],
        "turns": info["model_stats"]["api_calls"],
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], json.loads(sys.argv[2])))
