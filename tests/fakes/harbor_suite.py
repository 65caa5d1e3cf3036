"""A suite of twenty Harbor tasks that sandboxes without images can run; each shows one feature.

Every task is solved by its solution, and by nothing less.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.fakes.harbor_tasks import SOLVE, TEST, toml, write_task

Changes = Mapping[str, str | bytes | None]
CHECK = "[ \"$(tr -d '[:space:]' < /app/answer.txt 2>/dev/null)\" = 3 ]"
JSON = f"""\
#!/bin/bash
reward=0
{CHECK} && reward=1
printf '{{"reward": %s, "seconds": 0.5}}' $reward > /logs/verifier/reward.json
"""
BOTH = f"#!/bin/bash\nif {CHECK}; then r=1; else r=0; fi\necho 1 > /logs/verifier/reward.txt\n"
PYTHON = """\
#!/usr/bin/env python3
import json, os, pathlib
try:
    answer = pathlib.Path("/app/answer.txt").read_text().strip()
except OSError:
    answer = ""
data = pathlib.Path("/tests/fixtures/deep/data.bin").read_bytes()
share = float(answer == str(len(data)))
json.dump({"reward": share}, open("/logs/verifier/reward.json", "w"))
"""
SEPARATE = 'timeout_sec = 60.0\nenvironment_mode = "separate"'
DECIDE = "then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
WITH_PYTEST = f"#!/bin/bash\nif python -m pytest -q /tests/test_answer.py >&2; {DECIDE}"
PYTEST = "def test_answer():\n    assert open('/app/answer.txt').read().strip() == '3'\n"
SOURCED = "#!/bin/bash\nsource /tests/part.sh\necho 0 > /logs/verifier/reward.txt\n"
PART = f"if {CHECK}; {DECIDE}exit 7\n"
ENV_CHECK = f"#!/bin/bash\nif {CHECK} && [ $LIMIT = 5 ] && [ $PLACE = here ]; {DECIDE}"
ALONE = f"#!/bin/bash\nif {CHECK} && [ $(grep -c : /proc/net/dev) = 1 ]; {DECIDE}"
"""Wants no network device but the loopback."""
OUT = f"#!/bin/bash\nif grep -qx 3 /app/out.txt 2>/dev/null; {DECIDE}"

SUITE: Mapping[str, Changes] = {
    "01-reward-text": {},
    "02-reward-json": {"tests/test.sh": JSON},
    "03-json-wins-over-text": {
        "tests/test.sh": BOTH + "echo '{\"reward\": '$r'}' > /logs/verifier/reward.json\n"
    },
    "04-exit-code-is-not-looked-at": {"tests/test.sh": TEST + "exit 1\n"},
    "05-exit-in-a-sourced-file": {"tests/test.sh": SOURCED, "tests/part.sh": PART},
    "06-python-without-x-bit": {
        "tests/test.sh": PYTHON,
        "tests/fixtures/deep/data.bin": b"\0\xff\r",
    },
    "07-no-shebang": {"tests/test.sh": TEST.partition("\n")[2]},
    "08-old-keys": {
        "task.toml": 'version = "1.0"\n[environment]\nmemory = "256M"\nallow_internet = false\n'
    },
    "09-separate-verifier": {
        "task.toml": toml(top='artifacts = ["/app/answer.txt"]', verifier=SEPARATE)
    },
    "10-artifact-directory": {
        "task.toml": toml(
            top='artifacts = [{ source = "/app", destination = "results", exclude = ["*.md"] }]',
            verifier=SEPARATE,
        ),
        "tests/test.sh": OUT.replace("if grep", "if [ ! -e /app/x.md ] && grep"),
        "solution/solve.sh": "#!/bin/bash\nwc -l < words.txt > out.txt; touch x.md\n",
    },
    "11-logs-artifacts-are-carried": {
        "task.toml": toml(verifier=SEPARATE),
        "tests/test.sh": OUT.replace("/app/", "/logs/artifacts/"),
        "solution/solve.sh": "#!/bin/bash\nwc -l < words.txt > /logs/artifacts/out.txt\n",
    },
    "12-variables": {
        "task.toml": toml(
            verifier='timeout_sec = 60.0\nenv = { LIMIT = "${LIMIT:-5}" }',
            environment='env = { PLACE = "here" }',
            solution='env = { NUMBER = "3" }',
        ),
        "tests/test.sh": ENV_CHECK,
        "solution/solve.sh": "#!/bin/bash\necho $NUMBER > /app/answer.txt\n",
    },
    "13-workdir-of-its-own": {
        "task.toml": toml(environment='workdir = "/box/inner"'),
        "environment/Dockerfile": "FROM python:3.12\nWORKDIR /box\nCOPY words.txt /box/inner/w\n",
        "tests/test.sh": TEST.replace("/app/", "/box/inner/"),
        "solution/solve.sh": "#!/bin/bash\nwc -l < w > answer.txt\n",
    },
    "14-files-elsewhere": {
        "environment/Dockerfile": (
            "FROM debian:12\nENV DATA=/data/in\nWORKDIR /app\nCOPY words.txt $DATA/\n"
            "COPY more /data/more\n"
        ),
        "environment/more/a.txt": "a\n",
        "solution/solve.sh": "wc -l < $DATA/words.txt > answer.txt; cat /data/more/a.txt\n",
    },
    "15-prebuilt-image-and-files": {
        "task.toml": toml(environment='docker_image = "python:3.12-slim"'),
        "environment/Dockerfile": None,
    },
    "16-networks-of-phases": {
        "task.toml": toml(
            agent='network_mode = "allowlist"\nallowed_hosts = ["example.com"]',
            verifier='timeout_sec = 60.0\nnetwork_mode = "no-network"',
            environment='network_mode = "public"',
        ),
        "tests/test.sh": ALONE,
    },
    "17-healthcheck": {
        "task.toml": toml(
            verifier='timeout_sec = 60.0\nnetwork_mode = "public"',
            environment='network_mode = "no-network"',
            environment_healthcheck='command = "test -f /app/words.txt"',
        )
    },
    "18-pytest": {"tests/test.sh": WITH_PYTEST, "tests/test_answer.py": PYTEST},
    "19-partial-credit": {
        "tests/test.sh": TEST.replace("echo 0;", "echo 0.5;"),
    },
    "20-users": {
        "task.toml": toml(
            agent="user = 1000",
            verifier='user = "root"\ntimeout_sec = 60.0',
            environment="cpus = 2",
        ),
        "solution/solve.sh": SOLVE,
    },
}


def write_suite(root: Path) -> Path:
    """Write the suite."""
    for name, changes in SUITE.items():
        write_task(root / name, changes)
    return root
