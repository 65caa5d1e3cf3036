"""Shell programs of a policy that wants no grade, a slow driver, or to be in the next run's way.

They run only in a sandbox with a pid namespace of its own; ``FILES_ONLY`` also without one.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from runners.records.outcome import OutcomeCode

FINISHED = OutcomeCode.POLICY_FINISHED
PATCH, WORKSPACE, UNREADABLE = (
    OutcomeCode.POLICY_OVERSIZED_PATCH,
    OutcomeCode.POLICY_OVERSIZED_WORKSPACE,
    OutcomeCode.POLICY_UNREADABLE_WORKSPACE,
)
REFUSALS = frozenset({PATCH, WORKSPACE, UNREADABLE})


@dataclass(frozen=True, slots=True)
class HostileProgram:
    """A program, and the outcome of an attempt whose agent runs it and then submits."""

    script: str
    outcome: OutcomeCode
    files_only: bool = True
    """It reaches no other process."""


def _only(script: str, outcome: OutcomeCode = FINISHED) -> HostileProgram:
    return HostileProgram(script, outcome)


HOSTILE: Mapping[str, HostileProgram] = {
    "deep": _only(  # a thousand processes of mkdir outlast the deadline of a busy machine
        "python -c \"import os; [(os.mkdir('d'), os.chdir('d')) for _ in range(1200)]\"", WORKSPACE
    ),
    "long_path": _only(
        "n=$(printf 'x%.0s' $(seq 250)); for i in $(seq 40); do mkdir $n; cd $n; done", WORKSPACE
    ),
    "link_to_itself": _only("ln -s loop loop; ln -s loop setup.cfg; ln -s b a; ln -s a b"),
    "tests_are_a_loop": _only("rm -rf tests; ln -s tests tests"),
    "library_is_a_loop": _only("ln -s json json; ln -s /proc/self/root six; ln -s . py"),
    "long_link": _only("ln -s $(printf 'x%.0s' $(seq 4000)) link; ln -s link conftest.py"),
    "files_of_git": _only("mkfifo .gitignore .gitattributes; mkdir s; mkfifo s/.gitignore"),
    "special_files": _only("mkfifo pipe setup.cfg tests/conftest.py; rm -rf calc; mkfifo calc"),
    "locked": _only("mkdir -p a/b; touch a/b/c; chmod 0 a/b/c a/b a calc tests ."),
    "sparse_file": _only("truncate -s 15M a b c", PATCH),
    "sparse_files": _only("for i in $(seq 40); do truncate -s 7M f$i; done", PATCH),
    "noise": _only("head -c 1500000 /dev/urandom > noise", PATCH),
    "zeros": _only("truncate -s 500K zeros; truncate -s 500K 'odd name é.txt'"),
    "many_files": _only("mkdir m; cd m; for i in $(seq 1500); do : > $i; done", PATCH),
    "many_ignored_files": _only(
        "mkdir build; cd build; for i in $(seq 6000); do : > $i; done", WORKSPACE
    ),
    "ignored_bytes": _only(
        "mkdir build; for i in 1 2 3 4 5; do head -c 14M /dev/zero > build/$i; done", WORKSPACE
    ),
    "ignored_build": _only("mkdir build; head -c 12M /dev/zero > build/lib.so"),
    "names_of_git": _only("mkdir -p git~1 .GIT a/.git b; touch git~1/x .GIT/x; mkfifo b/.git"),
    "odd_names": _only("touch $'\\xff\\xfe' $'a\\nb' -- '-x' '\"q\"' $'\\t' '::' ':(top)'"),
    "nested_brackets": _only(
        "printf '[tool.pytest]\\nx = ' > pyproject.toml; "
        "printf '[%.0s' $(seq 100000) >> pyproject.toml"
    ),
    "patterns": _only(
        'for i in $(seq 20000); do echo "*a*b*c*$i*"; done > .gitignore; cp .gitignore '
        ".gitattributes; touch aaaaaaaaabbbbbbbbbbbccccccccccc"
    ),
    "nothing_left": _only("rm -rf -- * .[a-z]*"),
    "a_file_as_git": _only("rm -rf .git; echo 'gitdir: /etc' > .git"),
    "hard_links": _only(
        "python -c \"import os; [os.link('script.sh', f'l{i}') for i in range(900)]\""
    ),
    "flood": _only("head -c 20M /dev/zero | tr '\\0' x"),
    "no_descriptors": _only("exec 0<&- 1>&- 2>&-; for i in $(seq 3 200); do :; done"),
    "descriptors": _only('for i in $(seq 10 900); do eval "exec $i>f"; done; exit 3'),
    "processes": HostileProgram(
        "for i in $(seq 200); do (sleep 100 &) ; done; setsid -f sleep 100", FINISHED, False
    ),
    "signals": HostileProgram("trap '' TERM INT HUP; kill -STOP -1; kill -9 -1", FINISHED, False),
    "memory": HostileProgram("x=$(head -c 2G /dev/zero | tr '\\0' x)", FINISHED, False),
}
"""By name; the limits are those of ``SMALL_LIMITS``."""

SMALL_LIMITS = {"workspace_mb": 64, "workspace_files": 5000}
"""Of ``rollout.capture``, so that the programs stay small."""


# --- random programs -----------------------------------------------------------------------------

NAMES = ("a", "calc", "tests", "conftest.py", "setup.cfg", ".git", "json", "x y", "$'\\xff'", "-n")


def make_program(seed: int) -> str:
    """Return a random hostile program."""
    lot = random.Random(seed)
    return "\n".join(_step(lot) for _ in range(lot.randint(2, 7)))


def _step(lot: random.Random) -> str:
    name, other = lot.choice(NAMES), lot.choice(NAMES)
    count = lot.choice((1, 3, 30, 300, 1500))
    size = lot.choice(("1", "100K", "3M", "9M", "15M"))
    mode = lot.choice(("0", "111", "222", "444", "1777", "4755"))
    long_name = "$(printf 'n%.0s' $(seq 250))"
    return lot.choice(
        (
            f"(for i in $(seq {count}); do mkdir -p -- d && cd d; done)",
            f"(for i in $(seq {min(count, 60)}); do mkdir -p {long_name} && cd {long_name}; done)",
            f"(mkdir -p many && cd many && for i in $(seq {count}); do : > $i; done)",
            f"rm -rf -- {name}; ln -s -- {other} {name}",
            f"ln -sf -- {name} {name}",
            f"ln -- {name} {other}",
            f"rm -rf -- {name}; mkfifo -- {name}",
            f"mkdir -p -- {name}/{other}; touch -- {name}/{other}/f",
            f"truncate -s {size} -- {name}",
            f"head -c {size} /dev/urandom > {lot.choice('pqr')}",
            f"chmod -R {mode} -- {name}",
            f"chmod {mode} .",
            f"(sleep {count} &); setsid -f sleep {count}",
            f"for i in $(seq {min(count, 300)}); do (sleep 9 &); done",
            "trap '' TERM HUP INT; kill -STOP $BASHPID & kill -INT $$",
            f"exec {lot.randint(3, 9)}>&1 {lot.choice('012')}>&-",
            f"printf '{lot.choice('[{(')}%.0s' $(seq {100 * count}) > pyproject.toml",
            f"mv -- {name} {other}; mv -- {other} {name}/",
            "git init -q .; git add -A; git commit -qm x; git gc -q",
            "python -c \"import socket; socket.socket(socket.AF_UNIX).bind('sock')\"",
            f"yes | head -c {size}",
            f"ulimit -n 8; ulimit -f 1; echo > {name}",
            "kill -9 $$",
            "rm -rf -- * .[a-z]*",
        )
    )
