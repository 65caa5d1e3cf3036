"""Honest solutions that look odd, drawn from a small grammar, and graded many at a time.

The judge's own runner runs the real tests, and then those of a calibrated canary, of ten solutions
that lie beside each other as packages of one repository; ten such groups have one sandbox. Where a
group is not paid as a whole, each of its solutions is graded alone. What is left out of a grading
is the patch's way into the sandbox, which has nothing to do with what it says.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from runners.sandboxes.contract import CommandResult, SandboxSpec
from runners.sandboxes.local.backend import LocalBackend
from runners.sandboxes.wrappers import open_sandbox
from runners.tasks.contract import Task, UnittestIds, Verdict, VerdictKind
from runners.tasks.grading.canaries.calibration import Calibration, Canary
from runners.tasks.grading.canaries.test_texts import read_tests
from runners.tasks.grading.canaries.verification import judge_canary
from runners.tasks.grading.graders.unittest_ids import (
    RUNNER_INSIDE,
    list_tests,
    read_verdict,
    unittest_mounts,
)
from runners.tasks.grading.grading import SandboxGrader

SUMS = (
    "sum(prices)",
    "functools.reduce(operator.add, prices, 0)",
    "sum(price for price in list(prices))",
    "[*itertools.accumulate(prices, initial=0)][-1]",
    "_add_up(iter(prices))",
)
ANSWERS = (
    "{s} * (100 - discount) // 100",
    "{s} - -(-{s} * discount // 100)",
    "divmod({s} * (100 - discount), 100)[0]",
    "math.floor(fractions.Fraction({s} * (100 - discount), 100))",
    "int(decimal.Decimal({s} * (100 - discount)) // 100)",
    "Cents({s} * (100 - discount) // 100)",
    "eval('value // 100', {{'value': {s} * (100 - discount)}})",
)
"""``{s}`` is the sum."""
FORMS = {
    "plain": "def total(prices, discount=0):\n    return {answer}\n",
    "lambda": "total = lambda prices, discount=0: {answer}\n",
    "decorator": "@logged\ndef total(prices, discount=0):\n    return {answer}\n",
    "thread": """\
def total(prices, discount=0):
    found = queue.Queue()
    worker = threading.Thread(target=lambda: found.put(attempt(lambda: {answer})))
    worker.start()
    worker.join()
    return unwrap(found.get())
""",
    "pool": """\
def total(prices, discount=0):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: {answer}).result()
""",
    "coroutine": """\
def total(prices, discount=0):
    async def compute():
        await asyncio.sleep(0)
        return {answer}

    return asyncio.run(compute())
""",
    "callable object": """\
class _Total:
    def __call__(self, prices, discount=0):
        return {answer}


total = _Total()
""",
    "metaclass": """\
class _Computing(type):
    def __call__(cls, prices, discount=0):
        return super().__call__(prices, discount).value


class total(metaclass=_Computing):
    def __init__(self, prices, discount):
        self.value = {answer}
""",
    "new": """\
class total(int):
    def __new__(cls, prices, discount=0):
        return super().__new__(cls, {answer})
""",
    "generator": """\
def total(prices, discount=0):
    def steps():
        yield {answer}

    return next(steps())
""",
    "context": """\
def total(prices, discount=0):
    return contextvars.copy_context().run(lambda: {answer})
""",
    "partial": """\
def _total(discount, prices, given=None):
    discount = discount if given is None else given
    return {answer}


def total(prices, discount=0):
    return functools.partial(_total, 0)(prices, discount)
""",
    "descriptor": """\
class _Answer:
    def __get__(self, owner, kind=None):
        prices, discount = owner.asked
        return {answer}


class _Order:
    answer = _Answer()

    def __init__(self, *asked):
        self.asked = asked


def total(prices, discount=0):
    return _Order(prices, discount).answer
""",
    "dispatch": """\
@functools.singledispatch
def total(prices, discount=0):
    return {answer}


total.register(tuple)(lambda prices, discount=0: {answer})
""",
    "finally": """\
def total(prices, discount=0):
    try:
        return {answer}
    except TypeError as error:
        raise TypeError("no price") from error
    finally:
        gc.collect(0)
