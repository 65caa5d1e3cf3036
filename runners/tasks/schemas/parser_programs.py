"""Programs that read a test log in the sandbox, in the form of SWE-bench-Pro's parsers.

A program is run as ``PROGRAM STDOUT STDERR RESULT``, three paths, and writes ``{"tests": [{"name":
…, "status": "PASSED"}, …]}`` to the last one.
"""

from __future__ import annotations

from functools import lru_cache

PYTEST_SUMMARY = '''\
import re


def parser(log):
    """Return the outcomes of the lines that ``pytest -rA`` prints at its end."""
    found = {}
    for line in re.sub(r"\\x1b\\[[0-9;]*m", "", log).splitlines():
        word, _, rest = line.partition(" ")
        if word in ("PASSED", "XFAIL", "FAILED", "ERROR", "XPASS") and rest.strip():
            name = rest.split(" - ")[0].strip()
            found[name] = "pass" if word in ("PASSED", "XFAIL") else "fail"
    return found
'''
_CALL = """

if __name__ == "__main__":
    import json as _json
    import re as _re
    import sys as _sys

    with open(_sys.argv[1], errors="replace") as _file:
        _found = {function}(_file.read())
    _passing = ("pass", "passed", "xfail")
    _tests = [
        {{"name": {name}, "status": "PASSED" if str(_state).lower() in _passing else "FAILED"}}
        for _name, _state in _found.items()
    ]
    with open(_sys.argv[3], "w") as _file:
        _json.dump({{"tests": _tests}}, _file)
"""


@lru_cache(maxsize=64)  # thousands of rows share a parser, and keep one text of it
def wrap_function(source: str, function: str, *, name: str = "str(_name)") -> str:
    """Return the program that calls ``function`` of ``source`` with the text of stdout.

    The function returns test name → status; ``pass``, ``PASSED`` and ``XFAIL`` pass, in any case.
    ``name`` is an expression of the reported name, with ``_name`` and the module ``_re``.
    """
    return source + _CALL.format(function=function, name=name)
