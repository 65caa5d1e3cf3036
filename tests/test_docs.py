"""Check the documentation: links resolve, commands parse, shown output is printed, and every
quoted message exists in the source.
"""

from __future__ import annotations

import ast
import itertools
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.core import TyperGroup

from cli.app import app
from cli.arguments import split_command
from cli.task_check import NO_GATEWAY
from conf import grammar
from conf.compose import compose
from conf.errors import ExitCode
from runners.campaigns.evaluation.benchmarks import TASKS
from tests.documentation.site import GENERATED, slugify

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PACKAGES = ("cli", "conf", "launch", "runners")
PAGES = sorted([ROOT / "README.md", *DOCS.glob("*.md")])
MARKDOWN = sorted(
    path
    for top in (
        ROOT,
        DOCS,
        *(ROOT / name for name in ("cli", "conf", "launch", "runners", "tests")),
    )
    for path in (top.glob("*.md") if top in (ROOT, DOCS) else top.rglob("*.md"))
)
PLACEHOLDER = re.compile(r"…|^[A-Z][A-Z_]+$|=[A-Z][A-Z_]*$|RUN\b")

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def blocks(page: Path, language: str) -> list[str]:
    """Return the fenced code blocks of a page in one language."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)
    return [str(block) for block in found]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.M | re.S)
    return {slugify(heading) for heading in re.findall(r"^#+ (.+)$", text, re.M)}


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$|`[^`\n]+`", "", page.read_text("utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if file == DOCS / GENERATED:
            continue
        assert file.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(file), f"{page.name}: {target}"


def agentrl_commands() -> dict[str, Any]:
    """Return the commands of ``agentrl``, by name."""
    command = typer.main.get_command(app)
    assert isinstance(command, TyperGroup)
    return dict(command.commands)


def calls(page: Path) -> list[list[str]]:
    """Return the arguments of every ``agentrl`` call in a page's shell blocks."""
    lines = [
        line
        for block in blocks(page, "sh")
        for line in block.replace("\\\n", " ").splitlines()
        if line.startswith("agentrl ")
    ]
    return [shlex.split(line, comments=True)[1:] for line in lines]


@pages
def test_every_command_exists_and_its_configuration_composes(page: Path) -> None:
    commands = agentrl_commands()
    for name, *arguments in calls(page):
        command = commands[name]
        arguments = list(itertools.takewhile(lambda word: word != "--", arguments))
        if isinstance(command, TyperGroup):
            command = command.commands[arguments[0]]
        options = {option for parameter in command.params for option in parameter.opts}
        flags = {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}
        assert flags <= options, f"agentrl {name}: {flags - options}"
        if "--config-dir" in flags:
            continue  # choices of the page's own; tests/test_guides.py runs them
        overrides = [
            argument
            for argument in arguments
            if "=" in argument
            and not argument.startswith("--")
            and not PLACEHOLDER.search(argument)
        ]
        # the words before KEY=VALUE: of `eval swebench`, `check eval swebench`, `show run`
        words = [name, *itertools.takewhile(lambda word: re.fullmatch(r"\w+", word), arguments)]
        if "eval" in words and words[-1] != "BENCHMARK":
            _, overrides = split_command([*words[words.index("eval") :], *overrides])
        if name == "tasks":  # none of them starts a service
            overrides = TASKS.overrides([*NO_GATEWAY, *overrides])
        for overrides_of_one in grammar.expand_sweeps(overrides):
            compose(overrides_of_one)


CONSOLE = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, block in enumerate(blocks(page, "console"))
]


@pytest.mark.parametrize("block", CONSOLE)
def test_a_console_block_shows_what_the_command_prints(block: str, tmp_path: Path) -> None:
    command, _, shown = block.partition("\n")
    assert command.startswith("$ agentrl ")
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", *shlex.split(command)[2:]],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    printed = [line.rstrip() for line in done.stdout.strip().splitlines()]
    assert printed == [line.rstrip() for line in shown.strip().splitlines()]


@cache
def messages() -> str:
    """Return every string of the source, one per line, with … for each inserted value."""
    found = set()
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = [v.value if isinstance(v, ast.Constant) else "…" for v in node.values]
                    found.add("".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.add(re.sub(r"\{\w*\}", "…", node.value))
    return "\n".join(found)


def troubleshooting() -> str:
    """Return the section of the page about failures that goes by exit code."""
    text = (DOCS / "when_it_fails.md").read_text("utf-8")
    return text.partition("\n## Troubleshooting\n")[2].partition("\n## ")[0]


def quoted_messages() -> list[str]:
    """Return the first cell of each row of the tables of messages, by exit code."""
    tables = troubleshooting().partition("\n### 1:")[2]
    return re.findall(r"^\| `([^`]+)` \|", tables, re.M)


@pytest.mark.parametrize("message", quoted_messages())
def test_a_message_in_troubleshooting_is_one_that_can_be_printed(message: str) -> None:
    parts = [re.escape(part.strip()) for part in message.split("…") if part.strip()]
    assert re.search(".{0,40}".join(parts), messages()), message


def test_troubleshooting_covers_every_exit_code() -> None:
    headings = " ".join(re.findall(r"^### (.+)$", troubleshooting(), re.M))
    assert {int(number) for number in re.findall(r"\b\d+\b", headings)} == set(map(int, ExitCode))


def test_the_page_of_commands_lists_all_of_them() -> None:
    commands = agentrl_commands()
    page = (DOCS / "commands.md").read_text("utf-8")
    assert set(re.findall(r"^\| `agentrl ([\w-]+)", page, re.M)) == set(commands)


def test_the_page_of_configuration_lists_every_group_and_choice() -> None:
    page = (DOCS / "configuration.md").read_text("utf-8")
    for group in (path for path in (ROOT / "conf").iterdir() if list(path.glob("*.yaml"))):
        (row,) = re.findall(rf"^\| `{group.name}` \| (.+(?:\n\| \| .+)*) \|$", page, re.M)
        choices = {file.stem for file in group.glob("*.yaml")}
        if group.name == "model":
            choices = {"tiny", "local"}  # the tables of known models are linked
        assert set(re.findall(r"`(\w+)`", row)) == choices, group.name
