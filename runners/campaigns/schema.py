"""Writes the JSON schemas of what is exported: ``python -m runners.campaigns.schema DIR``.

They are those of the pydantic models; the site of the documentation has them too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pydantic import BaseModel

from runners.campaigns.evaluation.report import EvaluationReport
from runners.observe.export import MessagesLine, TokensLine, Trajectory

SCHEMAS: dict[str, type[BaseModel]] = {
    "trajectory.schema.json": Trajectory,
    "sft_messages.schema.json": MessagesLine,
    "sft_tokens.schema.json": TokensLine,
    "report.schema.json": EvaluationReport,
}
"""Each file and the model that it describes."""


def json_schema(name: str) -> str:
    """Return the text of a schema."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": name}
    schema = head | SCHEMAS[name].model_json_schema()
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def write_schemas(folder: Path) -> None:
    """Write all schemas into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in SCHEMAS:
        (folder / name).write_text(json_schema(name), "utf-8")


if __name__ == "__main__":
    write_schemas(Path(sys.argv[1]))
