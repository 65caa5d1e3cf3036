"""MKL's mode follows the processor, and what the environment says goes first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runners.engines.embedded.mkl_mode import VARIABLE, set_mkl_mode

INTEL, AMD = "vendor_id\t: GenuineIntel\n", "vendor_id\t: AuthenticAMD\n"


@pytest.mark.parametrize(
    ("given", "cpuinfo", "mode"),
    [
        (None, INTEL, "AUTO,STRICT"),
        (None, AMD, None),
        (None, None, None),
        ("COMPATIBLE", INTEL, "COMPATIBLE"),
    ],
)
def test_the_strict_mode_is_for_intels_processors(
    given: str | None,
    cpuinfo: str | None,
    mode: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "")  # so that what is set is taken back
    monkeypatch.delenv(VARIABLE)
    if given is not None:
        monkeypatch.setenv(VARIABLE, given)
    path = tmp_path / "cpuinfo"
    if cpuinfo is not None:
        path.write_text(cpuinfo, "utf-8")
    set_mkl_mode(path)
    assert os.environ.get(VARIABLE) == mode
