"""SWE-bench-Pro: a script runs the selected test files, a parser reads what it printed.

The two are not in the rows of the hub. They are read from ``run_scripts/<instance_id>/`` beside the
row's file, the folder of that name in the set's own repository.
"""

from __future__ import annotations

from typing import Any, ClassVar

from runners.tasks.contract import Grading, ProScripts
from runners.tasks.schemas.row import Commands, NameList, RowContext, TestListRow, Text, Workdir

SCRIPTS = "run_scripts"
TAG_LIMIT = 128
"""Characters of an image's tag."""
KEEPS_SUFFIX = "element-web-ec0f940ef0e8e3b61078f145f34dc40d1938e6c5-vnan"
"""End of the one id of element-web whose image has the repository's whole name."""
_NAMES = {
    "fail_to_pass": ("fail_to_pass_select", "fail_to_pass", "FAIL_TO_PASS"),
    "pass_to_pass": ("pass_to_pass_select", "pass_to_pass", "PASS_TO_PASS"),
    "selected_test_files": ("selected_test_files", "selected_test_files_to_run"),
    "run_script": ("run_script", "run_script.sh"),
    "parser_script": ("parser_script", "parsing_script.py", "parser.py"),
}


class ProRow(TestListRow):
    """SWE-bench-Pro."""

    schema_name: ClassVar[str] = "swebench_pro"

    before_repo_set_cmd: Commands = ()
    selected_test_files: NameList
    run_script: Text = ""
    run_script_path: Text = ""
    """File on this machine, relative to the row's file; instead of ``run_script``."""
    parser_script: Text = ""
    parser_script_path: Text = ""
    requirements: Text = ""
    interface: Text = ""
    dockerhub_tag: Text = ""
    workdir: Workdir = "/app"

    @classmethod
    def convert(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Rename the fields of the set's variants; see the base."""
        renamed = {
            ours: fields[name]
            for ours, names in _NAMES.items()
            for name in reversed(names)
            if name in fields
        }
        return {**fields, **renamed}

    @property
    def statement(self) -> str:
        """Return the problem with its requirements and interface, as the set shows it."""
        parts = (self.problem_statement, self.requirements, self.interface)
        return "\n\n".join(part for part in parts if part)

    @property
    def derived_image(self) -> str:
        """Return by the row's tag, else by the set's rule; see the base."""
        tag = self.dockerhub_tag or _make_tag(self.repo, self.instance_id)
        return f"jefzda/sweap-images:{tag}" if tag else ""

    @property
    def setup(self) -> tuple[str, ...]:
        """Return all lines of ``before_repo_set_cmd`` but the last; see the base."""
        lines = self._lines
        return (*(("\n".join(lines[:-1]),) if lines[:-1] else ()), *self.pre_commands)

    @property
    def test_setup(self) -> tuple[str, ...]:
        """Return the last line, which checks out the hidden test files; see the base."""
        return tuple(self._lines[-1:])

    @property
    def _lines(self) -> list[str]:
        return [line for text in self.before_repo_set_cmd for line in text.splitlines() if line]

    def test_paths(self) -> set[str]:
        """Return the selected test files; see the base."""
        return {name.partition("::")[0] for name in self.selected_test_files}

    def grading(self, context: RowContext) -> Grading:
        """Return its scripts; see the base."""
        return ProScripts(
            self._read(context, self.run_script, self.run_script_path, "run_script", ".sh"),
            self._read(context, self.parser_script, self.parser_script_path, "parser_script"),
            self.selected_test_files,
            self.workdir,
        )

    def _read(
        self, context: RowContext, text: str, path: str, name: str, suffix: str = ".py"
    ) -> str:
        if text:
            return text
        if path:
            return context.read(path, f"{name}_path")
        file = "run_script.sh" if suffix == ".sh" else "parser.py"
        short = self.instance_id.removeprefix("instance_")
        for folder in (self.instance_id, short, f"instance_{short}"):
            if (context.beside / SCRIPTS / folder / file).is_file():
                return context.read(f"{SCRIPTS}/{folder}/{file}", name)
        raise ValueError(
            f"{name} and {name}_path are missing, and there is no {SCRIPTS}/{self.instance_id}/"
            f"{file} beside the file of rows: copy {SCRIPTS} of the set's repository there"
        )


def _make_tag(repo: str, instance_id: str) -> str:
    """Return the tag of an instance's image, by the rule of the set's own helper; "" if unknown."""
    owner, _, name = repo.lower().partition("/")
    if not name:
        return ""
    short = instance_id.removeprefix("instance_")
    if name == "element-web" and not short.endswith(KEEPS_SUFFIX):
        name = "element"
    if not short.endswith(KEEPS_SUFFIX):
        short = short.removesuffix("-vnan")
    return f"{owner}.{name}-{short}"[:TAG_LIMIT]
