"""Writes or checks the published JSON schemas, which are generated from pydantic models.

python -m runners.campaigns.schema            # write them
python -m runners.campaigns.schema --check    # exit status 1 if one is not up to date
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from pydantic import BaseModel

from runners.campaigns.evaluation.report import EvaluationReport
from runners.observe.export.sft import MessagesLine, TokensLine
from runners.observe.export.trajectory import Trajectory

_RUNNERS = Path(__file__).parents[1]
SCHEMAS: dict[Path, type[BaseModel]] = {
    _RUNNERS / "export" / "trajectory.schema.json": Trajectory,
    _RUNNERS / "export" / "sft_messages.schema.json": MessagesLine,
    _RUNNERS / "export" / "sft_tokens.schema.json": TokensLine,
    _RUNNERS / "evaluation" / "report.schema.json": EvaluationReport,
}
"""Each published file and the model that it describes."""


def json_schema(path: Path) -> str:
    """Return the text of a published schema, generated anew."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": path.name}
    schema = head | SCHEMAS[path].model_json_schema()
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def outdated() -> list[Path]:
    """Return the published schemas that are not what their models say."""
    return [
        path
        for path in SCHEMAS
        if not path.is_file() or path.read_text("utf-8") != json_schema(path)
    ]


def main() -> int:
    """Write the schemas, or name those that need writing."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, exit with 1 instead")
    check = parser.parse_args().check
    for path in outdated():
        if not check:
            path.write_text(json_schema(path), "utf-8")
        sys.stdout.write(f"{path.name} {'is out of date' if check else 'written'}\n")
        if check:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
