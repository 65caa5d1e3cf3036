"use strict";
// One rollout: its facts, where its time went, the tree of its branches, and tabs.

const AGENTS = ["main", "subagent", "compaction", "side"];

let open = null; // the rollout that is shown
let chain = 0; // index of its chain that is shown

function chooseChain() {
  const asked = Number(state.view.chain ?? open.turns[Number(state.view.turn ?? NaN)]?.segment ?? NaN);
  const final = open.chains.find((one) => one.kind === "final") ?? open.chains[0];
  chain = (open.chains.find((one) => one.index === asked) ?? final)?.index ?? 0;
}

function rolloutView() {
  chooseChain();
  return [crumbs(open, open), title(), facts(), attempts(), trouble(), time(), branches(), tabs(), make("div", { id: "tab", role: "tabpanel" })].filter(Boolean);
}

function title() {
  const [sign, tone, name] = verdictOf(open.reward.solved, open.outcome.code);
  return make("div", { class: "title" }, make("h1", {}, open.task), make("span", { class: tone }, `${sign} ${name}`), make("span", { class: "mono dim" }, open.rollout_id));
}

function facts() {
  const { tokens, reward, outcome } = open;
  const list = [["outcome", isInProgress(outcome.code) || outcome.code === "lost" ? outcome.code : `${outcome.code} at ${outcome.stage}`], ["reward", `${fixed(reward.score)}${reward.counted ? "" : " (not counted)"}`], ["advantage", signed(open.advantage)], ["turns", open.turns.length],
    ["sampled", number(tokens.sampled)], ["trained", number(tokens.trained)], ["prompt", number(tokens.prompt)], ["time", duration(open.timings.total)], ["scenario", open.scenario]];
  for (const [name, value] of Object.entries(open.reward_parts ?? {})) if (value) list.push([`reward: ${name}`, fixed(value)]);
  return make("dl", { class: "facts" }, list.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

function attempts() {
  if ((open.attempts ?? []).length < 2) return null;
  return make("p", { class: "attempts" }, "attempts: ", open.attempts.map((one) =>
    link(open.rollout_id, { attempt: one.attempt }, { "aria-current": one.attempt === open.attempt ? "true" : null, title: one.message }, `${one.attempt} ${one.code}${one.counts ? " (counts)" : ""}`)));
}

function trouble() {
  return open.outcome.message && open.outcome.code !== "policy.finished" ? make("div", { class: "card note" }, make("pre", {}, open.outcome.message)) : null;
}

function phases() {
  const parts = Object.entries(STAGES).map(([name, colour]) => [name, open.timings[name], `--${colour}`]).filter(([, took]) => took > 0);
  if (!parts.length) return [];
  return [make("div", { class: "phases" }, ...parts.map(([name, took, colour]) => make("i", { title: `${name} ${fixed(took)} s`, style: { "flex-grow": took, background: `var(${colour})` } }))),
    make("div", { class: "legend" }, ...parts.map(([name, took, colour]) => make("span", {}, make("i", { style: { background: `var(${colour})` } }), `${name} ${fixed(took)} s`)),
      open.timings.total ? make("span", {}, `total ${fixed(open.timings.total)} s`) : null)];
}

function time() {
  if (!open.turns.length) return open.timings.total ? make("section", { class: "card" }, make("h2", {}, "Time"), ...phases()) : null;
  const start = Math.min(...open.turns.map((turn) => turn.started_at));
  const end = Math.max(...open.turns.map((turn) => turn.started_at + turn.total_s));
  const lanes = [...new Set(open.turns.map((turn) => turn.thread))];
  const width = 1000, left = 120, row = 24, span = Math.max(end - start, 1e-6);
  const x = (seconds) => left + ((width - left - 8) * seconds) / span;
  const svg = make("svg", { viewBox: `0 0 ${width} ${lanes.length * row + 22}`, role: "img", "aria-label": "turns over time" });
  for (const tick of makeScale(0, span, left, width - 8).ticks(8)) {
    svg.append(make("line", { class: "grid", x1: x(tick), x2: x(tick), y1: 0, y2: lanes.length * row }), label(`${significant(tick)} s`, x(tick), lanes.length * row + 15));
  }
  lanes.forEach((lane, index) => {
    const agent = open.chains.find((one) => one.thread === lane && one.agent_type)?.agent_type;
    const name = agent ? `${agent} ${lane}` : lane;
    svg.append(make("rect", { class: "lane", x: left, y: index * row + 2, width: width - left, height: row - 4, rx: 3, opacity: 0.5 }),
      make("text", { x: left - 8, y: index * row + 16, "text-anchor": "end" }, name.length > 18 ? `${name.slice(0, 17)}…` : name, make("title", {}, name)));
  });
  const masked = new Map(open.chains.filter((one) => one.masked).map((one) => [one.index, one.masked]));
  const onPath = new Set(path().map((turn) => turn.index));
  for (const turn of open.turns) {
    const from = turn.started_at - start, y = lanes.indexOf(turn.thread) * row + 4;
    const wide = (seconds) => Math.max(2, x(from + seconds) - x(from) - 1);
    const about = `turn ${turn.index} · ${turn.branch} · chain ${turn.segment}\n${number(turn.prompt_tokens)} prompt + ${turn.output_tokens} sampled tokens\n${fixed(turn.total_s)} s, engine ${fixed(turn.engine_s)} s\nfinish: ${turn.finish_reason}${turn.break_reason ? `\n${turn.break_reason}` : ""}${masked.has(turn.segment) ? `\nnot in the loss: ${masked.get(turn.segment)}` : ""}`;
    svg.append(make("g", { "data-kind": turn.branch, class: onPath.has(turn.index) ? null : "faded" },
      make("rect", { class: "bar", x: x(from), y, width: wide(turn.total_s), height: row - 8, rx: 2, onclick: () => jump(turn) }, make("title", {}, about)),
      make("rect", { class: "engine", x: x(from), y, width: wide(Math.min(turn.engine_s, turn.total_s)), height: row - 8, rx: 2 }),
      ...(masked.has(turn.segment) ? stripes(x(from), y, wide(turn.total_s), row - 8) : []),
      ...(turn.finish_reason === "stop" ? [] : [make("rect", { class: "cut", x: x(from) + wide(turn.total_s) - 3, y: y - 2, width: 3, height: row - 4 })])));
  }
  const used = AGENTS.filter((kind) => open.turns.some((turn) => turn.branch === kind));
  return make("section", { class: "card" }, make("h2", {}, "Time"), ...phases(), make("div", { style: { height: "10px" } }), make("div", { class: "scroll" }, make("div", { class: "lanes" }, svg)),
    make("div", { class: "legend" }, ...used.map((kind) => make("span", { "data-kind": kind }, make("i", { style: { background: "var(--kind)" } }), kind)), make("span", {}, "dark: in the engine · faded: another branch · hatched: not in the loss · red end: cut off")));
}

// Slanted lines over a bar: at most 40, so that a long turn costs no more.
function stripes(left, top, width, height) {
  const step = Math.max(6, width / 40), lines = [];
  for (let at = 0; at < width; at += step) {
    const far = Math.min(at + height, width);
    lines.push(make("line", { class: "hatch", x1: left + at, y1: top + height, x2: left + far, y2: top + height - (far - at) }));
  }
  return lines;
}

const path = () => open.chains.find((one) => one.index === chain)?.turns.map((index) => open.turns[index]) ?? [];

function jump(turn) {
  go({ view: { chain: turn.segment, turn: turn.index, tab: state.view.tab === "Tokens" ? "Tokens" : "Conversation" } });
}


// The tree of branches: a chain hangs below the one whose turn it continues, else below its thread's.

function above(one) {
  const parent = open.turns[one.own_turns[0]].parent;
  if (parent !== null) return open.turns[parent].segment;
  if (one.thread === "main") return null;
  const same = open.chains.find((other) => other.thread === one.thread);
  if (same !== one) return same.index;
  const caller = open.chains.filter((other) => other.thread === (one.parent_thread ?? "main") && other.own_turns[0] < one.own_turns[0]);
  return caller.length ? caller.at(-1).index : null;
}

function branches() {
  if (!open.chains.length) return null;
  const below = Map.groupBy ? Map.groupBy(open.chains, above) : open.chains.reduce((map, one) => map.set(above(one), [...(map.get(above(one)) ?? []), one]), new Map());
  const level = (index) => make("ul", { class: "tree" }, ...(below.get(index) ?? []).map((one) => {
    const own = one.own_turns.map((turn) => open.turns[turn]);
    const shared = one.turns.length - own.length;
    const sampled = own.reduce((sum, turn) => sum + turn.output_tokens, 0);
    return make("li", {}, make("button", { "aria-pressed": String(one.index === chain), onclick: () => go({ view: { chain: one.index, turn: null } }) },
      make("span", { class: "badge", "data-kind": one.kind }, one.kind),
      make("span", {}, one.thread === "main" ? `chain ${one.index}` : `${one.agent_type ?? "agent"} ${one.thread}`),
      make("span", { class: "why dim", title: one.break_reason ?? "" }, one.break_reason ?? ""),
      one.masked ? make("span", { class: "none" }, `not in the loss: ${one.masked}`) : null,
      one.finish_reason && one.finish_reason !== "stop" ? make("span", { class: "bad" }, `finish: ${one.finish_reason}`) : null,
      make("span", { class: "sum dim" }, `${own.length} turn${own.length > 1 ? "s" : ""}${shared ? ` after ${shared} shared` : ""} · ${number(sampled)} sampled`)),
      below.has(one.index) ? level(one.index) : null);
  }));
  return make("section", { class: "card" }, make("h2", {}, open.chains.length > 1 ? `${open.chains.length} branches` : "Branch"), level(null));
}

// Tabs.

const TABS = { __proto__: null, Conversation: conversation, Tokens: tokens, Patch: patch, Tests: tests, Record: record, ...(source.live ? { Timeline: timeline } : {}) };
const tabName = () => (state.view.tab in TABS ? state.view.tab : "Conversation");

function tabs() {
  const names = Object.keys(TABS);
  return make("div", { class: "tabs", role: "tablist" }, names.map((name, index) =>
    make("button", { role: "tab", "aria-selected": String(name === tabName()), "aria-controls": "tab", title: `key ${index + 1}`, onclick: () => go({ view: { tab: name } }, { replace: true }) }, name)));
}

const kept = { of: "", parts: new Map() }; // what is drawn of a rollout in progress

// Return what was drawn under a name before the rollout went on, else what `draw` makes.
function keep(name, draw) {
  if (!kept.parts.has(name)) kept.parts.set(name, draw());
  return kept.parts.get(name);
}

function fillTab() {
  const of = JSON.stringify([open.rollout_id, open.attempt, chain, tabName(), state.view.colour, state.query.search]);
  if (!refreshing || kept.of !== of) kept.parts = new Map();
  kept.of = of;
  const tab = at("tab"), parts = TABS[tabName()]();
  for (const old of [...tab.children]) if (!parts.includes(old)) old.remove();
  parts.forEach((part, index) => tab.children[index] === part || tab.insertBefore(part, tab.children[index] ?? null));
  clip(tab);
  const wanted = refreshing || state.view.turn === undefined ? null : at(`turn-${state.view.turn}`);
  if (wanted) {
    wanted.scrollIntoView({ block: "start" });
    wanted.classList.add("wanted");
  }
}

function record() {
  const { rollout_id, session_id, outcome, reward, advantage, tokens: counts, usage, timings, extra, tools, final_message, turn_rewards } = open;
  const calls = tools.map((tool) => tool?.function?.name ?? "?");
  return Object.entries({ "final message": final_message, rollout: { rollout_id, session_id, outcome, reward, advantage, turn_rewards }, tokens: { ...counts, ...usage }, timings, extra, tools: calls })
    .map(([name, value]) => make("section", { class: "card" }, make("h2", {}, name), make("pre", { class: "may-clip" }, asText(value) || "–")));
}
