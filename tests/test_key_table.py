"""Every key acts with each trainer, or is refused: ``key_table.txt`` says where, and this test
proves each line of it.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, reduce
from pathlib import Path
from typing import Any, get_args

import pytest
from omegaconf import OmegaConf
from pydantic import BaseModel

from conf.compose import compose
from conf.dependent_keys import DEPENDENT, find_dependent
from conf.errors import ConfigError
from conf.keys import choice_content, flatten, groups, lookup, root_content, to_dict
from conf.schema import Config
from launch import flags
from launch.job_files import render_settings
from launch.plan import JobPlan, plan_job
from tests.fakes.cluster_config import a_config

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_name("key_table.txt")
PACKAGES = ("cli", "conf", "launch", "runners")
BEGINNINGS = {
    "local": ["cli/run.py", "cli/eval.py", "runners/campaigns/run.py"],
    "slime": [
        "cli/cluster_run.py",
        *(f"runners/campaigns/slime/{name}.py" for name in ("worker", "job")),
    ],
}
"""Modules from which everything that reads a configuration is imported, by trainer."""
NOT_RUN = {
    "local": frozenset[str](),
    "slime": frozenset({"runners/campaigns/run.py", "runners/campaigns/evaluation/run.py"}),
}
"""Modules of runs on this machine, which the beginning shares, and a job never enters."""
TRAINERS = tuple(BEGINNINGS)
IDLE_LINE = "idle "
HELP = """
Add a line to tests/key_table.txt, `KEY | with trainer=local | with trainer=slime`, each one of
    read PATH…            a file (or folder) that reads it, imported by the trainer's run
    argument … VALUE FLAG another value changes this argument of slime (OTHER=VALUE… come before)
    settings … VALUE NAME another value changes this variable of the job's settings.sh
    refused … VALUE       the configuration is refused and names the key
    within OUTER VALUE    the key stands in values of OUTER, of which such a one is refused
    inert                 another value than by default is refused, by conf/dependent_keys.py
    choice GROUP=CHOICE … the choice that has the key is refused with this trainer
    follows KEY           KEY has its value by default
    absent                a key of the other trainer's choice
    none REASON           it is no matter of a trainer
A KEY that ends in a dot stands for all keys of a section. A key that a trainer would accept and
ignore is a defect: let it act, or refuse it. One that does nothing beside another key's value is in
conf/dependent_keys.py, with an example `idle KEY | OTHER=VALUE … VALUE` at the end of the table."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table."""

    key: str
    says: dict[str, list[str]]
    """By trainer, the words of its column."""


@cache
def rows() -> tuple[Row, ...]:
    lines = [line for line in TABLE.read_text("utf-8").splitlines() if line.strip()]
    found = []
    for line in lines:
        if not line.startswith(("#", IDLE_LINE)):
            key, *columns = (part.strip() for part in line.split("|"))
            assert len(columns) == len(TRAINERS), f"three columns: {line}"
            says = zip(TRAINERS, (column.split() for column in columns), strict=True)
            found.append(Row(key, dict(says)))
    return tuple(found)


@cache
def schema_keys() -> dict[str, list[str]]:
    """Return every key of the YAML files, with the choices that have it ("" for config.yaml), and
    what ``conf.schema`` knows within one of them: ``faults.rules.where``, ``trainer.loss.target``.
    """
    outer = yaml_keys()
    inner = {key: find_outer(key) for key in fields_of(Config) if key not in outer}
    assert all(inner.values()), "a key without a default in the YAML files"
    return outer | {key: outer[str(name)] for key, name in inner.items()}


def find_outer(key: str) -> str | None:
    """Return the key of the YAML files in whose values a key of the schema stands."""
    if key.startswith("model.architecture."):  # data, of which a file has what it needs
        return "model.architecture.layers"
    return next((name for name in yaml_keys() if key.startswith(f"{name}.")), None)


