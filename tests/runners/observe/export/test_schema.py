"""The JSON schemas of what is exported are those of the models."""

from __future__ import annotations

import json
from pathlib import Path

from runners.campaigns.schema import SCHEMAS, write_schemas


def test_the_schemas_are_written_with_the_words_of_the_models(tmp_path: Path) -> None:
    write_schemas(tmp_path / "schemas")
    written = {path.name: json.loads(path.read_text()) for path in tmp_path.glob("schemas/*")}
    assert written.keys() == SCHEMAS.keys()
    assert all(schema["$id"] == name for name, schema in written.items())
    lines = written["trajectory.schema.json"]["properties"]
    assert {"rollout_id", "schema_version"} <= lines.keys()
