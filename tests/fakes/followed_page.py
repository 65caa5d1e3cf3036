"""Follows a page as a reader would: runs its commands, in order, in a directory."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]


async def follow(
    page: Path, place: Path, addresses: Mapping[str, str], section: str = ""
) -> list[str]:
    """Run every ``sh`` block of a page in order; return what each printed on stdout.

    ``addresses``: the page's addresses, and those of the servers in their place. ``section``: only
    the blocks below this heading of the second level.
    """
    shim = place.parent / "bin"
    shim.mkdir()
    programs = {"agentrl": "-m cli.main ", "pytest": "-m pytest ", "python": ""}
    for name, start in programs.items():
        (shim / name).write_text(f'#!/bin/sh\nexec {sys.executable} {start}"$@"\n')
        (shim / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{shim}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'runners' / 'api'}",
        "TERM": "dumb",
        "COLUMNS": "200",
    }
    printed = []
    text = page.read_text("utf-8")
    if section:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
        assert text, f"{page.name} has no section {section!r}"
    for address, served in addresses.items():
        text = text.replace(address, served)
    for block in re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S):
        process = await asyncio.create_subprocess_exec(
            "bash",
            "-euc",
            block,
            cwd=place,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode == 0, f"{block}\n{out.decode()}\n{err.decode()}"
        printed.append(out.decode())
    return printed
