"""The schemas of published task sets, and of rows of one's own, as one table.

A schema names its fields, the mark by which its rows are told from others, its images, and the
script and parser that grade them. A function is there only where a set has a rule of its own.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from runners.tasks.contract import Grading, ScriptGrading
from runners.tasks.grading.graders.packages import check_multi_swe
from runners.tasks.grading.log_parsers import PYTEST_PARSERS
from runners.tasks.patches.diffs import read_paths, reverse_diff
from runners.tasks.schemas.row import (
    CommandLines,
    Commit,
    Diff,
    Fields,
    Install,
    Name,
    NamedImage,
    NameList,
    Row,
    RowContext,
    Schema,
    Statuses,
    Target,
    TestList,
    name_image,
    read_object,
)
from runners.tasks.schemas.scripts import (
    COUNTS_BOTH,
    PYTEST,
    PYTEST_SUMMARY,
    build_test_script,
    find_named_files,
    find_test_files,
    read_by_log_parser,
    wrap_function,
)

NAMED = {"fail_to_pass": TestList}
PATCHED = {**NAMED, "base_commit": Commit, "test_patch": Diff}


def has(fields: Fields, *names: str) -> bool:
    """Return whether fields are there and not empty."""
    return all(fields.get(name) not in (None, "", [], {}) for name in names)


def is_classic(fields: Fields) -> bool:
    """Return whether fields are those of SWE-bench, which many sets have too."""
    return "test_patch" in fields or "FAIL_TO_PASS" in fields


def _by_id(prefix: str, separator: str = "_1776_") -> Callable[[Row], str]:
    return lambda row: name_image(prefix, row.instance_id, separator)


def _named_files(row: Row) -> list[str]:
    return find_named_files(row.fail_to_pass + row.pass_to_pass)


def _run_files(command: str, files: Iterable[str]) -> str:
    return f"{command} {' '.join(shlex.quote(path) for path in files)}"


# --- SWE-bench: rows of 5.x have their eval script, classic rows leave it to the harness ----------

CLASSIC: dict[str, tuple[str, str]] = {
    "django/django": (
        "parse_log_django",
        "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1",
    ),
    "sympy/sympy": ("parse_log_sympy", "bin/test -C --verbose"),
    "mwaskom/seaborn": ("parse_log_seaborn", "pytest --no-header -rA"),
    "matplotlib/matplotlib": ("parse_log_matplotlib", PYTEST),
    "psf/requests": ("parse_log_requests", PYTEST),
    "pylint-dev/pylint": ("parse_log_pylint", PYTEST),
    "pydicom/pydicom": ("parse_log_pydicom", PYTEST),
    "astropy/astropy": ("parse_log_astropy", PYTEST),
    "scikit-learn/scikit-learn": ("parse_log_scikit", PYTEST),
    "sphinx-doc/sphinx": ("parse_log_sphinx", PYTEST),
}
"""Log parser and test command by repository, for those that do not run plain pytest."""


def _grade_swebench(row: Row, context: RowContext) -> Grading:
    parser, command = CLASSIC.get(row.repo, ("parse_log_pytest", PYTEST))
    return read_by_log_parser(
        row.eval_script or _build_classic(row, command),
        row,
        context.judge,
        log_parser=row.log_parser or parser,
        eval_type=row.eval_type or COUNTS_BOTH,
        version=row.version,
        image=row.image,
    )


def _build_classic(row: Row, command: str) -> str:
    arguments = find_test_files(row.test_patch)
    if row.repo == "django/django":  # its own test program takes modules
        arguments = [
            path.removeprefix("tests/").removesuffix(".py").replace("/", ".") for path in arguments
        ]
    test = f"{command} {shlex.join(arguments)}"
    return build_test_script(row.workdir, row.test_patch, [test], base_commit=row.base_commit)


# --- SWE-bench-Live and MultiLang: the row's commands and its parser, which a model has written ---


def _grade_live(row: Row, context: RowContext) -> Grading:
    rebuild, test, show = (
        " ; ".join(lines) for lines in (row.rebuild_cmds, row.test_cmds, row.print_cmds)
    )
    commands = [f"{{ {rebuild}\n}} >&2"] if rebuild else []
    commands += [f"{{ {test}\n}} >&2 2>&1", show] if show else [f"{{ {test}\n}} 2>&1"]
    source = PYTEST_SUMMARY if row.log_parser in ("", "pytest") else row.log_parser
    return ScriptGrading(
        "log_parser",
        script=build_test_script(row.workdir, row.test_patch, commands),
        workdir=row.workdir,
        parser=wrap_function(source, "parser"),
        missing_passes=True,
    )


# --- SWE-bench-Pro: its script and parser are not in the rows of the hub, but in run_scripts/ -----

RUN_SCRIPTS = "run_scripts"
TAG_LIMIT = 128
"""Characters of an image's tag."""
KEEPS_SUFFIX = "element-web-ec0f940ef0e8e3b61078f145f34dc40d1938e6c5-vnan"
"""End of the one id of element-web whose image has the repository's whole name."""
_PRO_NAMES = {
    "fail_to_pass": ("fail_to_pass_select", "fail_to_pass", "FAIL_TO_PASS"),
    "pass_to_pass": ("pass_to_pass_select", "pass_to_pass", "PASS_TO_PASS"),
    "selected_test_files": ("selected_test_files", "selected_test_files_to_run"),
    "run_script": ("run_script", "run_script.sh"),
    "parser_script": ("parser_script", "parsing_script.py", "parser.py"),
}


