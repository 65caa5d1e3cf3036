"""Draw a variant of a task's tests: some are changed so that a right solution must fail them, some
are reworded so that it must pass them.

One fail-to-pass test stands in a line-up: several times, under other names, with another value
each, of which one is the right one. So a patch that knows that it is in a canary, and not what is
right, has to guess. The same task, secret and number give the same variant.
"""

from __future__ import annotations

import ast
import json
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from runners.tasks.contract import ScriptGrading, Task
from runners.tasks.grading.canaries.held_out import draw_unseen_inputs
from runners.tasks.grading.canaries.literals import respell
from runners.tasks.grading.canaries.negated_tests import (
    Negation,
    draw_family,
    end_negation,
    find_negations,
    find_program_negations,
)
from runners.tasks.grading.canaries.rewordings import reword
from runners.tasks.grading.canaries.source_file import SourceFile, Splice
from runners.tasks.grading.canaries.test_functions import (
    TestFunction,
    called_functions,
    find_in_command,
    find_tests,
    rename_id,
)
from runners.tasks.grading.canaries.test_texts import PROGRAM

VERSION = 4
"""Version of the rules: raise it when the same inputs give another variant."""
FURTHER_LIMIT = 8
"""Pass-to-pass tests that a variant changes at most: each is another chance of a flaky one."""
SHARE = 0.3
"""Part of the further tests that must fail."""
ANSWERS = frozenset({"const", "data"})
"""Kinds of change after which a patch that reads the answer out of the test gives a wrong one, and
is seen to; a wrapped variable would give it the right one.
"""
STRONG = ANSWERS | {"wrap", "raises", "match"}
"""Kinds of change that an object which equals everything passes."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Changed tests, and what a right solution makes of them."""

    files: Mapping[str, bytes]
    must_fail: tuple[str, ...]
    """Ids; empty where only an exit code decides and the command must fail."""
    must_pass: tuple[str, ...]
    """Ids; empty where only an exit code decides."""
    unseen: tuple[str, ...] = ()
    """Ids among ``must_pass`` whose inputs are new."""
    changes: tuple[str, ...] = ()
    """Kinds of the changes, for the record."""
    line_up: LineUp | None = None


@dataclass(frozen=True, slots=True)
class LineUp:
    """One test several times, of which a right solution passes one."""

    copies: Mapping[str, tuple[str, ...]]
    """Ids of the copies, in their order in the file, by the id of the test itself; its own too."""
    right: frozenset[str]
    """Ids of the copy that must pass; the others must fail."""


def is_judged_by_exit_code(task: Task) -> bool:
    """Return whether one bit is all that a grading says."""
    grading = task.grading
    return (
        isinstance(grading, ScriptGrading)
        and grading.kind in ("eval_cmd", "f2p_script")
        and not grading.parser
    )


def judge_each_test(task: Task, texts: Mapping[str, bytes], rng: random.Random) -> Task:
    """Return a task of ``eval_cmd`` as one that the reports of pytest decide.

    Its deciding tests are those that it names, or some that its files have. Where the command runs
    no pytest, or from elsewhere, none of them has a report.
    """
    assert isinstance(task.grading, ScriptGrading)
    files = _parse(texts)
    named = {
        id(test.function)
        for test in find_tests(files, task.fail_to_pass)
        or find_in_command(files, _read_command(task))
    }
    ids = [name for path, file in files.items() for name in _list_ids(path, file.tree, named)]
    ids = rng.sample(ids, min(len(ids), 1 + FURTHER_LIMIT))
    grading = replace(task.grading, parser=json.dumps({"log_parser": "pytest"}))
    return replace(task, grading=grading, fail_to_pass=tuple(ids), pass_to_pass=())


def _read_command(task: Task) -> str:
    """Return the command of a task, without the repository's path."""
    assert isinstance(task.grading, ScriptGrading)
    return task.grading.script.replace(f"{task.grading.workdir.rstrip('/')}/", "")


def _list_ids(
    prefix: str, scope: ast.Module | ast.ClassDef, wanted: Collection[int]
) -> Iterator[str]:
    """Yield pytest's ids of the tests of a file; of ``wanted`` functions only, if there are any."""
    for node in scope.body:
        if isinstance(node, ast.ClassDef):
            yield from _list_ids(f"{prefix}::{node.name}", node, wanted)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (
            id(node) in wanted if wanted else node.name.startswith("test")
        ):
            yield f"{prefix}::{node.name}"


