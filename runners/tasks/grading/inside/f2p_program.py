"""Run a task's Python program as ``__main__`` and prove that it came to its end.

Runs as ``python f2p_program.py FILE``, and in place of ``python -c TEXT`` (``end_proof.py``). The
program has come to its end after its last line, or where it, or ``unittest.main``, calls
``sys.exit``. A SystemExit from elsewhere, for example from the code under test, is exit code 1.
"""

import os
import sys
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from runners.tasks.grading.inside import agentrl_channel
else:
    import agentrl_channel


def main(path: str) -> None:
    """Run the program; end with its exit code."""
    tell = agentrl_channel.get_teller()
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        code = compile(file.read(), path, "exec", dont_inherit=True)
    program = ModuleType("__main__")
    is_command = os.environ.pop("AGENTRL_COMMAND", "") == "1"
    if not is_command:
        program.__file__ = path
    program.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = program
    if is_command:
        sys.argv, sys.path[0] = ["-c", *sys.argv[2:]], ""
    else:
        sys.argv, sys.path[0] = [path], os.path.dirname(path)  # noqa: PTH120
    end: SystemExit | None = None
    try:
        exec(code, program.__dict__)
    except SystemExit as raised:
        end = raised
    enders = (path, getattr(sys.modules.get("unittest.main"), "__file__", path))
    if end is not None and last_file(end.__traceback__) not in enders:
        sys.stderr.write("the code under test called sys.exit\n")
        sys.exit(1)
    if tell is not None:
        tell("reached")
    if end is not None:
        raise end


def last_file(trace: "TracebackType | None") -> str:
    """Return the file in which an exception was raised."""
    file = ""
    while trace is not None:
        file, trace = trace.tb_frame.f_code.co_filename, trace.tb_next
    return file


if __name__ == "__main__":
    main(sys.argv[1])
