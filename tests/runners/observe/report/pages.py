"""Pages of a run as a browser draws them."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from runners.observe.report.page import write_report
from runners.records.store.run_store import RunStore
from tests.fakes.browser import Browser

_SECTIONS = r"""(() => {
  const text = (root) => {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT), found = [];
    while (walker.nextNode()) found.push(walker.currentNode.data);
    return found.join(" ").replace(/[ \n]+/g, " ").trim();
  };
  const parts = [...document.querySelectorAll("main > header, main > section")];
  return Object.fromEntries(parts.map((part) => [part.id, text(part)]));
})()"""


async def draw(browser: Browser, page: Path) -> dict[str, str]:
    """Return the text of each section, tooltips too; that of the head under ""."""
    await browser.open(page.as_uri())
    return cast(dict[str, str], await browser.run(_SECTIONS))


async def draw_report(browser: Browser, store: RunStore) -> dict[str, str]:
    """Return the sections of a run's report."""
    return await draw(browser, write_report(store.run_dir))