""",
}
"""``{answer}`` is the right value."""
EXTRAS = (
    "_print = builtins.print\nbuiltins.print = lambda *a, **k: _print(*a, **k)\n",
    "atexit.register(gc.collect)\n",
    "warnings.simplefilter('ignore')\n",
    "logging.basicConfig(level=logging.DEBUG)\n",
    "sys.setrecursionlimit(5000)\n",
    "signal.signal(signal.SIGUSR1, lambda *_: None)\n",
    "threading.Thread(target=time.sleep, args=(0.001,), daemon=True).start()\n",
    "def __getattr__(name):\n    raise AttributeError(name)\n",
    "sys.modules[__name__].__class__ = type('Shop', (types.ModuleType,), {})\n",
    "gc.disable()\n",
    "sys.stdout.write('shop is loaded')\n",
    "class Money(int):\n    def __eq__(self, other):\n        return int(self) == other\n\n"
    "    __hash__ = int.__hash__\n",
    "class Plugin:\n    def __init_subclass__(cls):\n        cls.known = True\n\n\n"
    "class Discount(Plugin):\n    pass\n",
    "sys.excepthook = lambda *error: sys.__excepthook__(*error)\n",
    "os.environ['SHOP'] = 'open'\n",
    "sys.setswitchinterval(0.001)\n",
    "random.seed(1)\n",
    "locale.setlocale(locale.LC_ALL, 'C')\n",
)
HEAD = '''\
"""Prices in cents."""

{imports}


class Cents(int):
    def __repr__(self):
        return f"{int(self)} ct"


def _add_up(rest):
    return next((price + _add_up(rest) for price in rest), 0)


def logged(function):
    @functools.wraps(function)
    def wrapper(*arguments, **options):
        logging.getLogger("shop").debug("%s", arguments)
        return function(*arguments, **options)

    return wrapper


def attempt(function):
    try:
        return function(), None
    except Exception as error:
        return None, error


def unwrap(pair):
    if pair[1] is not None:
        raise pair[1]
    return pair[0]


'''
MODULES = (
    *("asyncio", "atexit", "builtins", "concurrent.futures", "contextvars", "decimal", "fractions"),
    *("functools", "gc", "itertools", "locale", "logging", "math", "operator", "os", "queue"),
    *("random", "signal", "sys", "threading", "time", "types", "warnings"),
)
BATCH = """\
import json, os, subprocess, sys

for run in json.load(open("batch.json")):
    for path, text in run["files"].items():
        os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, "w").write(text)
    done = subprocess.run(
        [sys.executable, "-I", "-S", sys.argv[1]],
        input=run["request"], capture_output=True, text=True, timeout=300,
    )
    print(json.dumps([done.returncode, done.stdout, done.stderr[-2000:]]), flush=True)
"""
GROUP = 10
NONCE = "0123456789abcdef"


def draw_solutions(rng: random.Random) -> Iterator[str]:
    """Yield the text of ``shop/price.py`` for ever, none of them twice."""
    known: set[str] = set()
    while True:
        total = rng.choice(SUMS)
        answer = rng.choice(ANSWERS).format(s=total)
        form = FORMS[rng.choice(list(FORMS))].format(answer=answer)
        extras = rng.sample(EXTRAS, rng.randrange(4))
        body = "\n\n".join([*extras, form])
        used = [name for name in MODULES if f"{name}." in HEAD + body]
        text = HEAD.replace("{imports}", "\n".join(f"import {name}" for name in used)) + body
        if text not in known:
            known.add(text)
            yield text


@dataclass(frozen=True, slots=True)
class _Run:
    """The tests of a task, or of its canary, for a group of solutions."""

    task: Task
    """Its ids are those of all solutions of the group."""
    files: dict[str, str]

    @property
    def request(self) -> str:
        """The runner's input."""
        tests = list_tests(self.task)
        return "\n".join([NONCE, str(len(tests)), *tests, *self.task.protected])