def fields_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of a model's fields, with those of every choice and entry."""
    for name, field in model.model_fields.items():
        sections = list(models_in(field.annotation))
        for section in sections:
            yield from fields_of(section, f"{prefix}{name}.")
        if not sections:
            yield f"{prefix}{name}"


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in a type: of a union, of a list's entries."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models_in(part)


@cache
def yaml_keys() -> dict[str, list[str]]:
    """Return every key of the YAML files, with the choices that have it ("" for config.yaml)."""
    found: dict[str, list[str]] = {}
    for group, choices in groups().items():
        for choice in choices:
            for key, _ in flatten(choice_content(group, choice), f"{group}."):
                # the user's own variables: a key takes all of them
                name = "harness.env" if key.startswith("harness.env.") else key
                found.setdefault(name, []).append(choice)
    return found | {key: [""] for key, _ in flatten(root_content())}


def row_of(key: str) -> Row | None:
    """Return the line of a key: its own, or that of the innermost section."""
    matching = [
        row for row in rows() if row.key == key or (row.key[-1] == "." and key.startswith(row.key))
    ]
    return max(matching, key=lambda row: len(row.key), default=None)


@cache
def imported(trainer: str) -> frozenset[str]:
    """Return the files that a trainer's run imports, at once or later."""
    found: set[str] = set()
    waiting = list(BEGINNINGS[trainer])
    while waiting:
        file = waiting.pop()
        if file not in found and file not in NOT_RUN[trainer]:
            found.add(file)
            waiting += _imports(file)
    return frozenset(found)


@cache
def _tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text("utf-8"))


@cache
def _imports(file: str) -> tuple[str, ...]:
    names: list[str] = []
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
        elif isinstance(node, ast.Import):
            names += [each.name for each in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # a module that is imported by its name: ("runners.rollouts.harnesses.codex", …)
            names += [node.value] if re.fullmatch(r"runners(\.\w+)+", node.value) else []
    return tuple(_files(names))


def _files(modules: list[str]) -> Iterator[str]:
    for module in modules:
        path = module.replace(".", "/")
        for file in (f"{path}.py", f"{path}/__init__.py", f"{path}/__main__.py"):
            if module.partition(".")[0] in PACKAGES and (ROOT / file).is_file():
                yield file


@cache
def words_of(file: str) -> frozenset[str]:
    """Return the attributes, keyword arguments and whole texts of a file's code."""
    found: set[str] = set()
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.keyword):
            found.add(node.arg or "")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return frozenset(found)


def readers(key: str, trainer: str, paths: list[str]) -> list[str]:
    """Return the files under ``paths`` that the trainer's run imports and that read the key."""
    name = key.rpartition(".")[2]
    return [
        file
        for file in sorted(imported(trainer))
        if any(file == path or file.startswith(f"{path}/") for path in paths)
        and name in words_of(file)
    ]


