"""A recording shows each screen in turn, and loads and runs nothing."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from tests.documentation.recording import SECONDS, animate, scroll


def test_a_long_output_is_read_in_screens_that_overlap() -> None:
    rows = [f"row {number}" for number in range(25)]
    screens = [screen.splitlines() for screen in scroll("\n".join(rows) + "\n\n", 10)]
    assert screens[0] == rows[:10]
    assert screens[1][:2] == screens[0][-2:]
    assert screens[-1][-1] == rows[-1]
    assert scroll("one\n", 10) == ["one"]


def test_each_screen_is_shown_in_its_time_and_none_has_a_script() -> None:
    picture = animate([("\x1b[31mred\x1b[0m <b>", "one"), ("a\nb\nc", "two"), ("d", "three")])
    ElementTree.fromstring(picture)
    delays = re.findall(r"animation-delay: (\d+)s", picture)
    assert delays == ["0", str(SECONDS), str(2 * SECONDS)]
    assert f"animation: screen {3 * SECONDS}s step-end infinite" in picture
    assert not re.search(r"<script|href=|url\((?!#)|<b>", picture)
    assert {"t0-r1", "t1-r1", "t2-r1"} <= set(re.findall(r"\bt\d-r1\b", picture))
