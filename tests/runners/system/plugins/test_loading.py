"""Plug-ins are imported, made of their options and checked against their contract."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Protocol

import pytest
from pydantic import JsonValue

from conf.sections.plugin import PluginConfig
from runners.system.plugins.loading import PluginError, load_plugin, load_shared

SOURCE = """
from dataclasses import dataclass
from pydantic import BaseModel, PositiveFloat

class Model(BaseModel):
    weight: PositiveFloat
    async def __call__(self, number): return self.weight * number

@dataclass
class Data:
    weight: float = 2.0
    def __call__(self, number): return self.weight * number

class Plain:
    def __init__(self, weight: int): self.weight = weight
    def __call__(self, number): return self.weight * number

def function(number, *, weight: float = 1.0): return weight * number

def odd(number, *, json: float = 1.0, copy: float = 1.0, _scale: float = 1.0):
    return json * copy * _scale * number
def open(number, *, weight: float = 1.0, **more): return number * weight * more.get("scale", 1)

def untyped(number, *, rate=1.0): return number * rate
def without_star(number, weight=1.0): return number * weight
def without(): return 1
class Fewer:
    def __call__(self): return 1
class Bad(Plain):
    def __init__(self): raise RuntimeError("no licence")
class Exits(Plain):
    def __init__(self): raise SystemExit("no key")
