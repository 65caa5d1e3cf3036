"""Run mini-swe-agent inside a sandbox: its own command ``mini``, told not to ask anybody.

The package is on this process's path only: a variable would put it on that of the repository's
programs too. The task comes on stdin; the last line of stdout is a JSON object with how it ended.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

KEY = "AGENTRL_API_KEY"


def main(packages: str, settings: list[str]) -> int:
    """Work on the task; return the exit code."""
    sys.path.append(packages)
    key = os.environ.pop(KEY)  # the commands that it runs need none
    from minisweagent import __version__
    from minisweagent.run.mini import main as mini

    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "trajectory.json"
        raised = ""
        try:
            mini(
                model_name=None,
                model_class=None,
                agent_class="default",
                environment_class="local",
                task=sys.stdin.read(),
                yolo=False,
                cost_limit=None,
                config_spec=[*settings, f"model.model_kwargs.api_key={json.dumps(key)}"],
                output=output,
                exit_immediately=True,
            )
        except Exception as error:  # a process's top: why it ended is its result
            raised = f"{type(error).__name__}: {error}"
        said = _said(output)
    said["version"], said["error"] = __version__, raised.replace(key, "***")
    print(json.dumps(said))
    return 1 if raised else 0


def _said(output: Path) -> dict[str, Any]:
    """Return what its own record says of the end."""
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