def _is_pro(fields: Fields) -> bool:
    names = ("selected_test_files_to_run", "selected_test_files", "dockerhub_tag")
    scripts = ("run_script", "run_script_path", "run_script.sh")
    return any(has(fields, name) for name in (*names, *scripts))


def _convert_pro(fields: Fields) -> Fields:
    renamed = {
        ours: fields[name]
        for ours, names in _PRO_NAMES.items()
        for name in reversed(names)
        if name in fields
    }
    return {"workdir": "/app", **fields, **renamed}


def _pro_lines(row: Row) -> list[str]:
    return [line for text in row.before_repo_set_cmd for line in text.splitlines() if line]


def _set_up_pro(row: Row) -> tuple[str, ...]:
    """Return all lines of ``before_repo_set_cmd`` but the last, which places the hidden tests."""
    lines = _pro_lines(row)[:-1]
    return (*(("\n".join(lines),) if lines else ()), *row.pre_commands)


def _tag_pro(row: Row) -> str:
    """Return the image by the row's tag, else by the rule of the set's own helper."""
    owner, _, name = row.repo.lower().partition("/")
    short = row.instance_id.removeprefix("instance_")
    if name == "element-web" and not short.endswith(KEEPS_SUFFIX):
        name = "element"
    if not short.endswith(KEEPS_SUFFIX):
        short = short.removesuffix("-vnan")
    tag = row.dockerhub_tag or (f"{owner}.{name}-{short}"[:TAG_LIMIT] if name else "")
    return f"jefzda/sweap-images:{tag}" if tag else ""


def _grade_pro(row: Row, context: RowContext) -> Grading:
    run = _read_pro(row, context, row.run_script, row.run_script_path, "run_script", ".sh")
    parser = _read_pro(row, context, row.parser_script, row.parser_script_path, "parser_script")
    script = f"set -- {shlex.quote(','.join(row.selected_test_files))}\n{run}"
    return ScriptGrading("log_parser", script, row.workdir, parser)


def _read_pro(
    row: Row, context: RowContext, text: str, path: str, name: str, suffix: str = ".py"
) -> str:
    if text:
        return text
    if path:
        return context.read(path, f"{name}_path")
    file = "run_script.sh" if suffix == ".sh" else "parser.py"
    short = row.instance_id.removeprefix("instance_")
    for folder in (row.instance_id, short, f"instance_{short}"):
        if (context.beside / RUN_SCRIPTS / folder / file).is_file():
            return context.read(f"{RUN_SCRIPTS}/{folder}/{file}", name)
    raise ValueError(
        f"{name} and {name}_path are missing, and there is no {RUN_SCRIPTS}/{row.instance_id}/"
        f"{file} beside the file of rows: copy {RUN_SCRIPTS} of the set's repository there"
    )


# --- SWE-smith: the patch introduces the bug, so the reference fix is the patch reversed ----------
# The bug is applied to HEAD, as one commit without history: the fix is absent. The files of the
# fail-to-pass tests are removed from the base, as on the set's branches, and put back for grading.