NUMBER = 3
"""


class Scale(Protocol):
    def __call__(self, number: float) -> float | Awaitable[float]: ...


class Methods(Protocol):
    async def start(self, name: str, *, deadline_s: float) -> None: ...

    def stop(self) -> None: ...


@pytest.fixture
def file(tmp_path: Path) -> Path:
    place = tmp_path / "mine.py"
    place.write_text(SOURCE)
    return place


def load(file: Path, name: str, contract: type[Any] = Scale, **options: JsonValue) -> Any:
    return load_plugin(PluginConfig(target=f"{file}:{name}", options=options), contract, "reward")


@pytest.mark.parametrize(("name", "factor"), [("Data", 2), ("function", 1)])
def test_a_plugin_without_options_has_its_defaults(file: Path, name: str, factor: int) -> None:
    assert load(file, name)(4) == factor * 4


@pytest.mark.parametrize("name", ["Data", "Plain", "function"])
def test_a_class_is_made_of_its_options_and_a_function_bound_to_them(file: Path, name: str) -> None:
    assert load(file, name, weight=3)(4) == 12


async def test_a_model_of_pydantic_is_made_of_its_fields_and_may_be_async(file: Path) -> None:
    assert await load(file, "Model", weight=0.5)(4) == 2


@pytest.mark.parametrize(
    ("name", "options", "fault"),
    [
        ("Model", {}, "reward.options.weight has no value: add reward.options.weight=…"),
        ("Plain", {}, "reward.options.weight has no value: add reward.options.weight=…"),
        ("Model", {"weight": -1}, "reward.options.weight=-1: input should be greater than 0"),
        ("Data", {"weight": "x"}, "reward.options.weight=x: input should be a valid number"),
        (
            "function",
            {"bonus": 1},
            "reward.options.bonus is no option of {target} (it has weight)",
        ),
        ("function", {"weigth": 1}, "did you mean weight?"),
        ("untyped", {"rate": "x"}, "reward.options.rate=x: input should be a valid number"),
        ("without_star", {"weight": 1}, "(it has none; options of a function stand after a `*`: "),
        ("functoin", {}, "has no functoin: did you mean function?"),
        ("NUMBER", {}, "is neither a class nor a function, but of type int"),
        ("Bad", {}, "cannot be imported: RuntimeError: no licence"),
        ("Exits", {}, "cannot be imported: SystemExit: no key"),
        ("Fewer", {}, "is no Scale: it takes (), which does not fit"),
        ("without", {}, "write `def __call__(self, number: float) -> float | Awaitable[float]`"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_key(
    file: Path, name: str, options: dict[str, JsonValue], fault: str
) -> None:
    with pytest.raises(PluginError) as caught:
        load_plugin(PluginConfig(target=f"{file}:{name}", options=options), Scale, "reward")
    assert fault.format(target=f"{file}:{name}") in str(caught.value)


def test_every_method_of_a_contract_is_asked_for(file: Path) -> None:
    file.write_text("class Half:\n    def start(self, name): pass\n    def stopp(self): pass\n")
    with pytest.raises(PluginError) as caught:
        load(file, "Half", Methods)
    text = str(caught.value)
    assert "it takes (name), which does not fit" in text
    assert "it has to be async: write `async def start(self, name: str, *, deadline_s" in text
    assert "it has no method `def stop(self) -> None` (did you mean stopp?)" in text


def test_a_method_that_must_not_be_async_is_refused(file: Path) -> None:
    file.write_text(
        "class Two:\n    async def start(self, name, *, deadline_s): pass\n"
        "    async def stop(self): pass\n"
    )
    with pytest.raises(PluginError, match=r"must not be async: write `def stop"):
        load(file, "Two", Methods)


@pytest.mark.parametrize(
    ("target", "fault"),
    [
        ("agentrl_nowhere.sub:Name", "there is no module agentrl_nowhere here"),
        ("conf.nowhere:Name", "there is no module conf.nowhere here"),
        ("/nowhere/mine.py:Name", "cannot be read: No such file"),
    ],
)
def test_a_place_that_is_not_there_is_named(target: str, fault: str) -> None:
    with pytest.raises(PluginError, match=fault):
        load_plugin(PluginConfig(target=target), Scale, "reward")


@pytest.mark.parametrize(
    ("source", "fault"),
    [("1 / 0\n", "ZeroDivisionError"), ("import agentrl_nowhere\n", "ModuleNotFoundError"),
     ("def broken(:\n", "SyntaxError"), ("raise SystemExit(0)\n", "SystemExit: 0")],
)  # fmt: skip
def test_a_file_that_fails_is_named_with_its_error(file: Path, source: str, fault: str) -> None:
    file.write_text(source)
    with pytest.raises(PluginError, match=f"cannot be imported: {fault}"):
        load(file, "function")


def test_files_of_one_name_are_different_modules(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "mine.py"
    other.parent.mkdir()
    other.write_text("def function(number): return -number\n")
    assert (load(file, "function")(1), load(other, "function")(1)) == (1, -1)


def test_code_that_has_changed_since_is_not_loaded(file: Path) -> None:
    plugin = PluginConfig(target=f"{file}:function")
    file.write_text(SOURCE + "\n# changed\n")
    with pytest.raises(PluginError) as caught:
        load_plugin(plugin, Scale, "reward")
    now = PluginConfig(target=f"{file}:function").version
    assert f"""'reward.version="{now}"'""" in str(caught.value)


def test_a_shared_plugin_is_made_once(file: Path) -> None:
    plugin = PluginConfig(target=f"{file}:Data")
    assert load_shared(plugin, Scale, "reward") is load_shared(plugin, Scale, "reward")
    other = PluginConfig(target=f"{file}:Data", options={"weight": 3})
    assert load_shared(other, Scale, "reward")(1) == 3


@pytest.mark.filterwarnings("error")
def test_an_option_may_have_any_name_of_python(file: Path) -> None:
    assert load(file, "odd", json=2.0, copy=3.0, _scale=5.0)(1) == 30
    with pytest.raises(PluginError, match=r"reward.options.json=two: input should be a valid num"):
        load(file, "odd", json="two")


def test_a_plugin_that_takes_any_options_gets_them(file: Path) -> None:
    assert load(file, "open", weight=2.0, scale=3)(1) == 6


def test_what_a_module_prints_is_no_output_of_the_command(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("print('loaded')\ndef function(number): return number\n")
    load(file, "function")
    assert capsys.readouterr() == ("", "loaded\n")
