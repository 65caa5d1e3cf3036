"""Write the table of slime's flags: ``python -m launch.pack_flags SOURCE``.

SOURCE is a JSON dump of the real argparse parsers: by flag its ``kind`` (bool, scalar, list),
``nargs``, ``type`` and ``choices``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from launch.flags import TABLE

_TYPES = {"int": "int", "float": "float", "loads": "json"}


def pack(source: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """Return one row per flag: arity, type, then the choices."""
    return {name: _row(source[name]) for name in sorted(source)}


def _row(flag: dict[str, Any]) -> list[str]:
    arity = "0" if flag["kind"] == "bool" else str(flag["nargs"] or 1)
    # The command line takes the name of an enum's member: flash, not AttnBackend.flash.
    choices = [str(choice).rpartition(".")[2] for choice in flag["choices"] or ()]
    if flag["type"] in ("str", None):
        choices = [str(choice) for choice in flag["choices"] or ()]
    return [arity, _TYPES.get(str(flag["type"]), "str"), *choices]


def main() -> None:
    """Write the table to ``slime_flags.json``."""
    source = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    rows = (f"{json.dumps(name)}: {json.dumps(row)}" for name, row in pack(source).items())
    TABLE.write_text("{\n" + ",\n".join(rows) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main()
