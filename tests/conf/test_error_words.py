"""No message about a value has a validator's words: every key of the schema, with wrong values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from pydantic import ValidationError

from conf.compose import compose
from conf.error_messages import explain_errors, format_value
from conf.errors import ConfigError
from conf.keys import choice_content, groups, root_content
from conf.schema import Config
from conf.schema_walk import find_models
from tests.fakes.internal_words import INTERNAL

WRONG: dict[str, Any] = {
    "a word": "a word",
    "no text": "",
    "a number": -3,
    "null": None,
    "true": True,
    "a list": ["a b", -1, None, {"x": 1}],
    "a mapping": {"A b": {"x": 1}, "y": [None]},
}


def leaves(tree: Mapping[str, Any], wrong: Any) -> dict[str, Any]:
    """Return a tree with ``wrong`` in place of every value but the choices."""
    return {
        name: value
        if name == "kind"
        else leaves(value, wrong)
        if isinstance(value, Mapping) and value
        else wrong
        for name, value in tree.items()
    }


def trees(wrong: Any) -> Iterator[dict[str, Any]]:
    """Yield wrong trees that together have every section, and every choice of every group."""
    yield leaves(root_content(), wrong)
    for group, names in groups().items():
        for name in names:
            yield leaves({group: choice_content(group, name)}, wrong)


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_value_is_refused_in_plain_words(wrong: Any) -> None:
    said: set[str] = set()
    for tree in trees(wrong):
        try:
            Config.model_validate_json(json.dumps(tree), strict=True)
        except ValidationError as error:
            by_key, between = explain_errors(error, tree)
            assert all(line.startswith(key.partition(".")[0]) for key, line in by_key.items())
            said |= {*by_key.values(), *between}
    assert said
    for line in said:
        assert INTERNAL.search(line.replace(format_value(wrong), "")) is None, line
        assert "is not possible" not in line, f"say what is expected: {line}"
        assert len(line) < 1200, line


def faults(*lines: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        compose(list(lines))
    return error.value.faults


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (
            ["sandbox=docker", "sandbox.egress=allow", "sandbox.egress_hosts=[UPPER]"],
            "sandbox.egress_hosts[0]=UPPER must be the name of a host in lower case, such as "
            "pypi.org or *.example.com",
        ),
        (
            ["harness=claude_code", "harness.agents={A:{description:x,prompt:y}}"],
            "harness.agents: A must be a name of at most 41 lower-case letters, digits, _ and -, "
            "a letter first",
        ),
        (
            ["harness=claude_code", "harness.mcp_servers={a:{command:x,argz:[y]}}"],
            "harness.mcp_servers.a.argz is not a key: did you mean harness.mcp_servers.a.args?",
        ),
        (
            ["faults.rules=[{where:turn,what:delay,wen:{k:1}}]"],
            "faults.rules[0].wen is not a key: did you mean faults.rules[0].when?",
        ),
        (
            ["faults.rules=[{where:turn,what:delay,seconds:1,when:{zz:1}}]"],
            "faults.rules[0].when.zz is not a key: it has attempts, k, probability, rollouts",
        ),
        (
            ["trainer.lora.rank=8", "trainer.lora.targets=q_proj"],
            "trainer.lora.targets=q_proj must be a list: 'trainer.lora.targets=[q_proj]' in the "
            "shell",
        ),
        (
            ["trainer.betas=[0.9,true]"],
            "trainer.betas=[0.9,true] must be two numbers of at least 0",
        ),
        (["run.sampler=3"], "run.sampler=3 must be epoch, curriculum, package.module:Name or"),
        (["harness=codex", "harness.version=latest"], "harness.version=latest must be a version"),
    ],
)
def test_a_fault_in_an_entry_or_a_list_names_the_fix(lines: list[str], fault: str) -> None:
    assert any(line.startswith(fault) for line in faults(*lines)), faults(*lines)


def test_a_long_value_is_cut() -> None:
    (fault,) = faults(f"run.steps={'x' * 5000}")
    assert fault == f"run.steps={'x' * 200}… must be a whole number"


def test_the_section_of_an_entry_is_found() -> None:
    (rule,) = find_models("faults.rules[3]", {"faults": {"kind": "none"}})
    assert "where" in rule.model_fields
    (engine,) = find_models("engine", {"engine": {"kind": "vllm"}})
    assert set(engine.model_fields) == {"kind", "url", "model"}
