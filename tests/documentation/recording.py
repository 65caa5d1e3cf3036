"""A recording: screens of a real terminal, one after the other, as one SVG that needs no script."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.documentation.terminal import LINES, draw

SECONDS = 5
"""Time for which a screen is shown."""


def scroll(text: str, lines: int = LINES) -> list[str]:
    """Return the screens by which somebody who pages through a long output reads it.

    Each has ``lines`` lines and begins with two of the one before.
    """
    rows = text.rstrip().splitlines()
    starts = range(0, max(len(rows) - 2, 1), lines - 2)
    return ["\n".join(rows[start : start + lines]) for start in starts]


def animate(screens: Sequence[tuple[str, str]]) -> str:
    """Return (screen, title) pairs as one picture; who wants no motion sees the last one."""
    drawn = [draw(*screen, name=f"t{number}") for number, screen in enumerate(screens)]
    sizes = [re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', picture) for picture in drawn]
    width = max(float(size[1]) for size in sizes if size)
    height = max(float(size[2]) for size in sizes if size)
    shown = 100 / len(drawn)
    whole = len(drawn) * SECONDS
    frames = []
    for number, (picture, size) in enumerate(zip(drawn, sizes, strict=True)):
        assert size is not None
        inner = picture.replace("<svg ", f'<svg width="{size[1]}" height="{size[2]}" ', 1)
        delay = f'style="animation-delay: {number * SECONDS}s"'
        frames.append(f'<g class="screen" {delay}>{inner}</g>')
    style = (
        f"@keyframes screen {{ 0%, {shown:.3f}% {{ visibility: visible }} "
        f"{shown + 0.001:.3f}%, 100% {{ visibility: hidden }} }} "
        ".screen { visibility: hidden } .screen:last-child { visibility: visible } "
        "@media (prefers-reduced-motion: no-preference) { .screen, .screen:last-child "
        f"{{ visibility: hidden; animation: screen {whole}s step-end infinite }} }}"
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}">'
    return f"{head}<style>{style}</style>{''.join(frames)}</svg>\n"
