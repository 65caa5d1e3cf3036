"""SWE-rebench: V1 in Python, V2 in twenty languages; a row says how its tests are run and read.

Names of V2 may contain how long a test took; both sides are compared without that. Parsers that are
not pytest's are those of the set's repository: its ``log_parsers.py``, beside the row's file, is
run in the sandbox.
"""

from __future__ import annotations

import re
import shlex
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict

from runners.tasks.contract import Grading, LogParser
from runners.tasks.diffs import read_paths
from runners.tasks.log_parsers import PYTEST_PARSERS
from runners.tasks.schemas.parser_programs import wrap_function
from runners.tasks.schemas.row import (
    Commit,
    Diff,
    Name,
    RowContext,
    TestListRow,
    Text,
    name_image,
    read_object,
)
from runners.tasks.schemas.swebench_live import CommandLines
from runners.tasks.schemas.test_script import ScriptReading, build_test_script, find_test_files

PARSERS = "log_parsers.py"
_TIME = r"\s*\d+(\.\d+)?\s*"
TIMING = rf"\s*(\[{_TIME}m?s\s*\]|\({_TIME}m?s\s*\)|in{_TIME}(sec|s|ms))$"
"""End of a test's name that says how long it took."""
STATES = """\
import enum as _enum
import sys as _system
import types as _types


class TestStatus(_enum.Enum):
    FAILED = "FAILED"
    PASSED = "PASSED"
    SKIPPED = "SKIPPED"
    ERROR = "ERROR"
    XFAIL = "XFAIL"


for _module in ("lib", "lib.agent", "lib.agent.swe_constants"):
    _system.modules[_module] = _types.ModuleType(_module)
_system.modules["lib.agent.swe_constants"].TestStatus = TestStatus
"""
"""Module that the set's parsers import."""


class InstallConfig(BaseModel):
    """``install_config``: how the tests of a row are run and read."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    test_cmd: CommandLines
    log_parser: Name = "parse_log_pytest"
    install: CommandLines = ()


class RebenchRow(TestListRow):
    """SWE-rebench V1."""

    schema_name: ClassVar[str] = "swe_rebench"

    base_commit: Commit
    test_patch: Diff
    version: Text = ""
    install_config: Annotated[InstallConfig, BeforeValidator(read_object)]

    @property
    def derived_image(self) -> str:
        """Return the set's images; see the base."""
        return name_image("swerebench/sweb.eval.x86_64.", self.instance_id)

    def test_paths(self) -> set[str]:
        """Return the paths of the test patch; see the base."""
        return set(read_paths(self.test_patch).all)

    def grading(self, context: RowContext) -> Grading:
        """Return its test command on the files of the test patch; see the base."""
        files = " ".join(shlex.quote(path) for path in find_test_files(self.test_patch))
        config = self.install_config
        commands = [*config.test_cmd[:-1], f"{config.test_cmd[-1]} {files}"]
        script = build_test_script(self.workdir, self.test_patch, commands, prepare=config.install)
        reading = ScriptReading(log_parser=config.log_parser, repo=self.repo, version=self.version)
        return reading.grade(
            script, self.workdir, context.pytest_judge if reading.uses_pytest else context.judge
        )


class RebenchV2Row(TestListRow):
    """SWE-rebench V2."""

    schema_name: ClassVar[str] = "swe_rebench_v2"

    base_commit: Commit
    test_patch: Diff
    language: Name
    install_config: Annotated[InstallConfig, BeforeValidator(read_object)]

    @classmethod
    def convert(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the repository is at its own name, in its own case; see the base."""
        name = str(fields.get("repo", "")).rpartition("/")[2]
        return {"workdir": f"/{name}", **fields}

    @property
    def tests(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the row's lists without timings; see the base."""
        return strip_timings(self.fail_to_pass), strip_timings(self.pass_to_pass)

    def test_paths(self) -> set[str]:
        """Return the paths of the test patch; see the base."""
        return set(read_paths(self.test_patch).all)

    def grading(self, context: RowContext) -> Grading:
        """Return its test commands, read by the parser that it names; see the base."""
        config = self.install_config
        if config.log_parser in PYTEST_PARSERS:
            script = build_test_script(self.workdir, self.test_patch, config.test_cmd)
            reading = ScriptReading(log_parser=config.log_parser, repo=self.repo)
            return reading.grade(script, self.workdir, context.pytest_judge)
        if not (context.beside / PARSERS).is_file():
            raise ValueError(
                f"its log parser {config.log_parser} is in {PARSERS} (lib/agent) of the set's "
                "repository: copy that file beside the file of rows; it is run in sandboxes only"
            )
        if not config.log_parser.isidentifier():
            raise ValueError(f"install_config.log_parser: {config.log_parser!r} is no function")
        source = context.read(PARSERS, "log_parser")
        if not re.search(rf"^def {config.log_parser}\(", source, re.MULTILINE):
            raise ValueError(f"{PARSERS} beside the file of rows has no {config.log_parser}")
        tests = "\n".join(config.test_cmd)
        script = build_test_script(self.workdir, self.test_patch, [f"{{ {tests}\n}} 2>&1"])
        name = f"_re.sub({TIMING!r}, '', str(_name))"
        return LogParser(
            script=script,
            parser=wrap_function(f"{STATES}\n{source}", config.log_parser, name=name),
            workdir=self.workdir,
        )


def strip_timings(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return names of tests without their timings, each once.

    >>> strip_timings(("TestAdd [1.3 ms]", "TestSub (0.1s)", "TestAdd [2 ms]"))
    ('TestAdd', 'TestSub')
    """
    return tuple(dict.fromkeys(re.sub(TIMING, "", name) for name in names))