KEPT = ".git/agentrl-tests.tar"
"""File in which the set-up keeps the hidden tests."""
DELIMITER = "EOF_AGENTRL_DIFF"


def _is_smith(fields: Fields) -> bool:
    is_mirror = str(fields.get("repo", "")).startswith("swesmith/")
    return is_mirror or "swesmith." in str(fields.get("image", ""))


def _convert_smith(fields: Fields) -> Fields:
    """Complete an image's name without its owner."""
    image = str(fields.get("image", ""))
    if image.startswith("swesmith."):
        return {**fields, "image": f"jyangballin/{image.replace('__', '_1776_')}"}
    return fields


def _name_smith_image(row: Row) -> str:
    name = row.repo.removeprefix("swesmith/").replace("__", "_1776_").lower()
    return f"jyangballin/swesmith.x86_64.{name}" if name else ""


def _set_up_smith(row: Row) -> tuple[str, ...]:
    files = " ".join(shlex.quote(path) for path in find_named_files(row.fail_to_pass))
    bug = f"git apply --whitespace=nowarn - <<'{DELIMITER}'\n{row.patch}{DELIMITER}"
    hide = f"tar -cf {KEPT} {files}\nrm -f {files}"
    return (*row.pre_commands, bug, hide)


def _grade_smith(row: Row, context: RowContext) -> Grading:
    fixed = find_named_files(row.fail_to_pass)
    if not fixed:
        raise ValueError(
            f"its tests are no pytest ids ({row.fail_to_pass[:1]}): of SWE-smith, only the "
            "Python rows can be graded here"
        )
    if hidden := {*fixed} & read_paths(row.patch).all:
        raise ValueError(f"its bug is in a file of its own tests, {min(hidden)}")
    script = build_test_script(row.workdir, "", [_run_files(PYTEST, _named_files(row))])
    return read_by_log_parser(script, row, context.pytest_judge)


# --- SWE-Gym: no field tells its classic rows from SWE-bench's ------------------------------------

GYM_COMMANDS = {
    "bokeh/bokeh": "pytest -rA -n0",
    "conan-io/conan": "pytest -n0 -rA",
    "dask/dask": "pytest -n0 -rA --color=no",
    "facebookresearch/hydra": "pytest -rA --tb=long",
    "getmoto/moto": "pytest -n0 -rA",
    "iterative/dvc": "pytest -rA",
    "modin-project/modin": "pytest -n0 -rA",
    "pandas-dev/pandas": "pytest -rA --tb=long",
    "project-monai/monai": "pytest -rA",
    "pydantic/pydantic": "pytest -rA --tb=short",
    "python/mypy": "pytest -n0 -rA -k",
}
"""Test command by repository, in lower case. mypy's tests are data: ``-k`` selects their cases."""
_CASE = re.compile(r"^[+ ].*?\[case ([^\]]+)\]", re.MULTILINE)


def _is_gym(fields: Fields) -> bool:
    image = str(fields.get("image", ""))
    return is_classic(fields) and "_s_" in image and "_1776_" not in image


def _grade_gym(row: Row, context: RowContext) -> Grading:
    script = row.eval_script or _build_gym(row)
    return read_by_log_parser(script, row, context.pytest_judge)


def _build_gym(row: Row) -> str:
    command = GYM_COMMANDS.get(row.repo.lower())
    if command is None:
        raise ValueError(f"{row.repo} is no repository of SWE-Gym, and the row has no eval_script")
    arguments = find_test_files(row.test_patch)
    if command.endswith("-k"):
        arguments = [" or ".join(dict.fromkeys(_CASE.findall(row.test_patch)))]
    return build_test_script(row.workdir, row.test_patch, [_run_files(command, arguments)])


# --- SWE-rebench: V1 in Python, V2 in twenty languages; a row says how its tests are run and read -
# Names of V2 may contain how long a test took; both sides are compared without that. Its parsers
# are the set's own, but for pytest's: they are run in the sandbox only.

LOG_PARSERS = "log_parsers.py"
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


def _grade_rebench(row: Row, context: RowContext) -> Grading:
    config = row.install_config
    assert config is not None
    *first, last = config.test_cmd
    commands = [*first, _run_files(last, find_test_files(row.test_patch))]
    script = build_test_script(row.workdir, row.test_patch, commands, prepare=config.install)
    uses_pytest = config.log_parser in PYTEST_PARSERS
    judge = context.pytest_judge if uses_pytest else context.judge
    return read_by_log_parser(script, row, judge, log_parser=config.log_parser, version=row.version)


