"use strict";
// The list of rollouts: only the lines that are seen exist, and only their pages are asked for.

const ROW = 56; // pixels of a line; page.css has the same number
const PAGE = 100;
const BEYOND = 12; // lines above and below the window

const list = { total: 0, pages: new Map(), asked: 0, error: "" };

const rowAt = (index) => {
  const page = list.pages.get(Math.floor(index / PAGE));
  return Array.isArray(page) ? page[index % PAGE] : undefined;
};

async function loadPage(page) {
  if (list.pages.has(page)) return;
  const asked = list.asked;
  list.pages.set(page, "asked");
  try {
    const found = await source.list(state.query, page * PAGE, PAGE);
    if (asked !== list.asked) return; // another query was asked for meanwhile
    list.pages.set(page, found.rows);
    list.error = "";
    setSums(found);
  } catch (error) {
    if (asked !== list.asked) return;
    list.error = error.message;
    list.total = 0;
    at("sums").replaceChildren();
  }
  drawList();
}

// Ask for the list anew; `keep`: it is the same query of a run that has gone on.
async function reloadList(keep = false) {
  list.asked += 1;
  if (!keep) at("list").scrollTop = 0;
  const page = Math.floor(at("list").scrollTop / ROW / PAGE);
  if (keep) {
    const asked = list.asked;
    const found = await source.list(state.query, page * PAGE, PAGE).catch(() => null);
    if (found === null || asked !== list.asked) return;
    list.pages = new Map([[page, found.rows]]);
    setSums(found);
    drawList();
  } else {
    list.pages = new Map();
    await loadPage(page);
  }
}

function setSums({ sums, scanned }) {
  list.total = sums.rollouts;
  const rate = sums.graded ? `${((100 * sums.solved) / sums.graded).toFixed(0)}%` : "–";
  const shown = [["rollouts", number(sums.rollouts)], ["solved", rate], ["reward", fixed(sums.reward)], ["tokens", short(sums.sampled)]];
  at("sums").replaceChildren(...shown.map(([name, value]) => make("div", {}, make("b", {}, value), make("span", {}, name))));
  at("shown").textContent = scanned ?? "";
}

function drawList() {
  const box = at("list");
  at("spacer").style.height = `${list.total * ROW}px`;
  const first = Math.max(0, Math.floor(box.scrollTop / ROW) - BEYOND);
  const last = Math.min(list.total, Math.ceil((box.scrollTop + box.clientHeight) / ROW) + BEYOND);
  const lines = [];
  for (let index = first; index < last; index += 1) {
    const row = rowAt(index);
    if (row === undefined) loadPage(Math.floor(index / PAGE));
    lines.push(row === undefined ? make("div", { class: "row waiting", style: { top: `${index * ROW}px` } }) : line(row, index));
  }
  if (list.error) lines.push(make("p", { class: "empty" }, list.error));
  else if (!list.total && list.pages.size) lines.push(empty("No rollout is selected."));
  at("spacer").replaceChildren(...lines);
  box.setAttribute("aria-activedescendant", state.place ? `row-${state.place}` : "");
}

function line(row, index) {
  const [mark, tone, name] = verdictOf(row.solved, row.code);
  const open = row.rollout_id === state.place;
  const about = row.hit
    ? make("span", { class: "hit", title: row.hit.text }, make("b", {}, row.hit.turn === null ? row.hit.field : `turn ${row.hit.turn}`), " ", row.hit.text)
    : [make("span", { class: "mono" }, row.rollout_id), row.score !== null && row.code === "policy.finished" ? null : make("span", { class: "none" }, row.code),
      make("span", {}, `${row.turns} turns`), dots(row.kinds)];
  return link(row.rollout_id, viewOf(row), { class: `row ${open ? "open" : ""}`, id: `row-${row.rollout_id}`, role: "option", tabindex: -1, "aria-selected": String(open),
    "aria-setsize": list.total, "aria-posinset": index + 1, "data-index": index, style: { top: `${index * ROW}px` } },
    make("span", { class: `mark ${tone}`, title: name }, mark),
    make("span", { class: "task", title: row.task }, row.task),
    make("span", { class: "score", title: `reward ${fixed(row.score)}, advantage ${signed(row.advantage)}` }, row.score === null ? "–" : fixed(row.score)),
    make("span", { class: "about" }, about));
}

