"""Put the stand-in for ``docker`` on PATH."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NEEDED = ("bwrap", "nsenter", "setpriv")


def can_stand_in() -> bool:
    """Return whether this machine can stand in for an engine."""
    return os.geteuid() == 0 and all(shutil.which(name) for name in NEEDED)


@contextmanager
def docker_program(
    directory: Path, *, image: str = "", layer: Path | None = None, internal: str = ""
) -> Iterator[None]:
    """Put the stand-in on PATH; ``image`` is a script that makes the files of its image,
    whose name is its first argument.

    ``layer`` is a folder of files that the image has before. ``internal`` names a network that was
    made with ``--internal``.
    """
    directory.mkdir()
    program = directory / "docker"
    text = Path(__file__).with_name("program.py").read_text()
    program.write_text(f"#!{sys.executable} -IS\n{text}")
    program.chmod(0o755)
    if image:
        (directory / "image").write_text(image)
    if layer is not None:
        (directory / "layer").symlink_to(layer)
    (directory / "internal").write_text(internal)
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{directory}:{before}"
    try:
        yield
    finally:
        os.environ["PATH"] = before
        left = [path.name for path in (directory / "containers").glob("*")]
        if left:
            subprocess.run([program, "rm", "--force", *left], check=True, capture_output=True)
        assert not left, "containers were left"
        assert not list((directory / "images").glob("*/labels.json")), "committed images were left"