def _grade_rebench_v2(row: Row, context: RowContext) -> Grading:
    config = row.install_config
    assert config is not None
    if config.log_parser in PYTEST_PARSERS:
        script = build_test_script(row.workdir, row.test_patch, config.test_cmd)
        return read_by_log_parser(script, row, context.pytest_judge, log_parser=config.log_parser)
    if not (context.beside / LOG_PARSERS).is_file():
        raise ValueError(
            f"its log parser {config.log_parser} is in {LOG_PARSERS} (lib/agent) of the set's "
            "repository: copy that file beside the file of rows; it is run in sandboxes only"
        )
    if not config.log_parser.isidentifier():
        raise ValueError(f"install_config.log_parser: {config.log_parser!r} is no function")
    source = context.read(LOG_PARSERS, "log_parser")
    if not re.search(rf"^def {config.log_parser}\(", source, re.MULTILINE):
        raise ValueError(f"{LOG_PARSERS} beside the file of rows has no {config.log_parser}")
    tests = "\n".join(config.test_cmd)
    name = f"_re.sub({TIMING!r}, '', str(_name))"
    return ScriptGrading(
        "log_parser",
        script=build_test_script(row.workdir, row.test_patch, [f"{{ {tests}\n}} 2>&1"]),
        workdir=row.workdir,
        parser=wrap_function(f"{STATES}\n{source}", config.log_parser, name=name),
    )