// What is shown of a rollout of the list: where the search was found, else the tab that is open.
function viewOf({ hit }) {
  return hit ? { turn: hit.turn, tab: { patch: "Patch", tests: "Tests" }[hit.field] ?? "Conversation" } : { tab: state.view.tab };
}

// Index of the open rollout in the pages that are there, else -1.
function openIndex() {
  for (const [page, rows] of list.pages) {
    const place = Array.isArray(rows) ? rows.findIndex((row) => row.rollout_id === state.place) : -1;
    if (place >= 0) return page * PAGE + place;
  }
  return -1;
}

// Index of the open rollout in the whole list, else -1.
async function findOpen() {
  const index = openIndex();
  return index < 0 && isRolloutPlace() ? (await source.place(state.query, state.place).catch(() => null)) ?? -1 : index;
}

// Scroll the list to the open rollout, unless it is drawn: a link leads to any.
async function bringUp() {
  if (!isRolloutPlace() || at(`row-${state.place}`)) return;
  const place = state.place, index = await findOpen(), box = at("list");
  if (index >= 0 && place === state.place) box.scrollTop = Math.max(0, index * ROW - box.clientHeight / 2);
}

async function move(by) {
  const next = Math.max(0, Math.min(list.total - 1, (await findOpen()) + by));
  await loadPage(Math.floor(next / PAGE));
  const row = rowAt(next);
  if (!row) return;
  const box = at("list");
  if (next * ROW < box.scrollTop) box.scrollTop = next * ROW;
  else if ((next + 1) * ROW > box.scrollTop + box.clientHeight) box.scrollTop = (next + 1) * ROW - box.clientHeight;
  go({ place: row.rollout_id, view: viewOf(row) }, { replace: true });
}

// The filters.

const SORTS = [["run", "in order"], ["-reward", "highest reward"], ["reward", "lowest reward"], ["-advantage", "highest advantage"], ["advantage", "lowest advantage"],
  ["-turns", "most turns"], ["turns", "fewest turns"], ["-tokens", "most tokens"], ["tokens", "fewest tokens"], ["-duration", "slowest"], ["duration", "fastest"], ["-branches", "most branches"], ["task", "by task"], ["outcome", "by outcome"]];
const KINDS = [["subagent", "with sub-agents"], ["compaction", "with a compaction"], ["side", "with side requests"], ["wipe", "with a replaced history"], ["edit", "with a changed answer"]];

function options(select, first, values) {
  select.replaceChildren(...(first === null ? [] : [make("option", { value: "" }, first)]), ...values.map(([value, name]) => make("option", { value }, name)));
}

function fillFilters(run) {
  const counted = (values, name = (value) => value) => Object.entries(values).map(([value, count]) => [value, `${name(value)} (${number(count)})`]);
  options(at("solved"), "solved or not", [["solved", "solved"], ["unsolved", "unsolved"], ["failed", "no grade"], ...(source.live ? [["running", `in progress (${number(run.in_progress)})`]] : [])]);
  options(at("split"), "train and eval", counted(run.choices.only));
  options(at("outcome"), "any outcome", counted(run.choices.outcome));
  options(at("step"), "any step", counted(run.choices.step, (step) => `step ${step}`).reverse());
  options(at("kind"), "any branches", KINDS);
  options(at("sort"), null, SORTS);
  showFilters();
}

function showFilters() {
  const { query } = state, only = query.only ?? [];
  if (document.activeElement !== at("search")) at("search").value = query.search ?? "";
  if (document.activeElement !== at("task")) at("task").value = query.task ?? "";
  at("solved").value = only.find((name) => ["solved", "unsolved", "failed", "running"].includes(name)) ?? "";
  at("split").value = only.find((name) => ["train", "eval"].includes(name)) ?? "";
  for (const name of ["outcome", "step", "kind"]) at(name).value = query[name] ?? "";
  at("sort").value = query.sort ?? "run";
  at("clear").hidden = !Object.keys(query).length;
}

function readFilters() {
  const value = (id) => at(id).value.trim();
  const query = { search: value("search"), task: value("task"), only: [value("solved"), value("split")].filter(Boolean), outcome: value("outcome"), step: value("step"), kind: value("kind"), sort: value("sort") === "run" ? "" : value("sort") };
  go({ query: Object.fromEntries(Object.entries(query).filter(([, given]) => given.length)), view: state.view }, { replace: true });
}
