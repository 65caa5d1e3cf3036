"""Put the stand-in for ``apptainer`` on PATH."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NEEDED = ("bwrap", "nsenter", "setpriv", "unshare", "mount")


def can_stand_in() -> bool:
    """Return whether this machine can stand in for Apptainer."""
    return os.geteuid() == 0 and all(shutil.which(name) for name in NEEDED)


@contextmanager
def apptainer_program(directory: Path, *, image: str = "") -> Iterator[None]:
    """Put the stand-in on PATH; ``image`` is a script that makes the files of its images."""
    directory.mkdir()
    program = directory / "apptainer"
    text = Path(__file__).with_name("program.py").read_text()
    program.write_text(f"#!{sys.executable} -IS\n{text}")
    program.chmod(0o755)
    if image:
        (directory / "image").write_text(image)
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{directory}:{before}"
    os.environ["APPTAINER_CONFIGDIR"] = str(directory / "config")
    try:
        yield
    finally:
        left = list_instances()
        if left:
            subprocess.run([program, "instance", "stop", "--force", "--all"], check=True)
        os.environ["PATH"] = before
        del os.environ["APPTAINER_CONFIGDIR"]
        logs = [file for file in (directory / "config").rglob("*") if file.is_file()]
        assert not logs, f"logs were left: {logs}"
        assert not left, f"instances were left: {left}"


def list_instances() -> list[str]:
    """Return the names of the instances that run."""
    argv = ["apptainer", "instance", "list", "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return [each["instance"] for each in json.loads(done.stdout)["instances"]]
