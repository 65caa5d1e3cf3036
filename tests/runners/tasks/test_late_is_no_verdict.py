"""No deadline and no lost process of ours is a grade: every grader, each of its stages."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import psutil
import pytest

from runners.sandboxes.contract import (
    TIMED_OUT,
    CommandResult,
    KilledError,
    OversizedError,
    Sandbox,
    SandboxBackend,
    SandboxError,
    SandboxSpec,
)
from runners.tasks.contract import (
    CustomGrading,
    Grading,
    ParserName,
    ScriptGrading,
    Task,
    UnittestIds,
    Verdict,
    VerdictKind,
)
from runners.tasks.grading.graders import JUDGES
from runners.tasks.grading.graders.packages import (
    PROGRAM,
    LostReaderError,
    log_file,
    read_logs,
    read_swebench,
)
from runners.tasks.grading.graders.packages import _read_apart as read_apart
from runners.tasks.grading.grading import SandboxGrader
from runners.tasks.patches.capture_process import KILLED, serve
from tests.runners.tasks.example_repositories import make_task, patch_of
from tests.runners.tasks.pytest_tasks import report_line

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("swebench") is None, reason="the extra swebench is not installed"
)
SOLVED, UNSOLVED, INFRA = VerdictKind.SOLVED, VerdictKind.UNSOLVED, VerdictKind.INFRA
Trouble = Callable[[], CommandResult]


@dataclass
class PlainSandbox:
    """A sandbox whose runners report that every test passes, unless there is trouble."""

    spec: SandboxSpec
    number: int
    """Of the sandboxes of its backend, from 0."""
    trouble: Callable[[int, bool], Trouble | None]
    deadlines: list[float]
    workdir: str = "/testbed"
    gateway_url: str | None = None

    async def run(
        self, argv: list[str], *, deadline_s: float, stdin: bytes = b"", **_: Any
    ) -> CommandResult:
        self.deadlines.append(deadline_s)
        reads_log = stdin.startswith(b"{")
        trouble = self.trouble(self.number, reads_log)
        if trouble is not None:
            return trouble()
        if reads_log:
            tests = [{"name": name, "status": "PASSED"} for name in ("t::a", "t::b")]
            return CommandResult(0, json.dumps({"tests": tests}).encode(), b"", 0.1)
        nonce, second = stdin.decode().split("\n")[:2]
        lines = ["start"]
        if second.isdecimal():
            lines += ["0 pass", "1 pass", "end"]
        else:
            lines += [
                "begin",
                *(report_line("passed", name) for name in ("t::a", "t::b")),
                "exit 0",
            ]
        return CommandResult(0, "".join(f"{nonce} {line}\n" for line in lines).encode(), b"", 0.1)

    async def close(self) -> None:
        pass


@dataclass
class TroubledBackend:
    """Makes sandboxes that have trouble by their number and by what they run."""

    trouble: Callable[[int, bool], Trouble | None]
    names: list[str] = field(default_factory=list)
    purposes: list[str] = field(default_factory=list)
    deadlines: list[float] = field(default_factory=list)

    async def create(self, spec: SandboxSpec) -> Sandbox:
        self.names.append(spec.name)
        self.purposes.append(spec.known_as)
        return cast(Sandbox, PlainSandbox(spec, len(self.names) - 1, self.trouble, self.deadlines))


class Asks:
    """A plug-in that asks its sandbox once."""

    async def __call__(self, row: object, sandbox: Sandbox, deadline_s: float) -> float:
        await sandbox.run(["true"], deadline_s=deadline_s, stdin=b"n\nplugin")
        return 1.0


def script(kind: ParserName, parser: str = "") -> ScriptGrading:
    return ScriptGrading(kind, "pytest", "/testbed", parser)


PYTEST = json.dumps({"log_parser": "parse_log_pytest"})
REFERENCE = "the reference patch"
STATUSES = json.dumps({"a": "PASSED", "b": "PASSED"})
PLUGIN = json.dumps({"target": f"{__name__}:Asks"})
GRADINGS: dict[str, Grading] = {
    "unittest": UnittestIds(),
    "pytest": script("pytest", PYTEST),
    "log_parser": script("log_parser", "a parser"),
    "status_map": script("status_map", STATUSES),
    "eval_cmd": script("eval_cmd"),
    "custom": CustomGrading(PLUGIN, "{}"),
}
NEED_PACKAGE = {"swebench", "multi_swe"}
"""Their readers run on this machine: see below."""


def test_every_grader_is_in_the_table() -> None:
    assert {*GRADINGS, "f2p_script"} | NEED_PACKAGE == {*JUDGES}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return make_task(tmp_path_factory.mktemp("task"))


def with_kind(base: Task, kind: str) -> Task:
    names = ("a", "b") if kind == "status_map" else ("t::a", "t::b")
    return replace(
        base,
        fail_to_pass=names[:1],
        pass_to_pass=names[1:],
        grading=GRADINGS[kind],
        gold_patch=REFERENCE,
    )


async def grade(
    base: Task, kind: str, backend: TroubledBackend, patch: bytes = b"another patch"
) -> Verdict:
    return await SandboxGrader(cast(SandboxBackend, backend)).grade(
        with_kind(base, kind), patch_of(patch), name="g", deadline_s=9
    )


def late(cpu_s: float, waited_s: float) -> CommandResult:
    return CommandResult(TIMED_OUT, b"", b"", 9.0, True, cpu_s, waited_s)


def stop(error: Exception) -> CommandResult:
    raise error


OURS: dict[str, Trouble] = {
    "had no processor": lambda: late(0.2, 8.0),
    "was killed": lambda: stop(KilledError("killed from outside")),
    "was lost": lambda: stop(SandboxError("no such container")),
    "has no disk": lambda: stop(OversizedError("the disk is full")),
}


@pytest.mark.parametrize("trouble", OURS.values(), ids=OURS)
@pytest.mark.parametrize("kind", GRADINGS)
async def test_trouble_that_the_reference_patch_has_too_is_no_verdict(
    base: Task, kind: str, trouble: Trouble
) -> None:
    verdict = await grade(base, kind, TroubledBackend(lambda _number, _reads: trouble))
    assert verdict.kind is INFRA, verdict


DOUBTFUL = {name: each for name, each in OURS.items() if name != "was lost"}


CONTROL = {name: 1 if name == "had no processor" else 2 for name in DOUBTFUL}
"""Number of the run of the reference patch: load comes and goes, so it is between the others."""


@pytest.mark.parametrize("name", DOUBTFUL)
@pytest.mark.parametrize("kind", GRADINGS)
async def test_trouble_that_comes_once_costs_a_second_run(base: Task, kind: str, name: str) -> None:
    backend = TroubledBackend(lambda number, _reads: None if number else DOUBTFUL[name])
    verdict = await grade(base, kind, backend)
    assert verdict.kind is SOLVED, verdict
    expected = ["g", "g-again"] if CONTROL[name] == 2 else ["g", "g-control", "g-again"]
    assert backend.purposes == expected, "what a fault plan and a diagnosis go by"
    assert not any("g-" in name[7:] or "again" in name for name in backend.names), "not inside"


@pytest.mark.parametrize("name", DOUBTFUL)
@pytest.mark.parametrize("kind", GRADINGS)
async def test_trouble_that_only_the_patch_has_is_its_own(base: Task, kind: str, name: str) -> None:
    def trouble(number: int, _reads: bool) -> Trouble | None:
        return None if number == CONTROL[name] else DOUBTFUL[name]

    verdict = await grade(base, kind, TroubledBackend(trouble))
    assert (verdict.kind, verdict.fail_to_pass_passed) == (UNSOLVED, 0), verdict
    assert verdict.reason.startswith("with this patch, and not without it, ")
    verdict = await grade(base, kind, TroubledBackend(trouble), REFERENCE.encode())
    assert verdict.kind is not UNSOLVED, "it is the reference patch"


@pytest.mark.parametrize("kind", [kind for kind in GRADINGS if kind != "custom"])
async def test_a_runner_that_has_not_started_says_nothing_about_the_patch(
    base: Task, kind: str
) -> None:
    asleep = TroubledBackend(lambda _number, _reads: lambda: late(0.0, 0.0))
    assert (await grade(base, kind, asleep)).kind is INFRA


@pytest.mark.parametrize(
    ("cpu_s", "waited_s", "is_starved"),
    [(8.0, 0.5, False), (0.0, 0.0, False), (0.2, 8.0, True), (8.0, 8.0, False), (1.0, 1.0, False)],
    ids=["a loop", "a sleep", "no processor", "a hundred loops", "slow by itself"],
)
def test_what_the_policy_makes_late_stays_its_own(
    cpu_s: float, waited_s: float, is_starved: bool
) -> None:
    assert late(cpu_s, waited_s).starved is is_starved
    assert not replace(late(cpu_s, waited_s), timed_out=False).starved
    assert not replace(late(cpu_s, waited_s), cpu_s=None).starved, "nobody measures it"


async def test_a_run_without_a_processor_is_no_verdict_where_the_reference_patch_is_slow_or_absent(
    base: Task,
) -> None:
    starved = OURS["had no processor"]
    slow = TroubledBackend(lambda number, _: (lambda: late(4.4, 0.1)) if number == 1 else starved)
    assert (await grade(base, "unittest", slow)).kind is INFRA
    assert slow.deadlines == [9, 4.5, 9], "the reference patch has half the time"
    patch = patch_of(b"another patch")
    absent = TroubledBackend(lambda _number, _reads: starved)
    grader = SandboxGrader(cast(SandboxBackend, absent))
    task = replace(with_kind(base, "eval_cmd"), gold_patch="")
    verdict = await grader.grade(task, patch, name="g", deadline_s=9)
    assert (verdict.kind, absent.purposes) == (INFRA, ["g", "g-again"]), verdict


PARSER_TROUBLE: dict[str, tuple[Trouble, VerdictKind]] = {
    "had no processor": (OURS["had no processor"], INFRA),
    "was killed": (lambda: CommandResult(-9, b"", b"", 1.0), INFRA),
    "does not end": (lambda: late(8.9, 0.1), UNSOLVED),
    "fails": (lambda: CommandResult(1, b"", b"no such line", 1.0), UNSOLVED),
}


@pytest.mark.parametrize(("trouble", "kind"), PARSER_TROUBLE.values(), ids=PARSER_TROUBLE)
async def test_a_task_s_own_parser_that_is_late_or_killed(
    base: Task, trouble: Trouble, kind: VerdictKind
) -> None:
    backend = TroubledBackend(lambda _number, reads: trouble if reads else None)
    assert (await grade(base, "log_parser", backend)).kind is kind


# --- readers on this machine ---------------------------------------------------------------------

ROW = {
    "repo": "sympy/sympy",
    "version": "",
    "image": "",
    "log_parser": "parse_log_sympy",
    "eval_type": "pass_and_fail",
}
LOG = b"+ : '>>>>> Start Test Output'\ntest_add ok\n+ : '>>>>> End Test Output'\n"


@pytest.fixture
def read(base: Task) -> Task:
    grading = ScriptGrading("swebench", "true", "/testbed", json.dumps(ROW))
    return replace(base, fail_to_pass=("test_add",), pass_to_pass=(), grading=grading)


def kill_readers(until: threading.Event) -> None:
    """Kill every reader that this process starts."""
    while not until.wait(0.05):
        for child in psutil.Process().children():
            if PROGRAM in child.cmdline():
                os.kill(child.pid, signal.SIGKILL)


@needs_package
@pytest.mark.integration
def test_a_reader_that_is_killed_gives_no_verdict(read: Task) -> None:
    done = threading.Event()
    killer = threading.Thread(target=kill_readers, args=[done])
    killer.start()
    try:
        with pytest.raises(LostReaderError, match="SIGKILL"):
            read_swebench(read, LOG)
        with log_file(LOG) as file:
            (report,) = read_logs([(read, file)])
        assert (report["resolved"], report["infra_failure"]) == (False, True)
    finally:
        done.set()
        killer.join()


@needs_package
@pytest.mark.integration
def test_a_reader_without_a_processor_gives_no_verdict_and_one_that_is_broken_neither(
    read: Task,
) -> None:
    with pytest.raises(LostReaderError, match="the machine is overloaded"):
        read_apart({"instances": []}, 60, late_s=0.01)
    grading = replace(cast(ScriptGrading, read.grading), parser=json.dumps({"repo": "x/y"}))
    with pytest.raises(LostReaderError, match="reads no log at all"):
        read_swebench(replace(read, grading=grading), LOG)


# --- capture --------------------------------------------------------------------------------------


def kill_self(_: bytes) -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def test_a_capture_that_somebody_kills_is_not_the_workspaces_fault() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = os.fork()
    if server == 0:
        ours.close()
        serve(kill_self, theirs.detach())
        os._exit(0)
    theirs.close()
    reader, writer = os.pipe()
    content = os.memfd_create("request")
    socket.send_fds(ours, [b"30 30"], [content, writer])
    os.close(writer)
    os.close(content)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == KILLED
    ours.close()
    os.waitpid(server, 0)