def strip_timings(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return names of tests without their timings, each once.

    >>> strip_timings(("TestAdd [1.3 ms]", "TestSub (0.1s)", "TestAdd [2 ms]"))
    ('TestAdd', 'TestSub')
    """
    return tuple(dict.fromkeys(re.sub(TIMING, "", name) for name in names))


# --- SWE-Lego, OpenSWE: SWE-bench's fields with an image and a command of the row's own -----------

MARKER = "OPENSWE_EXIT_CODE="
_PRINTS_MARKER = re.compile(
    r"""(?:echo|printf)\s+["']?""" + MARKER + r"""(?P<code>\$\?|\$\w+|\$\{\w+\})["']?[^\n;&|]*"""
)


def _grade_lego(row: Row, context: RowContext) -> Grading:
    script = build_test_script(row.workdir, row.test_patch, [row.test_cmd])
    return read_by_log_parser(script, row, context.pytest_judge)


def _is_openswe(fields: Fields) -> bool:
    return has(fields, "eval_script", "image") and MARKER in str(fields["eval_script"])


def _grade_openswe(row: Row, context: RowContext) -> Grading:
    """Let the script end with the exit code that it prints: a printed line could be anybody's."""
    script, replaced = _PRINTS_MARKER.subn(r"exit \g<code>", row.eval_script)
    if not replaced:
        raise ValueError(f"its eval_script prints no {MARKER}$?")
    return ScriptGrading("eval_cmd", script, row.workdir)


# --- Scale-SWE: pytest ids decide, some of them in a test file that the row carries ---------------

FIXED_TESTS = "test_fail_to_pass.py"
"""File in the repository to which the row's test script is written."""


def _convert_scale(fields: Fields) -> Fields:
    name = str(fields.get("repo", ""))
    return {
        **fields,
        "base_commit": fields.get("parent_commit"),
        "repo": name if "/" in name else f"{fields.get('user', '')}/{name}",
        "pre_commands": str(fields.get("pre_commands", "")).replace("\\n", "\n").rstrip(),
    }


def _find_scale_tests(row: Row) -> set[str]:
    own = [FIXED_TESTS] if row.f2p_script else []
    return {*read_paths(row.f2p_patch).all, *own, *_named_files(row)}


def _grade_scale(row: Row, context: RowContext) -> Grading:
    write = f"printf %s {shlex.quote(row.f2p_script)} > {FIXED_TESTS}"
    script = build_test_script(
        row.workdir,
        row.f2p_patch,
        [_run_files(PYTEST, _named_files(row))],
        prepare=[write] if row.f2p_script else [],
    )
    return read_by_log_parser(script, row, context.pytest_judge)


# --- R2E-Gym: a map of expected outcomes must be met exactly --------------------------------------
# A row has no id, no lists and no diff: all three are made from its commit, that of the fix. The
# tests are in the image, and the command in run_tests.sh; neither is shown to agents.

R2E_TESTS = "/r2e_tests"
RUN_TESTS = "run_tests.sh"
_ISSUE = re.compile(r"\[ISSUE\](.*?)\[/ISSUE\]", re.DOTALL)
_SIGNS = {"context": " ", "added": "+", "deleted": "-", "note": "\\ "}


def _convert_r2e(fields: Fields) -> Fields:
    name, commit = str(fields.get("repo_name", "")), str(fields.get("commit_hash", ""))
    made = {"instance_id": f"{name}__{commit[:12]}", "repo": name}
    # The image's HEAD is before the commit of the fix.
    return {**made, **{key: value for key, value in fields.items() if key != "base_commit"}}


def _state_issue(row: Row) -> str:
    found = _ISSUE.search(row.problem_statement)
    return found[1].strip() if found else row.problem_statement


def _grade_r2e(row: Row, context: RowContext) -> Grading:
    if not row.expected:
        raise ValueError("expected_output_json is empty: every patch would solve it")
    script = f"cd {row.workdir}\nbash {RUN_TESTS}\n"
    return ScriptGrading(
        "status_map", script, row.workdir, json.dumps(row.expected, sort_keys=True)
    )


def _write_fix(row: Row) -> str:
    """Return the fix commit without its tests."""
    if not row.parsed_commit_content:
        return ""
    content = read_object(row.parsed_commit_content)
    files = content.get("file_diffs") if isinstance(content, dict) else None
    if not isinstance(files, list):
        raise ValueError("parsed_commit_content has no list file_diffs")
    return "".join(_format_diff(file) for file in files if _is_source(file))


def _is_source(file: Any) -> bool:
    path = str(file["header"]["file"]["path"])
    *folders, name = path.split("/")
    is_test = name.startswith("test_") or name.endswith("_test.py")
    is_test |= bool({"tests", "test", "Tests", "Test"} & {*folders})
    return path.endswith(".py") and not is_test


def _format_diff(file: Any) -> str:
    """Return one file's diff; raises KeyError and TypeError if it has another form."""
    path, header = file["header"]["file"]["path"], file["header"].get("misc_line")
    lines = [f"diff --git a/{path} b/{path}", *([header] if header else [])]
    if file.get("minus_file") and file.get("plus_file"):
        lines += [f"--- {file['minus_file']['path']}", f"+++ {file['plus_file']['path']}"]
    for hunk in file.get("hunks") or ():
        place = hunk["descriptor"]
        old, new = (_format_range(place[f"{side}_range"]) for side in ("old", "new"))
        section = f" {place['section']}" if place.get("section") else ""
        lines.append(f"@@ -{old} +{new} @@{section}")
        lines += [
            f"{_SIGNS[line['type']]}{line['content']}" for line in hunk["line_group"]["all_lines"]
        ]
    return "\n".join(lines) + "\n"


def _format_range(place: Any) -> str:
    length = place.get("length")
    return f"{place['start']}" if length is None else f"{place['start']},{length}"


# --- Multi-SWE: the image's script applies the test patch and runs the tests ----------------------


def _convert_multi(fields: Fields) -> Fields:
    org, number = fields.get("org"), fields.get("number")
    name = str(fields.get("repo", "")).rpartition("/")[2]
    return {
        **fields,
        "instance_id": f"{org}__{name}-{number}",
        "repo": f"{org}/{name}",
        "problem_statement": fields.get("problem_statement") or _state_pull_request(fields),
        "workdir": fields.get("workdir") or f"/home/{name}",
    }


def _state_pull_request(fields: Mapping[str, Any]) -> str:
    """Return the first issue that the pull request resolves, else the pull request's own text."""
    issues = fields.get("resolved_issues") or [fields]
    first = issues[0] if isinstance(issues, list) else fields
    parts = (first.get("title"), first.get("body"), fields.get("hints"))
    return "\n\n".join(str(part).strip() for part in parts if part)


def _grade_multi(row: Row, context: RowContext) -> Grading:
    request = {
        "org": row.org,
        "repo": row.repo.partition("/")[2],
        "number": row.number,
        "tag": row.tag,
        "number_interval": row.number_interval,
    }
    check_multi_swe(request)
    return ScriptGrading("multi_swe", "bash /home/test-run.sh", row.workdir, json.dumps(request))


# --- Rows of one's own: a shell command or a Python program decides by its exit code --------------

_WORD = re.compile(r"[\w./-]+")


def _find_command_tests(row: Row) -> set[str]:
    """Return paths of test ids, words of the command with ``test``, and files of hidden tests.

    What its runner collects besides is found in its repository (``patches/command_files.py``).
    """
    ids = {*row.fail_to_pass, *row.pass_to_pass}
    named = {word for word in _WORD.findall(row.eval_cmd) if "test" in word}
    modules = {path for word in named for path in _find_modules(word)}
    found = {name.partition("::")[0] for name in ids if "::" in name} | named | modules
    return found | read_paths(row.test_patch).all


def _find_modules(word: str) -> Iterator[str]:
    """Yield the files that a dotted name may be in.

    >>> list(_find_modules("tests.test_add.TestAdd"))
    ['tests/test_add/TestAdd.py', 'tests/test_add.py', 'tests.py']
    """
    parts = word.split(".")
    while "/" not in word and len(parts) > 0 and all(map(str.isidentifier, parts)):
        yield f"{'/'.join(parts)}.py"
        parts.pop()


def _grade_command(row: Row, context: RowContext) -> Grading:
    if row.asks_for_tests and not row.test_patch:
        raise ValueError("asks_for_tests needs test_patch: the hidden tests that decide")
    return ScriptGrading("eval_cmd", row.eval_cmd, row.workdir)


def _place_hidden_tests(row: Row) -> tuple[str, ...]:
    if not row.test_patch:
        return ()
    return (f"git apply --whitespace=nowarn - <<'{DELIMITER}'\n{row.test_patch}{DELIMITER}",)


ENTRIES = (
    Schema(
        "swebench",
        {**PATCHED, "pass_to_pass": TestList},
        ("version", "eval_script", "log_parser", "eval_type"),
        image=_by_id("swebench/sweb.eval.x86_64."),
        grading=_grade_swebench,
    ),
    Schema(
        "r2e_gym",
        {"image": NamedImage, "commit_hash": Commit, "expected": Statuses},
        ("parsed_commit_content",),
        mark=lambda fields: has(fields, "expected_output_json", "image"),
        convert=_convert_r2e,
        needs_tests=False,
        statement=_state_issue,
        tests=lambda row: (tuple(row.expected), ()),  # which of them failed before, no row says
        reference_patch=_write_fix,
        setup=lambda row: (*row.pre_commands, f"mv {RUN_TESTS} .git/{RUN_TESTS}"),
        test_setup=lambda _: (f"cp -R {R2E_TESTS} r2e_tests\ncp .git/{RUN_TESTS} {RUN_TESTS}",),
        hidden=lambda row: (R2E_TESTS, f"{row.workdir}/{RUN_TESTS}"),
        grading=_grade_r2e,
    ),
    Schema(
        "multi_swe",
        {"org": Name, "number": int, "fix_patch": Diff, "test_patch": Diff, "base": Target},
        ("tag", "number_interval", "f2p_tests", "s2p_tests", "n2p_tests", "p2p_tests"),
        mark=lambda fields: has(fields, "org", "number", "fix_patch"),
        convert=_convert_multi,
        image=lambda row: f"mswebench/{row.repo.replace('/', '_m_')}:pr-{row.number}".lower(),
        tests=lambda row: (
            tuple(dict.fromkeys((*row.f2p_tests, *row.s2p_tests, *row.n2p_tests))),
            row.p2p_tests,
        ),
        reference_patch=lambda row: row.fix_patch,
        grading=_grade_multi,
    ),
    Schema(
        "scale_swe",
        {**NAMED, "image": NamedImage, "base_commit": Commit},
        ("pass_to_pass", "f2p_patch", "f2p_script"),
        mark=lambda fields: has(fields, "image_url", "parent_commit"),
        convert=_convert_scale,
        test_paths=_find_scale_tests,
        grading=_grade_scale,
    ),
    Schema(
        "swebench_pro",
        {**NAMED, "selected_test_files": NameList},
        (
            *("pass_to_pass", "before_repo_set_cmd", "run_script", "run_script_path"),
            *("parser_script", "parser_script_path", "requirements", "interface", "dockerhub_tag"),
        ),
        mark=_is_pro,
        convert=_convert_pro,
        image=_tag_pro,
        statement=lambda row: "\n\n".join(
            part for part in (row.problem_statement, row.requirements, row.interface) if part
        ),
        test_paths=lambda row: {name.partition("::")[0] for name in row.selected_test_files},
        setup=_set_up_pro,
        test_setup=lambda row: tuple(_pro_lines(row)[-1:]),
        grading=_grade_pro,
    ),
    Schema(
        "swe_smith",
        {**NAMED, "patch": Diff},
        ("pass_to_pass",),
        mark=_is_smith,
        convert=_convert_smith,
        image=_name_smith_image,
        test_paths=_named_files,
        reference_patch=lambda row: reverse_diff(row.patch),
        setup=_set_up_smith,
        test_setup=lambda _: (f"tar -xf {KEPT}",),
        grading=_grade_smith,
    ),
    Schema(
        "swebench_live",
        {**NAMED, "base_commit": Commit, "test_cmds": CommandLines},
        ("pass_to_pass", "test_patch", "rebuild_cmds", "print_cmds", "log_parser"),
        mark=lambda fields: has(fields, "test_cmds"),
        convert=lambda fields: {"log_parser": fields.get("parser", "pytest"), **fields},
        image=_by_id("starryzhang/sweb.eval.x86_64."),
        grading=_grade_live,
    ),
    Schema(
        "swe_rebench",
        {**PATCHED, "install_config": Install},
        ("pass_to_pass", "version"),
        mark=lambda fields: (
            has(fields, "install_config") and not has(fields, "image_name", "language")
        ),
        image=_by_id("swerebench/sweb.eval.x86_64."),
        grading=_grade_rebench,
    ),
    Schema(
        "swe_rebench_v2",
        {**PATCHED, "language": Name, "install_config": Install},
        ("pass_to_pass",),
        mark=lambda fields: has(fields, "install_config", "image_name", "language"),
        # The repository is at its own name, in its own case.
        convert=lambda fields: {
            "workdir": f"/{str(fields.get('repo', '')).rpartition('/')[2]}",
            **fields,
        },
        tests=lambda row: (strip_timings(row.fail_to_pass), strip_timings(row.pass_to_pass)),
        grading=_grade_rebench_v2,
    ),
    Schema(
        "eval_cmd",
        {"eval_cmd": Name},
        # The lists only say how many tests the command stands for.
        ("fail_to_pass", "pass_to_pass", "test_patch", "asks_for_tests"),
        mark=lambda fields: has(fields, "eval_cmd"),
        needs_tests=False,
        test_paths=_find_command_tests,
        test_setup=_place_hidden_tests,
        grading=_grade_command,
        is_own=True,
    ),
    Schema(
        "f2p_script",
        {"f2p_script": Name},
        mark=lambda fields: has(fields, "f2p_script") and not has(fields, "parent_commit"),
        needs_tests=False,
        grading=lambda row, _: ScriptGrading("f2p_script", row.f2p_script, row.workdir),
        is_own=True,
    ),
    Schema(
        "swe_lego",
        {**PATCHED, "image": NamedImage, "test_cmd": Name},
        ("pass_to_pass",),
        mark=lambda fields: has(fields, "test_cmd", "image", "test_patch"),
        grading=_grade_lego,
    ),
    Schema(
        "openswe",
        {**NAMED, "image": NamedImage, "base_commit": Commit, "eval_script": Name},
        ("pass_to_pass",),
        mark=_is_openswe,
        test_paths=lambda row: read_paths(row.eval_script).all,
        grading=_grade_openswe,
    ),
    Schema(
        "swe_gym",
        PATCHED,
        ("pass_to_pass", "version", "eval_script"),
        mark=_is_gym,
        image=_by_id("xingyaoww/sweb.eval.x86_64.", "_s_"),
        grading=_grade_gym,
    ),
)
SCHEMAS = {schema.name: schema for schema in ENTRIES}
PLAIN = Schema("plain", {}, needs_tests=False)
"""A row without tests, for a set that a plug-in grades."""
