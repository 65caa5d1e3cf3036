"use strict";
// Draws what the address says, follows the keys, and goes on with a run that goes on.

const POLL_MS = 2000;
const known = new Map(); // rollouts that were read, the latest last
const KNOWN = 8;
let run = { name: "", choices: { only: {}, outcome: {}, step: {} } };
let refreshing = false; // the rollout that is shown has gone on: what is drawn of it stays
let drawn = 0; // counts what was asked for, so that an answer that comes late is dropped

async function readRollout(id, attempt) {
  const key = `${id} ${attempt ?? ""}`;
  if (!known.has(key)) known.set(key, await source.rollout(id, attempt));
  const found = known.get(key);
  known.delete(key);
  known.set(key, found);
  if (known.size > KNOWN) known.delete(known.keys().next().value);
  return found;
}

async function content() {
  const { place, view } = state;
  if (!place) return overview();
  if (place.startsWith("group:")) return groupView();
  if (place.startsWith("time:") && source.live) return stepView();
  if (place === REPORT && source.hasReport) return reportView();
  const found = await readRollout(place, view.attempt);
  if (view.with) return compareView(found, await readRollout(view.with));
  return () => { open = found; return rolloutView(); };
}

async function render(before = null) {
  drawn += 1;
  const mine = drawn, queried = before === null || JSON.stringify(before.query) !== JSON.stringify(state.query);
  document.body.classList.toggle("reading", state.place !== "" || state.view.show === "overview");
  showFilters();
  const listed = queried ? reloadList() : drawList();
  const samePlace = before !== null && before.place === state.place && before.view.with === state.view.with && before.view.attempt === state.view.attempt;
  if (samePlace && queried && JSON.stringify(before.view) === JSON.stringify(state.view)) return;
  const waiting = setTimeout(() => samePlace || at("main").replaceChildren(empty("Reading…")), 150);
  let parts;
  try {
    parts = await content();
  } catch (error) {
    parts = failure(error);
  }
  clearTimeout(waiting);
  if (mine !== drawn) return;
  try {
    draw(parts, samePlace, before);
  } catch (error) { // a record that this page cannot draw: say so, and keep the list
    at("main").replaceChildren(...failure(error));
  }
  await listed;
  if (before?.place !== state.place) await bringUp();
}

const failure = (error) => [make("div", { class: "card note" }, make("pre", {}, error.message))];

// Draw what was read; a rollout is a function that makes its parts.
function draw(parts, samePlace, before) {
  document.title = `${state.place || run.name} · agentrl`;
  const main = at("main"), top = main.scrollTop, isRollout = typeof parts === "function";
  const atEnd = refreshing && main.scrollHeight - main.clientHeight - top < 60;
  if (refreshing && isRollout && at("tab")) putBefore(at("tab"), parts().slice(0, -1));
  else main.replaceChildren(...(isRollout ? parts() : parts));
  main.scrollTop = samePlace ? top : 0;
  if (isRollout) {
    fillTab();
    bringTabUp();
    if (atEnd) main.scrollTop = main.scrollHeight;
    if (samePlace && before.view.tab !== state.view.tab) showTabs();
  }
  else clip(at("main"));
}

// Replace what stands before an element.
function putBefore(last, parts) {
  while (last.previousSibling) last.previousSibling.remove();
  last.before(...parts);
}

// Draw what a rollout in progress has by now; texts that somebody selected or opened stay so.
async function follow() {
  known.delete(`${state.place} ${state.view.attempt ?? ""}`);
  refreshing = true;
  try {
    await render(state);
  } finally {
    refreshing = false;
  }
}

// Scroll the bar of tabs to the chosen one: a phone has not all of them.
function bringTabUp() {
  const bar = document.querySelector(".tabs"), tab = bar.querySelector("[aria-selected=true]");
  bar.scrollLeft += Math.max(0, Math.ceil(tab.getBoundingClientRect().right - bar.getBoundingClientRect().right));
}

// Bring the tabs up, so that what was chosen is seen.
function showTabs() {
  const bar = document.querySelector(".tabs"), main = at("main");
  const place = bar.offsetTop - main.offsetTop;
  if (place - main.scrollTop > main.clientHeight * 0.4) main.scrollTop = place;
}

function closeMain() {
  go({ place: "", view: { show: null } });
}

// Keys.