def overrides(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the overrides that come first, and the words after them."""
    number = next((i for i, word in enumerate(words) if "=" not in word), len(words))
    return words[:number], words[number:]


def base(trainer: str) -> list[str]:
    if trainer == "local":
        return []
    return [
        *("trainer=slime", "model=qwen3_30b_a3b", "model.path=/shared/weights", "launch=slurm"),
        *("launch.shared_dir=/shared", "task=jsonl", "task.path=/shared/tasks.jsonl"),
    ]


def faults(lines: list[str]) -> str:
    with pytest.raises(ConfigError) as caught:
        compose(lines)
    return "\n".join(caught.value.faults)


def plans(key: str, words: list[str]) -> tuple[JobPlan, JobPlan, str]:
    """Return the job without and with the key's value, and what must differ between them."""
    others, (value, differs) = overrides(words)
    return plan_job(a_config(*others)), plan_job(a_config(*others, f"{key}={value}")), differs


def nested(values: dict[str, Any]) -> dict[str, Any]:
    """Return dotted keys as a tree."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        reduce(lambda node, part: node.setdefault(part, {}), sections, tree)[name] = value
    return tree


def check(key: str, trainer: str, words: list[str]) -> None:
    kind, rest = words[0], words[1:]
    if kind == "read":
        assert readers(key, trainer, rest), f"{key}: nothing in {rest} reads it"
    elif kind == "argument":
        before, after, flag = plans(key, rest)
        assert flag in flags.load_flags()
        assert before.arguments.get(flag) != after.arguments.get(flag), f"{key}: {flag} stays"
        assert not flags.check(after.arguments)
    elif kind == "settings":
        one, other, name = plans(key, rest)
        texts = [render_settings(plan, ["agentrl"]) for plan in (one, other)]
        found = [re.search(rf"^{name}=.*$", text, re.M) for text in texts]
        assert str(found[0] and found[0][0]) != str(found[1] and found[1][0]), f"{key}: {name}"
    elif kind == "refused":
        others, (value,) = overrides(rest)
        compose([*base(trainer), *others])
        named = faults([*base(trainer), *others, f"{key}={value}"])
        assert key in named, named
    elif kind == "within":
        outer, value = rest
        assert outer == find_outer(key)
        named = faults([*base(trainer), f"{outer}={value}"])
        assert outer in named, named
        assert trainer in named, named
    elif kind == "choice":
        named = faults([*base(trainer), *rest])
        assert f"trainer={trainer}" in named or "slime" in named, named
        assert rest[0] in named, named
    elif kind == "inert":
        tree = nested({"trainer.kind": trainer, key: "another"})
        refused = list(find_dependent(tree, {key: "a default"}, [key], [key]))
        assert refused, f"{key}: not in conf/dependent_keys.py"
    elif kind == "follows":
        group, _, name = rest[0].partition(".")
        values = [dict(flatten(choice_content(group, each))).get(name) for each in groups()[group]]
        assert any(f"${{{key}}}" in str(value) for value in values), rest
    elif kind == "absent":
        assert key not in dict(flatten(choice_content("trainer", trainer), "trainer."))
    else:
        assert kind == "none", f"{key}: {kind}{HELP}"
        assert len(rest) > 3, f"{key}: give the reason"


def test_every_key_of_the_schema_has_a_line() -> None:
    lacking = [key for key in schema_keys() if row_of(key) is None]
    hints = [_suggest(key) for key in lacking]
    assert not lacking, "\n".join(["tests/key_table.txt lacks", *hints, HELP])


def _suggest(key: str) -> str:
    columns = []
    for trainer in TRAINERS:
        found = readers(key, trainer, ["runners", "launch", "cli"])
        own = key.startswith("trainer.") and trainer not in schema_keys()[key]
        columns.append("absent" if own else f"read {' '.join(found[:3])}" if found else "refused …")
    return " | ".join([f"    {key}", *columns])


def test_every_line_is_of_a_key() -> None:
    keys = schema_keys()
    stale = [row.key for row in rows() if not any(row_of(key) is row for key in keys)]
    assert not stale, f"no key is left for these lines of tests/key_table.txt: {stale}"


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("row", rows(), ids=lambda row: row.key)
def test_a_key_does_what_its_line_says(row: Row, trainer: str) -> None:
    own: list[str] = [key for key in schema_keys() if row_of(key) is row]
    for key in own:
        check(key, trainer, row.says[trainer])


def read_yaml(text: str) -> Any:
    return to_dict(OmegaConf.create({"value": OmegaConf.create(f"- {text}")}))["value"][0]


@dataclass(frozen=True, slots=True)
class IdleExample:
    """A key beside values with which it does nothing."""

    key: str
    others: dict[str, Any]
    value: Any

    @classmethod
    def parse(cls, line: str) -> IdleExample:
        key, words = (part.strip() for part in line.removeprefix(IDLE_LINE).split("|"))
        *others, value = words.split()
        pairs = (other.split("=", 1) for other in others)
        return cls(key, {name: read_yaml(text) for name, text in pairs}, read_yaml(value))


@cache
def idle_examples() -> tuple[IdleExample, ...]:
    lines = TABLE.read_text("utf-8").splitlines()
    return tuple(IdleExample.parse(line) for line in lines if line.startswith(IDLE_LINE))


@cache
def resolved(trainer: str) -> str:
    return compose(base(trainer)).model_dump_json()


def faults_of_idle(trainer: str, values: dict[str, Any]) -> list[str]:
    """Return the faults of ``values``, all given, in the trainer's configuration by default."""
    tree = json.loads(resolved(trainer))
    defaults = dict(flatten(tree))
    for key, value in values.items():
        *sections, name = key.split(".")
        section = reduce(lambda node, part: node[part], sections, tree)
        assert name in section, key
        section[name] = value
    return list(find_dependent(tree, defaults, values, values))


def trainers_with(keys: Iterable[str]) -> list[str]:
    """Return the trainers in whose configuration by default all of the keys are."""
    trees = {trainer: json.loads(resolved(trainer)) for trainer in TRAINERS}
    return [name for name, tree in trees.items() if all(lookup(tree, key)[0] for key in keys)]


@pytest.mark.parametrize("example", idle_examples(), ids=lambda example: example.key)
def test_a_key_that_another_leaves_idle_is_refused_by_name(example: IdleExample) -> None:
    trainers = trainers_with([example.key, *example.others])
    assert trainers
    for trainer in trainers:
        assert not faults_of_idle(trainer, example.others)
        (fault,) = faults_of_idle(trainer, {**example.others, example.key: example.value})
        assert fault.startswith(f"{example.key}=")
        assert "leave it out, or" in fault
        assert all(key in fault for key in example.others)


def test_every_idle_key_has_an_example() -> None:
    """A pair of a key and one that decides about it is in the code and in the table, or in none."""
    written = {(each.key, other) for each in idle_examples() for other in each.others}
    known = {
        (key, other) for row in DEPENDENT if row.fix for key in row.keys for other in row.others
    }
    assert written == known, HELP


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("trainer.clip_low", {"trainer.loss": "gspo", "trainer.clip_low": 0.1}),
        ("trainer.clip_high", {"trainer.loss": "cispo", "trainer.clip_high": 0.1}),
        ("trainer.normalize_std", {"trainer.normalize_std": False}),
        (
            "trainer.correction.cap",
            {"trainer.correction.truncate": "token", "trainer.correction.cap": 9},
        ),
        ("trainer.kl.place", {"trainer.kl.weight": 0.1, "trainer.kl.place": "reward"}),
        ("trainer.decay_steps", {"trainer.decay": "cosine", "trainer.decay_steps": 9}),
        *(
            ("trainer.aggregation_tokens", {**each, "trainer.aggregation_tokens": 9})
            for each in (
                {"trainer.aggregation": "constant"},
                {"trainer.advantage": "dr_grpo"},
                {"trainer.credit": "turn"},
            )
        ),
        ("reward.token_budget", {"reward.overlong_penalty": 0.1, "reward.token_budget": 9}),
        ("reward.token_budget", {"reward.length_penalty": 0.1, "reward.token_budget": 9}),
    ],
)  # fmt: skip
def test_a_key_that_acts_is_not_refused(key: str, values: dict[str, Any]) -> None:
    for trainer in trainers_with(values):
        assert not faults_of_idle(trainer, values), key


def test_the_table_itself_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that is not true is found, of every kind."""
    wrong: list[tuple[str, str, Any]] = [
        ("run.keep_checkpoints", "slime", "read runners/campaigns/loop.py"),
        ("trainer.learning_rate", "slime", "argument 3e-6 --weight-decay"),
        ("launch.nodes", "slime", "settings 4 NAME"),
        ("trainer.learning_rate", "slime", "refused 1e-5"),
        ("harness.kind", "slime", "choice harness=native"),
        ("trainer.learning_rate", "slime", "absent"),
        ("trainer.learning_rate", "slime", "none because"),
        ("trainer.learning_rate", "slime", "inert"),
        ("trainer.loss.target", "slime", "within trainer.loss gspo"),
        ("trainer.loss.target", "slime", 'within trainer.advantage {target:"own.py:it"}'),
    ]
    for key, trainer, says in wrong:
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            check(key, trainer, says.split())
