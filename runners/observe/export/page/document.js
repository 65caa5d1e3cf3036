"use strict";
// A file of one document: a run's report, or runs side by side.

function drawDocument(found) {
  const named = new Set(), [head, all] = found.runs ? drawRuns(found) : drawReport(found, linkInPage(named));
  const sections = all.filter(Boolean);
  if (named.size) sections.splice(-1, 0, openSection(found, [...named].sort()));
  at("main").replaceChildren(head, sectionBar(sections, (one) => `#${one.id}`), ...sections);
  if (location.hash) at(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
}

// The lines to which the names of rollouts lead: they work wherever the file lies and whatever runs.
function openSection({ status, exported_page: page }, names) {
  const run = quoted(status.run_dir), lines = table(["rollout", "in a browser", "in a terminal"], names.map((id) => [page ? make("a", { href: `${page}#${encodeURIComponent(id)}` }, code(id)) : code(id), code(`agentrl view ${run} ${quoted(id)} --open`), code(`agentrl rollouts ${run} ${quoted(id)}`)]));
  lines.querySelectorAll("tbody tr").forEach((row, index) => row.setAttribute("id", `rollout-${names[index]}`));
  return section("Open a rollout", dim(`These commands open the rollouts that this page names. ${page ? "The names are links into the page that " : "A page that "}`, code(`agentrl dump-trajectories ${run} --format html`), page ? " wrote, as of then." : " writes holds all of them, for any browser."), lines);
}

drawDocument(JSON.parse(at("document").textContent));
