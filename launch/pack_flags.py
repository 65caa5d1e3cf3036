"""Write the packaged flag table: ``python -m launch.pack_flags SOURCE``.

SOURCE is what the real parsers say, as JSON: by flag ``kind`` (bool, scalar, list), ``nargs``,
``type`` and ``choices`` of argparse.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from launch.flags import TABLE

_TYPES = {"int": "int", "float": "float", "loads": "json"}


def packed(source: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """Return the columns that are checked: arity, type, then the choices."""
    return {name: _row(source[name]) for name in sorted(source)}


def _row(flag: dict[str, Any]) -> list[str]:
    arity = "0" if flag["kind"] == "bool" else str(flag["nargs"] or 1)
    # An enum's choice is written by its name: flash, not AttnBackend.flash.
    choices = [str(choice).rpartition(".")[2] for choice in flag["choices"] or ()]
    if flag["type"] in ("str", None):
        choices = [str(choice) for choice in flag["choices"] or ()]
    return [arity, _TYPES.get(str(flag["type"]), "str"), *choices]


def main() -> None:
    """Write the table beside this module."""
    source = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    rows = (f"{json.dumps(name)}: {json.dumps(row)}" for name, row in packed(source).items())
    TABLE.write_text("{\n" + ",\n".join(rows) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main()
