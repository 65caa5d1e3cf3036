"""Choose MKL's kernels whose sums do not depend on the rows and threads of a product.

On some of Intel's processors the usual kernels let the number of rows and of threads decide the
order of a sum (seen with 3 threads on two cores of an Emerald Rapids); in the strict mode they do
not. On AMD's it is the other way round: on an EPYC with AVX-512 the strict mode's do (with 3, 4 and
8 threads, products of 8 to 56 rows and 32 or 64 columns), the usual ones do not where the rows are
a multiple of 4.
"""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "MKL_CBWR"
"""MKL reads it at the process's first product."""


def set_mkl_mode(cpuinfo: Path = Path("/proc/cpuinfo")) -> None:
    """Set the mode for this processor unless the environment names one; call it before the first
    product.
    """
    if VARIABLE not in os.environ and _is_intel(cpuinfo):
        os.environ[VARIABLE] = "AUTO,STRICT"


def _is_intel(cpuinfo: Path) -> bool:
    try:
        return "GenuineIntel" in cpuinfo.read_text("utf-8", "replace")
    except OSError:
        return False