def draw_negated_variant(
    task: Task, texts: Mapping[str, bytes], rng: random.Random, *, lines_up: bool = True
) -> Variant | None:
    """Return a variant with at least one fail-to-pass test that must fail; None if there is none.

    Where only an exit code decides, exactly one assertion is changed: were all of them, an honest
    failure of one would hide that the others were made to pass. ``lines_up``: the first test that
    is changed stands in a line-up, if it can; None if it cannot.
    """
    files = _parse(texts)
    if is_judged_by_exit_code(task):
        return _draw_single(task, files, rng, right=False)
    splices: dict[str, list[Splice]] = {}
    must_fail: list[str] = []
    kinds: list[str] = []
    touched: set[int] = set()
    fixed = find_tests(files, task.fail_to_pass)
    rng.shuffle(fixed)
    fixed.sort(key=_has_no_answers)
    kept = find_tests(files, task.pass_to_pass)
    rng.shuffle(kept)
    left: list[TestFunction] = []
    line_up = None
    for test in [*fixed, *kept[:FURTHER_LIMIT]]:
        # A second fail-to-pass test stays, to be reworded or to get new inputs.
        wanted = not must_fail or (bool(left) and rng.random() < SHARE)
        drawn = _draw(test, rng) if wanted and id(test.function) not in touched else None
        if drawn is None or (not must_fail and test not in fixed):
            left.append(test)
            continue
        change, family, functions = drawn
        touched |= functions
        kinds.append(change.kind)
        if lines_up and not must_fail:
            if (lined_up := _line_up(test, family, rng)) is None:
                return None
            line_up, made = lined_up
            must_fail += [
                i for ids in line_up.copies.values() for i in ids if i not in line_up.right
            ]
        else:
            made = [family[1]]
            must_fail += test.ids
        splices.setdefault(test.path, []).extend(made)
    if not must_fail:
        return None
    left = [test for test in left if not touched & _reached(test)]
    must_pass, unseen = _reword_some(task, left, splices, rng)
    must_pass += line_up.right if line_up else ()
    changed = _apply(files, splices)
    if changed is None:
        return None
    return Variant(
        changed, tuple(must_fail), tuple(must_pass), tuple(unseen), tuple(kinds), line_up
    )


def _line_up(
    test: TestFunction, family: list[Splice], rng: random.Random
) -> tuple[LineUp, list[Splice]] | None:
    """Return a line-up of a test whose text has a family, with the changes that make it; None if
    the family is elsewhere.
    """
    file, function = test.file, test.function
    start, at, end = file.first_line(function), file.name(function), file.end_of_line(function)
    if not all(start <= splice.start and splice.end <= end for splice in family):
        return None
    right, members = family[0], rng.sample(family, len(family))
    names = [function.name]
    number = 1
    while len(names) < len(members):
        number += 1
        if f"{function.name}_{number}".encode() not in file.source:
            names.append(f"{function.name}_{number}")
    texts = []
    for name, splice in zip(names, members, strict=True):
        named = Splice(at, at + len(function.name.encode()), name)
        texts.append(file.rewrite(start, end, [named, splice]))
    copies = {i: tuple(rename_id(i, function.name, name) for name in names) for i in test.ids}
    passing = frozenset(ids[members.index(right)] for ids in copies.values())
    return LineUp(copies, passing), [Splice(start, end, "\n\n".join(texts))]


def draw_reworded_variant(
    task: Task, texts: Mapping[str, bytes], rng: random.Random
) -> Variant | None:
    """Return a variant that a right solution passes as a whole; None if nothing can be reworded."""
    files = _parse(texts)
    if is_judged_by_exit_code(task) and (variant := _draw_single(task, files, rng, right=True)):
        return variant
    splices: dict[str, list[Splice]] = {}
    ids = (*task.fail_to_pass, *task.pass_to_pass)
    command = _read_command(task) if is_judged_by_exit_code(task) else None
    tests = find_tests(files, ids) if command is None else find_in_command(files, command)
    must_pass, unseen = _reword_some(task, tests, splices, rng)
    changed = _apply(files, splices)
    if changed is None or not splices:
        return None
    return Variant(changed, (), tuple(must_pass), tuple(unseen), ("reworded",))


