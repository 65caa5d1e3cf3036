"""The functions of test files that a task's test ids name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from runners.tasks.grading.canaries.source_file import SourceFile

Function = ast.FunctionDef | ast.AsyncFunctionDef
_WORD = re.compile(r"[\w./:-]+")
_DJANGO = re.compile(r"(\w+) \(([\w.]+)\)")


@dataclass(frozen=True, slots=True, eq=False)
class TestFunction:
    """One function or method; several ids name it if it has parameters or is inherited."""

    __test__ = False  # its name is no order to pytest

    path: str
    file: SourceFile
    function: Function
    ids: tuple[str, ...] = ()


def find_tests(files: Mapping[str, SourceFile], ids: Iterable[str]) -> list[TestFunction]:
    """Return the functions that ids name, with their ids, in the order of the ids.

    Ids are pytest's (``path::Class::test[a]``), unittest's (``module.Class.test``), Django's
    (``test (module.Class)``), or the bare name of a function. An id without a function is left out.
    """
    found: dict[Function, tuple[str, list[str]]] = {}
    for name in ids:
        for path, parts in _places(files, name):
            function = _find_function(files[path].tree, parts)
            if function is not None:
                found.setdefault(function, (path, []))[1].append(name)
                break
    return [
        TestFunction(path, files[path], function, tuple(names))
        for function, (path, names) in found.items()
    ]


def rename_id(name: str, old: str, new: str) -> str:
    """Return the id of a function that has another name.

    >>> rename_id("tests/test_sum.py::test_sum[test_sum]", "test_sum", "test_2")
    'tests/test_sum.py::test_2[test_sum]'
    >>> rename_id("test_sum (app.test_sum.Sums.test_sum)", "test_sum", "test_2")
    'test_2 (app.test_sum.Sums.test_2)'
    """
    if django := _DJANGO.fullmatch(name):
        owner = django[2].removesuffix(f".{old}")
        return f"{new} ({owner}{f'.{new}' if owner != django[2] else ''})"
    head, bracket, parameters = name.partition("[")
    before, _, after = head.rpartition(old)
    return f"{before}{new}{after}{bracket}{parameters}"


def all_tests(files: Mapping[str, SourceFile]) -> list[TestFunction]:
    """Return every function of the files whose name begins with ``test``."""
    return [
        TestFunction(path, file, node)
        for path, file in files.items()
        for node in ast.walk(file.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")
    ]


def find_in_command(files: Mapping[str, SourceFile], command: str) -> list[TestFunction]:
    """Return the tests in what a command names: folders, files, modules, classes, tests. All tests
    if it names none of these.

    A changed test that the command does not run would say nothing.
    """
    found: dict[int, None] = {}
    for word in _WORD.findall(command):
        path, *parts = word.removeprefix("./").rstrip("/").split("::")
        named = [(each, parts) for each in files if each == path or each.startswith(f"{path}/")]
        if not named and "/" not in path:  # a module; a class or a test may follow it
            named = [(each, inside[:-1]) for each, inside in _places(files, f"{path}.*")]
        for each, inside in named:
            scopes: list[ast.AST] = [files[each].tree]
            for part in inside:
                scopes = [
                    child
                    for scope in scopes
                    for child in getattr(scope, "body", ())
                    if getattr(child, "name", None) == part
                ]
            found |= dict.fromkeys(id(node) for scope in scopes for node in ast.walk(scope))
    tests = all_tests(files)
    return [test for test in tests if id(test.function) in found] or tests


def called_functions(test: TestFunction) -> list[Function]:
    """Return the functions of the same file that a function calls, directly or through others."""
    own = {
        node.name: node
        for node in ast.walk(test.file.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node is not test.function
    }
    found: dict[str, Function] = {}
    left: list[ast.AST] = [test.function]
    while left:
        for node in ast.walk(left.pop()):
            name = _called_name(node)
            if name in own and name not in found:
                found[name] = own[name]
                left.append(own[name])
    return list(found.values())


def _called_name(node: ast.AST) -> str:
    match node:
        case (
            ast.Call(func=ast.Name(id=name))
            | ast.Call(func=ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name))
        ):
            return name
    return ""


def _places(files: Mapping[str, SourceFile], name: str) -> Iterable[tuple[str, list[str]]]:
    """Yield the files that may have a test, with the names of its classes and function."""
    if "::" in name:
        path, *parts = name.partition("[")[0].split("::")
        if path in files:
            yield path, parts
    elif django := _DJANGO.fullmatch(name):
        *_, owner = [part for part in django[2].split(".") if part != django[1]]
        yield from ((path, [owner, django[1]]) for path in files)
    elif "." in name:
        words = name.split(".")
        for cut in range(len(words) - 1, 0, -1):
            path = "/".join(words[:cut]) + ".py"
            if path in files:
                yield path, words[cut:]
    else:
        yield from ((path, [name]) for path in files)


def _find_function(tree: ast.Module, parts: list[str]) -> Function | None:
    """Return the function at the end of a path of names; a method may be inherited in the file."""
    scope: ast.Module | ast.ClassDef = tree
    for part in parts[:-1]:
        inner = [node for node in scope.body if isinstance(node, ast.ClassDef)]
        named = [node for node in inner if node.name == part]
        if not named:
            return None
        scope = named[-1]
    return _method(tree, scope, parts[-1], set())


def _method(
    tree: ast.Module, scope: ast.Module | ast.ClassDef, name: str, seen: set[ast.AST]
) -> Function | None:
    for node in reversed(scope.body):  # the last definition of a name is the one that counts
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return node
    seen.add(scope)
    parents = scope.bases if isinstance(scope, ast.ClassDef) else []
    names = {parent.id for parent in parents if isinstance(parent, ast.Name)}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name in names and node not in seen:
            function = _method(tree, node, name, seen)
            if function is not None:
                return function
    return None
