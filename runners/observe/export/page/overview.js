"use strict";
// The run's steps with their groups, and one group with its rollouts.

const STATES = { running: "none", done: "good", failed: "bad", killed: "bad" };
let groups = null; // of the whole run

async function overview() {
  groups = await source.groups();
  const steps = new Map();
  for (const group of groups) {
    const key = `${group.split} ${group.step}`;
    steps.set(key, [...(steps.get(key) ?? []), group]);
  }
  const head = make("div", { class: "title" }, back(), make("h1", {}, run.name), run.state ? make("span", { class: STATES[run.state] ?? "dim" }, run.state) : null, source.hasReport ? link(REPORT, {}, {}, "report: curves, tasks, failures") : null);
  const keys = make("p", { class: "dim" }, "A square is a group: the share of its rollouts that solved the task. ", make("kbd", {}, "?"), " shows the keys.");
  const live = source.live && run.in_progress ? await source.list({ only: ["running"], sort: "-duration" }, 0, LIVE) : null;
  const inProgress = live?.rows.length ? progressCard(live) : null;
  if (!groups.length) return [head, inProgress, empty("No rollout has ended yet.")].filter(Boolean);
  // The newest first: the evaluation after a step follows it.
  const newest = [...steps.values()].sort(([a], [b]) => b.step - a.step || (a.split === "eval" ? -1 : 1));
  return [head, keys, inProgress, ...newest.map(stepCard)].filter(Boolean);
}

// The run's report, as `agentrl report` writes it.
async function reportView() {
  const [top, all] = drawReport(await source.report(), linkInViewer), sections = all.filter(Boolean);
  const bar = sectionBar(sections, () => linkTo(REPORT), (event, one) => {
    event.preventDefault();
    one.scrollIntoView({ block: "start" });
  });
  return [back(), make("div", { class: "document" }, top, bar, sections)];
}

const LIVE = 50; // rollouts in progress that the overview shows, those that take longest

function progressCard({ rows, sums }) {
  const columns = ["", "rollout", "task", "", "turns", "tokens", "time"];
  const body = rows.map((row) => make("tr", {}, make("td", { class: "live" }, "▸"), make("td", {}, link(row.rollout_id, {}, { class: "mono" }, row.rollout_id)), make("td", { class: "name", title: row.task }, row.task || "–"),
    make("td", { class: "dim" }, row.code.replace("running.", ""), row.attempt ? ` (attempt ${row.attempt})` : null), ...[row.turns, number(row.sampled), duration(row.duration)].map((value) => make("td", { class: "number" }, value))));
  const all = sums.rollouts > rows.length ? make("p", {}, make("a", { href: writeAddress({ place: "", query: { only: ["running"] }, view: {} }) }, `all ${number(sums.rollouts)} in the list`)) : null;
  return make("section", { class: "card", id: "in-progress" }, make("h2", {}, `In progress: ${number(sums.rollouts)} rollout${sums.rollouts > 1 ? "s" : ""}`),
    make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, columns.map((name, index) => make("th", { class: index > 3 ? "number" : null, scope: "col" }, name)))), make("tbody", {}, body))), all);
}

function stepCard(members) {
  const { step, split } = members[0];
  const total = (name) => members.reduce((sum, group) => sum + group[name], 0);
  const graded = total("graded"), rate = graded ? `${((100 * total("solved")) / graded).toFixed(1)}% solved` : "no grades";
  return make("section", { class: "card step" }, make("h2", {}, split === "eval" ? `Evaluation after step ${step}` : `Step ${step}`, make("span", { class: "dim" }, `${number(total("rollouts"))} rollouts · ${rate}`), source.live ? link(`time:${split}-${step}`, {}, {}, "by the clock") : null),
    make("div", { class: "squares" }, members.map((group) => link(groupOf(group), {}, {
      class: `square ${group.graded ? "" : "ungraded"}`, title: `${group.task}: ${group.solved} of ${group.graded} solved, reward ${fixed(group.reward)}`,
      "aria-label": `group ${group.group}, ${group.task}, ${group.solved} of ${group.graded} solved`, style: { "--share": group.graded ? group.solved / group.graded : 0 } }))));
}

function splitGroup(place) {
  const [split, step, group] = place.slice("group:".length).split("-");
  return { only: [split], step, group };
}

async function groupView() {
  const query = splitGroup(state.place);
  const { rows } = await source.list(query, 0, 500);
  if (!rows.length) return [empty("There is no such group in this run.")];
  const best = rows.reduce((a, b) => ((b.score ?? -1) > (a.score ?? -1) ? b : a)), worst = rows.reduce((a, b) => ((b.score ?? 2) < (a.score ?? 2) ? b : a));
  const columns = ["", "rollout", "outcome", "reward", "advantage", "turns", "tokens", "time", ""];
  const body = rows.map((row) => {
    const [mark, tone, name] = verdictOf(row.solved), other = row === best ? worst : best;
    return make("tr", {}, make("td", { class: tone, title: name }, mark), make("td", {}, link(row.rollout_id, {}, { class: "mono" }, row.rollout_id)), make("td", { class: row.score === null ? "none" : "dim" }, row.code),
      ...[fixed(row.score), signed(row.advantage), row.turns, number(row.sampled), duration(row.duration)].map((value) => make("td", { class: "number" }, value)),
      make("td", {}, other === row ? null : link(row.rollout_id, { with: other.rollout_id }, {}, row === best ? "beside the worst" : "beside the best")));
  });
  return [crumbs(rows[0]), make("div", { class: "title" }, make("h1", {}, rows[0].task)),
    make("div", { class: "card scroll" }, make("table", {}, make("thead", {}, make("tr", {}, columns.map((name, index) => make("th", { class: index > 2 && index < 8 ? "number" : null, scope: "col" }, name)))), make("tbody", {}, body)))];
}

const back = () => make("button", { class: "back", onclick: closeMain, "aria-label": "back to the list" }, "‹ list");

// Run › step › group › rollout.
function crumbs(row, rollout = null) {
  const step = row.split === "eval" ? `evaluation after step ${row.step}` : `step ${row.step}`;
  return make("nav", { class: "crumbs", "aria-label": "place" }, back(), link("", { show: "overview" }, {}, run.name), " › ", step, " › ",
    rollout ? link(groupOf(row), {}, {}, `group ${row.group}`) : `group ${row.group}`, rollout ? ` › member ${row.member}` : null);
}
