"""Names that the other districts may import."""

from __future__ import annotations

from runners.campaigns.what_if.figures import RuleFigures
from runners.campaigns.what_if.what_if import WhatIf, ask_what_if

__all__ = [
    "RuleFigures",
    "WhatIf",
    "ask_what_if",
]
