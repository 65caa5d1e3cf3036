"""Images of task sets for the stand-in of ``docker``: scripts that make a small repository in the
layout of each set, and a layer with the image's own pytest.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from runners.sandboxes.remote.setup import HOME
from runners.tasks.pytest_mounts import NEEDED

IDENTITY = " ".join(
    f"GIT_{role}_{key}=a@b GIT_{role}_DATE='2024-01-01T00:00:00Z'"
    for role in ("AUTHOR", "COMMITTER")
    for key in ("NAME", "EMAIL")
)
BROKEN = "def add(a, b):\n    return a - b\n"
RIGHT = "def add(a, b):\n    return a + b\n"
TEST = "from calc import add\n\ndef test_add():\n    assert add(2, 1) == 3\n"


def put(text: str, path: str) -> str:
    """Return a command that writes a text, which ends its last line, to a file."""
    return f"cat > {path} <<'END_OF_FILE'\n{text}END_OF_FILE"


def make_image(workdir: str, *, calc: str = BROKEN, more: str = "", files: str = "") -> str:
    """Return a script that makes an image with a repository at ``workdir``.

    ``files`` runs before the only commit there, ``more`` after it.
    """
    return f"""
set -e
export {IDENTITY}
mkdir -p {workdir}
cd {workdir}
git init -q .
{put(calc, "calc.py")}
echo '*.so' > .gitignore
{files}
git add -A
git commit -qm base
git commit -q --allow-empty -m environment
echo built > built.so
mkdir -p node_modules/dep
echo installed > node_modules/dep/index.js
{more}
"""


def choose_image(scripts: Mapping[str, str]) -> str:
    """Return the script that makes each of several images, by the name of the image."""
    cases = "\n".join(
        f"{shlex.quote(name)})\n(\n{script}\n) ;;" for name, script in scripts.items()
    )
    return f'case "$1" in\n{cases}\n*) echo "there is no image $1" >&2; exit 1 ;;\nesac\n'


def write_pytest_layer(layer: Path) -> None:
    """Write a layer with pytest in the home of the user that agents and tests are."""
    site = layer / HOME.strip("/") / ".local/lib"
    site /= "python{}.{}/site-packages".format(*sys.version_info[:2])
    site.mkdir(parents=True)
    for name in NEEDED:
        module = sys.modules.get(name) or __import__(name)
        shutil.copytree(Path(str(module.__file__)).parent, site / name)