def _parse(texts: Mapping[str, bytes]) -> dict[str, SourceFile]:
    parsed = {path: SourceFile.parse(text) for path, text in texts.items()}
    return {path: file for path, file in parsed.items() if file is not None}


def _draw_single(
    task: Task, files: Mapping[str, SourceFile], rng: random.Random, *, right: bool
) -> Variant | None:
    """Return a variant with one assertion that is changed; ``right``: to the same claim, written
    as the changed one is (``6`` as ``4 + 2``). None if there is none.
    """
    if PROGRAM in files:
        file = files[PROGRAM]
        drawn = _draw_best(find_program_negations(file), rng)
        choices = [(PROGRAM, file, *drawn)] if drawn else []
    else:
        tests = find_tests(files, task.fail_to_pass) or find_in_command(files, _read_command(task))
        rng.shuffle(tests)
        choices = [
            (test.path, test.file, change, family)
            for test in tests
            if (found := _draw(test, rng)) is not None
            for change, family, _ in [found]
        ]
        choices.sort(key=lambda choice: _rank(choice[2]))
    if not choices:
        return None
    path, file, change, family = choices[0]
    splice = family[0 if right else 1]
    respelled = respell(splice.text, rng) if change.kind in ANSWERS else None
    if right and respelled is None:
        return None
    text = file.apply([replace(splice, text=respelled or splice.text)])
    kind = "respelled" if right else change.kind
    return None if text is None else Variant({path: text}, (), (), (), (kind,))


def _rank(negation: Negation) -> int:
    return next((rank for rank, kinds in enumerate((ANSWERS, STRONG)) if negation.kind in kinds), 2)


def _has_no_answers(test: TestFunction) -> bool:
    return all(_rank(one) for one in find_negations(test.file, test.function))


def _draw(test: TestFunction, rng: random.Random) -> tuple[Negation, list[Splice], set[int]] | None:
    """Return the best change of a test, or of a function that it calls, with its family and the
    functions that it affects.
    """
    own = find_negations(test.file, test.function)
    helpers = called_functions(test)
    elsewhere = [] if own else [(h, find_negations(test.file, h)) for h in helpers]
    for function, negations in [(test.function, own), *elsewhere]:
        if (drawn := _draw_best(negations, rng)) is not None:
            return *drawn, {id(function), id(test.function)}
    last = end_negation(test.file, test.function)
    drawn = draw_family([last], rng) if last else None
    return None if drawn is None else (*drawn, {id(test.function)})


def _draw_best(
    negations: Sequence[Negation], rng: random.Random
) -> tuple[Negation, list[Splice]] | None:
    """Return a change of the best rank that can be made, with its family; None if none can."""
    for rank in range(3):
        drawn = draw_family([one for one in negations if _rank(one) == rank], rng)
        if drawn is not None:
            return drawn
    return None


def _reached(test: TestFunction) -> set[int]:
    """Return the functions of the file that a test runs."""
    return {id(test.function), *map(id, called_functions(test))}


def _reword_some(
    task: Task,
    tests: Sequence[TestFunction],
    splices: dict[str, list[Splice]],
    rng: random.Random,
) -> tuple[list[str], list[str]]:
    """Reword tests, or give them new inputs; return the ids of both, and of these the ones with new
    inputs.
    """
    ids: list[str] = []
    unseen: list[str] = []
    for test in tests:
        fresh = draw_unseen_inputs(task, test.file, test.function, rng)
        found = fresh or reword(test.file, test.function, rng)
        if found:
            splices.setdefault(test.path, []).extend(found)
            ids += test.ids
            unseen += test.ids if fresh else ()
    return ids, unseen


def _apply(
    files: Mapping[str, SourceFile], splices: Mapping[str, list[Splice]]
) -> dict[str, bytes] | None:
    changed = {path: files[path].apply(made) for path, made in splices.items()}
    if any(text is None for text in changed.values()):
        return None
    return {path: text for path, text in changed.items() if text is not None}