def _place(task: Task, tests: dict[str, str], texts: list[str], prefix: str) -> _Run:
    """Return the tests of a task for solutions that are packages with a prefix in their names."""
    files: dict[str, str] = {}
    ids: dict[str, list[str]] = {"fail_to_pass": [], "pass_to_pass": [], "protected": []}
    for number, text in enumerate(texts):
        package = f"{prefix}_{number}"
        files |= {f"{package}/__init__.py": "", f"{package}/shop/__init__.py": ""}
        files[f"{package}/shop/price.py"] = text
        for path, source in tests.items():
            files[f"{package}/{path}"] = source.replace("from shop.", f"from {package}.shop.")
        for name, found in ids.items():
            mark = "/" if name == "protected" else "."
            found += [f"{package}{mark}{each}" for each in getattr(task, name)]
    placed = replace(
        task,
        grading=UnittestIds(),
        fail_to_pass=tuple(ids["fail_to_pass"]),
        pass_to_pass=tuple(ids["pass_to_pass"]),
        protected=tuple(ids["protected"]),
    )
    return _Run(placed, files)


async def grade_groups(
    backend: LocalBackend, task: Task, groups: list[tuple[Canary, list[str]]], name: str
) -> list[str]:
    """Return for each group of solutions of a task of unittest ids why it would not be paid, after
    the real tests and a canary in one sandbox; "" for one that would be.
    """
    real = {path: text.decode() for path, text in read_tests(task).items()}
    pairs = []
    for at, (canary, texts) in enumerate(groups):
        changed = {path: text.decode() for path, text in canary.placed.files.items()}
        pairs.append(
            (
                _place(task, real, texts, f"real{at}"),
                _place(canary.placed.task, changed, texts, f"more{at}"),
            )
        )
    work = [{"files": run.files, "request": run.request} for pair in pairs for run in pair]

    def change(workspace: Path) -> None:
        (workspace / "batch.json").write_text(json.dumps(work))
        (workspace / "batch.py").write_text(BATCH)

    spec = SandboxSpec(name, task.repo, "none", mounts=dict(unittest_mounts()), change=change)
    async with open_sandbox(backend, spec) as sandbox:
        done = await sandbox.run(
            ["python", "batch.py", RUNNER_INSIDE], deadline_s=3600, output_limit=1 << 26
        )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if len(lines) != len(work):
        raise RuntimeError(f"the batch ended early: {done.stderr[-2000:]!r}")
    verdicts = [
        read_verdict(run.task, NONCE, CommandResult(code, out.encode(), err.encode(), 0.0))
        for run, (code, out, err) in zip(
            [run for pair in pairs for run in pair], lines, strict=True
        )
    ]
    return [
        _complain(canary, verdicts[2 * at], verdicts[2 * at + 1])
        for at, (canary, _) in enumerate(groups)
    ]


def _complain(canary: Canary, real: Verdict, changed: Verdict) -> str:
    if real.kind is not VerdictKind.SOLVED:
        return f"{real.reason} {real.log}"
    finding = judge_canary(changed, canary, real)
    return finding.accusation or finding.failure


async def draw_canaries(backend: LocalBackend, task: Task, *, seed: int) -> list[Canary]:
    """Return all calibrated canaries of a task."""
    calibration = Calibration(SandboxGrader(backend), secret=str(seed))
    canaries: list[Canary] = []
    while True:
        used = frozenset(canary.number for canary in canaries)
        canary = await calibration.draw(task, "negated", but=used, name="odd", deadline_s=120)
        if canary is None:
            return canaries
        canaries.append(canary)


async def grade_odd_solutions(
    backend: LocalBackend, task: Task, count: int, *, seed: int = 1
) -> list[tuple[str, str]]:
    """Grade so many odd solutions; return those that would not be paid, with the reason."""
    canaries = await draw_canaries(backend, task, seed=seed)
    solutions = itertools.islice(draw_solutions(random.Random(seed)), count)
    unpaid: list[tuple[str, str]] = []
    for number in range(0, count, GROUP * GROUP):
        groups = [
            (canaries[at % len(canaries)], list(itertools.islice(solutions, GROUP)))
            for at in range(GROUP)
        ]
        groups = [group for group in groups if group[1]]
        reasons = await grade_groups(backend, task, groups, f"odd-{number}")
        alone = [
            (canary, [text])
            for (canary, texts), reason in zip(groups, reasons, strict=True)
            if reason
            for text in texts
        ]
        found = await grade_groups(backend, task, alone, f"alone-{number}") if alone else []
        unpaid += [
            (text, reason) for (_, (text,)), reason in zip(alone, found, strict=True) if reason
        ]
        print(f"{number + GROUP * GROUP} odd solutions, {len(unpaid)} unpaid", file=sys.stderr)
    return unpaid
