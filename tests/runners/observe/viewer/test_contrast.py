"""Every text of the page stands out from what is behind it, in light and dark."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runners.observe.viewer.server import ViewServer
from tests.fakes.browser import Browser, needs_chromium, start_browser

pytestmark = [pytest.mark.integration, needs_chromium]
LEAST = 4.5
"""Contrast of WCAG 2.2, level AA."""
VIEWS = (
    "",
    "#group:train-2-0",
    *(f"#train-000002-000-00?tab={tab}" for tab in ("Conversation", "Tokens", "Patch", "Tests")),
    "#eval-000001-003-00?tab=Tests",
)
MEASURE = r"""(() => {
  const parse = (text) => {
    const numbers = text.match(/[\d.]+/g).map(Number);
    const scale = text.startsWith("color(") ? 255 : 1;
    return [...numbers.slice(0, 3).map((number) => number * scale), numbers[3] ?? 1];
  };
  const over = (top, base) => base.map((value, i) => value * (1 - top[3]) + top[i] * top[3]);
  const behind = (element) => {
    const layers = [];
    for (let each = element; each; each = each.parentElement) {
      layers.push(parse(getComputedStyle(each).backgroundColor));
      if (layers.at(-1)[3] === 1) break;
    }
    return layers.reverse().reduce((base, layer) => over(layer, base), [255, 255, 255]);
  };
  const luminance = (colour) => {
    const [r, g, b] = colour.map((value) => value / 255)
      .map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const weak = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement, text = texts.currentNode.textContent.trim();
    const box = element.getBoundingClientRect();
    if (!text || !box.width || !box.height || element.closest("option, script, style")) continue;
    seen += 1;
    const style = getComputedStyle(element), base = behind(element);
    const ink = over(parse(element instanceof SVGElement ? style.fill : style.color), base);
    const [low, high] = [luminance(ink), luminance(base)].sort((a, b) => a - b);
    const contrast = (high + 0.05) / (low + 0.05);
    if (contrast < LEAST) weak.push(`${contrast.toFixed(2)} ${element.className}: ${text}`);
  }
  return {seen, weak};
})()""".replace("LEAST", str(LEAST))


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    async with start_browser(tmp_path) as browser:
        yield browser


@pytest.mark.parametrize("dark", [False, True])
async def test_every_text_can_be_read(browser: Browser, run_dir: Path, dark: bool) -> None:
    await browser.show_as(1280, 900, dark=dark)
    async with ViewServer(run_dir, 0) as server:
        for view in VIEWS:
            await browser.open(f"{server.url}{view}")
            await browser.until("document.querySelectorAll('#spacer .row .task').length > 0")
            await browser.until("document.querySelector('main').innerText.trim().length > 40")
            found = await browser.run(MEASURE)
            assert found["seen"] > 20, view
            assert found["weak"] == [], view