const KEYS = {
  j: ["next rollout", () => move(1)],
  k: ["previous rollout", () => move(-1)],
  "/": ["search", () => { document.body.classList.remove("reading"); at("search").focus(); at("search").select(); }],
  n: ["next turn", () => step(1)],
  p: ["previous turn", () => step(-1)],
  u: ["up: rollout, group, run", up],
  c: ["beside another of the group, and the next one", beside],
  x: ["clear the filters", () => go({ query: {}, view: state.view })],
  t: ["light or dark", theme],
  1: ["conversation", () => choose("Conversation")],
  2: ["tokens", () => choose("Tokens")],
  3: ["patch", () => choose("Patch")],
  4: ["tests", () => choose("Tests")],
  5: ["record", () => choose("Record")],
  6: ["timeline", () => choose("Timeline")],
  "?": ["these keys", () => (at("keys").open ? at("keys").close() : at("keys").showModal())],
};
const isRolloutPlace = () => state.place && !/^(group|time|report):/.test(state.place);

function choose(tab) {
  if (isRolloutPlace()) go({ view: { tab, with: null } }, { replace: true });
}

function step(by) {
  const turns = [...document.querySelectorAll("#tab .turn")];
  const top = at("main").getBoundingClientRect().top + 60;
  const below = turns.findIndex((turn) => turn.getBoundingClientRect().top > top + 2);
  const now = below < 0 ? turns.length - 1 : below - 1;
  turns[Math.max(0, Math.min(turns.length - 1, now + by))]?.scrollIntoView({ block: "start" });
}

function up() {
  if (state.view.with) go({ view: { with: null } });
  else if (isRolloutPlace() && open) go({ place: groupOf(open) });
  else if (state.place) go({ place: "" });
}

async function beside() {
  if (!isRolloutPlace()) return;
  const here = await readRollout(state.place, state.view.attempt);
  const { rows } = await source.list({ only: [here.split], step: String(here.step), group: String(here.group) }, 0, 500);
  const others = rows.map((row) => row.rollout_id).filter((id) => id !== here.rollout_id);
  if (others.length) go({ view: { with: others[(others.indexOf(state.view.with) + 1) % others.length] } }, { replace: true });
}

function theme() {
  const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
}

document.addEventListener("keydown", (event) => {
  if (["INPUT", "SELECT"].includes(event.target.tagName)) {
    if (event.key === "Escape" || (event.key === "Enter" && event.target.tagName === "INPUT")) event.target.blur();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target === at("list") && ["ArrowDown", "ArrowUp"].includes(event.key)) {
    event.preventDefault();
    move(event.key === "ArrowDown" ? 1 : -1);
  } else if (event.key === "Escape" && !at("keys").open && isRolloutPlace()) up();
  else if (KEYS[event.key] && (!at("keys").open || event.key === "?")) {
    event.preventDefault();
    KEYS[event.key][1]();
  }
});

// Begin.

function listenToFilters() {
  let waiting = null;
  for (const id of ["search", "task"]) at(id).addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(readFilters, 200); });
  at("filters").addEventListener("change", () => { clearTimeout(waiting); readFilters(); });
  at("clear").addEventListener("click", () => go({ query: {}, view: state.view }));
  at("theme").addEventListener("click", theme);
  at("help").addEventListener("click", () => at("keys").showModal());
  at("close").addEventListener("click", () => at("keys").close());
  at("keys").querySelector("dl").append(...Object.entries(KEYS).flatMap(([key, [about]]) => [make("dt", {}, make("kbd", {}, key)), make("dd", {}, about)]));
  let frame = 0;
  at("list").addEventListener("scroll", () => { cancelAnimationFrame(frame); frame = requestAnimationFrame(drawList); });
  addEventListener("resize", drawList);
  for (const kind of ["hashchange", "popstate"]) addEventListener(kind, () => { const before = state; state = readAddress(); if (JSON.stringify(before) !== JSON.stringify(state)) render(before); });
}

async function poll() {
  if (!document.hidden) {
    try {
      const shown = isRolloutPlace() && !state.view.with && open?.rollout_id === state.place && open.progress ? open : null;
      const now = await source.run(shown?.rollout_id);
      const changed = now.version !== run.version || now.in_progress !== run.in_progress || now.state !== run.state;
      run = now;
      at("reach").textContent = now.search ?? "";
      if (changed) {
        fillFilters(run);
        await reloadList(true);
        if (!state.place) render(state);
      }
      if (shown && shown === open && JSON.stringify(now.watched) !== JSON.stringify(shown.progress)) await follow();
      at("reach").classList.remove("bad");
    } catch (error) {
      at("reach").textContent = `not connected: ${error.message}`;
      at("reach").classList.add("bad");
    }
  }
  setTimeout(poll, POLL_MS);
}

async function begin() {
  listenToFilters();
  try {
    run = await source.run();
  } catch (error) {
    at("main").replaceChildren(empty(error.message));
    return;
  }
  at("name").textContent = run.name;
  at("reach").textContent = run.search ?? "";
  fillFilters(run);
  await render();
  if (source.live) setTimeout(poll, POLL_MS);
}

begin();
