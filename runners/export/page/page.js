"use strict";
// The page only ever sets text: no string of a rollout is parsed as markup.

const KINDS = ["main", "subagent", "compaction", "side"];
const STAGES = ["queue", "session", "boot", "harness", "patch", "finish", "grade"];
const STAGE_COLOURS = ["--wipe", "--dim", "--side", "--main", "--subagent", "--accent", "--compaction"];
const TOKENS_AT_ONCE = 4000;
const ROWS_AT_ONCE = 200; // lines of the list that are made at once; more come when it is scrolled

const at = (id) => document.getElementById(id);
const number = (value) => value.toLocaleString("en");
const fixed = (value, digits = 2) => (value === null ? "–" : value.toFixed(digits));

function make(name, attributes = {}, ...children) {
  const svg = ["svg", "rect", "line", "text", "g", "title"].includes(name);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") Object.entries(value).forEach(([property, is]) => node.style.setProperty(property, is));
    else node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined).map((child) => (child instanceof Node ? child : String(child))));
  return node;
}

const rows = [...document.querySelectorAll("script.row")].map((block, index) => ({ index, ...JSON.parse(block.textContent) }));
let shown = [];
let asked = null; // index of the rollout that was asked for last
let open = null; // the rollout that is shown
let chain = 0; // index of its chain that is shown
let tab = "Conversation";

// The list.

const verdictOf = (row) => (row.solved === null ? ["○", "none"] : row.solved ? ["✓", "good"] : ["✗", "bad"]);

function dots(kinds) {
  const all = Object.entries(kinds).flatMap(([kind, count]) => Array(Math.min(count, 6)).fill(kind));
  return make("span", { class: "dots", title: Object.entries(kinds).map(([kind, count]) => `${count} ${kind}`).join(", ") },
    ...all.map((kind) => make("i", { class: "dot", "data-kind": kind })));
}

function item(row) {
  const [mark, tone] = verdictOf(row);
  return make("li", { "data-index": row.index, onclick: () => show(row.index) },
    make("span", { class: `mark ${tone}` }, mark),
    make("span", { class: "task", title: row.task }, row.task),
    row.score === null ? make("span", { class: "none" }, row.code) : make("span", { class: "score" }, fixed(row.score)),
    make("span", { class: "about" }, make("span", { class: "mono" }, row.rollout_id),
      row.score === null || row.code === "policy.finished" ? null : make("span", { class: "none" }, row.code), make("span", {}, `${row.turns} turns`), dots(row.kinds)));
}

function options(select, values) {
  select.append(...[...new Set(values)].map((value) => make("option", { value }, value)));
  select.hidden = select.options.length < 3;
}

function filter() {
  const [text, solved, code, step, split, kind] = ["search", "solved", "code", "step", "split", "kind"].map((id) => at(id).value);
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  shown = rows.filter((row) => words.every((word) => `${row.task} ${row.rollout_id}`.toLowerCase().includes(word))
    && (!solved || String(row.solved) === solved) && (!code || row.code === code) && (!step || String(row.step) === step)
    && (!split || row.split === split) && (!kind || row.kinds[kind]));
  at("list").replaceChildren();
  lengthen(ROWS_AT_ONCE);
  const graded = shown.filter((row) => row.score !== null);
  const mean = graded.length ? graded.reduce((sum, row) => sum + row.score, 0) / graded.length : null;
  const rate = graded.length ? graded.filter((row) => row.solved).length / graded.length : null;
  const sampled = shown.reduce((sum, row) => sum + row.sampled, 0);
  const sums = [["rollouts", number(shown.length)], ["solved", rate === null ? "–" : `${(100 * rate).toFixed(0)}%`], ["reward", fixed(mean)],
    ["tokens", sampled > 99999 ? `${(sampled / 1e6).toFixed(1)}M` : number(sampled)]];
  at("sums").replaceChildren(...sums.map(([name, value]) => make("div", {}, make("b", {}, value), make("span", {}, name))));
  at("shown").textContent = shown.length === rows.length ? "j, k: next, previous" : `${number(shown.length)} of ${number(rows.length)}`;
  mark();
}

// Make the lines of the list up to a number.
function lengthen(to) {
  const list = at("list");
  list.append(...shown.slice(list.children.length, to).map(item));
}

function mark() {
  const place = open === null ? -1 : shown.findIndex((row) => row.index === open.index);
  lengthen(place + ROWS_AT_ONCE);
  for (const line of at("list").children) {
    const is = open !== null && Number(line.dataset.index) === open.index;
    line.classList.toggle("open", is);
    if (is) line.scrollIntoView({ block: "nearest" });
  }
}

function move(by) {
  const now = shown.findIndex((row) => row.index === asked);
  const next = shown[Math.max(0, Math.min(shown.length - 1, now + by))];
  return next ? show(next.index) : null;
}

// One rollout.

// The rollouts stand behind this script, so the browser may not have read this one yet.
async function read(index) {
  const id = `rollout:${rows[index].rollout_id}`;
  while (at(id) === null && document.readyState === "loading") await new Promise((done) => setTimeout(done, 20));
  return at(id) === null ? null : JSON.parse(await unpack(at(id).textContent));
}

function unpack(base64) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
}

async function show(index) {
  asked = index;
  if (open === null) at("main").replaceChildren(make("p", { class: "empty" }, "Reading…"));
  const found = await read(index);
  if (asked !== index) return; // another one was asked for meanwhile
  if (found === null) return at("main").replaceChildren(make("p", { class: "empty" }, "This file ends before the rollout: it was not written or copied whole."));
  open = { index, ...found };
  const final = open.chains.find((one) => one.kind === "final") ?? open.chains[0];
  chain = final ? final.index : 0;
  history.replaceState(null, "", `#${encodeURIComponent(open.rollout_id)}`);
  mark();
  draw();
  at("main").scrollTop = 0;
}

function draw() {
  at("main").replaceChildren(...[title(), facts(), trouble(), time(), branches()].filter(Boolean), tabs(), make("div", { id: "tab" }));
  fill();
}

function title() {
  const [sign, tone] = verdictOf(open.reward);
  const name = { "✓": "solved", "✗": "unsolved", "○": "no grade" }[sign];
  return make("div", { class: "title" }, make("h1", {}, open.task), make("span", { class: tone }, `${sign} ${name}`), make("span", { class: "mono dim" }, open.rollout_id));
}

function facts() {
  const { tokens, reward, outcome } = open;
  const list = [["step", `${open.step} ${open.split}`], ["group", `${open.group}, member ${open.member}`], ["attempt", open.attempt], ["outcome", `${outcome.code} at ${outcome.stage}`],
    ["reward", `${fixed(reward.score)}${reward.counted ? "" : " (not counted)"}`], ["advantage", fixed(open.advantage)], ["turns", open.turns.length],
    ["sampled", number(tokens.sampled)], ["trained", number(tokens.trained)], ["prompt", number(tokens.prompt)], ["scenario", open.scenario]];
  return make("dl", { class: "facts" }, ...list.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

function trouble() {
  return open.outcome.message ? make("div", { class: "card note" }, make("pre", {}, open.outcome.message)) : null;
}

function phases() {
  const parts = STAGES.map((name, index) => [name, open.timings[name], STAGE_COLOURS[index]]).filter(([, seconds]) => seconds > 0);
  if (!parts.length) return [];
  return [make("div", { class: "phases" }, ...parts.map(([name, seconds, colour]) => make("i", { title: `${name} ${fixed(seconds)} s`, style: { "flex-grow": seconds, background: `var(${colour})` } }))),
    make("div", { class: "legend" }, ...parts.map(([name, seconds, colour]) => make("span", {}, make("i", { style: { background: `var(${colour})` } }), `${name} ${fixed(seconds)} s`)),
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
  const tick = 10 ** Math.floor(Math.log10(span)) * ([1, 2, 5].find((step) => span / 10 ** Math.floor(Math.log10(span)) / step <= 8) ?? 10) / (span / 10 ** Math.floor(Math.log10(span)) < 3 ? 4 : 1);
  for (let seconds = 0; seconds <= span; seconds += tick) {
    svg.append(make("line", { class: "tick", x1: x(seconds), x2: x(seconds), y1: 0, y2: lanes.length * row }),
      make("text", { x: x(seconds), y: lanes.length * row + 15, "text-anchor": "middle" }, `${Number(seconds.toPrecision(3))} s`));
  }
  lanes.forEach((lane, index) => {
    const agent = open.chains.find((one) => one.thread === lane && one.agent_type)?.agent_type;
    const name = agent ? `${agent} ${lane}` : lane;
    svg.append(make("rect", { class: "lane", x: left, y: index * row + 2, width: width - left, height: row - 4, rx: 3, opacity: 0.5 }),
      make("text", { x: left - 8, y: index * row + 16, "text-anchor": "end" }, name.length > 18 ? `${name.slice(0, 17)}…` : name, make("title", {}, name)));
  });
  const onPath = new Set(path().map((turn) => turn.index));
  for (const turn of open.turns) {
    const from = turn.started_at - start, y = lanes.indexOf(turn.thread) * row + 4;
    const wide = (seconds) => Math.max(2, x(from + seconds) - x(from) - 1);
    const about = `turn ${turn.index} · ${turn.branch} · chain ${turn.segment}\n${number(turn.prompt_tokens)} prompt + ${turn.output_tokens} sampled tokens\n${fixed(turn.total_s)} s, engine ${fixed(turn.engine_s)} s\nfinish: ${turn.finish_reason}${turn.break_reason ? `\n${turn.break_reason}` : ""}`;
    svg.append(make("g", { "data-kind": turn.branch, class: onPath.has(turn.index) ? null : "faded" },
      make("rect", { class: "bar", x: x(from), y, width: wide(turn.total_s), height: row - 8, rx: 2, onclick: () => jump(turn) }, make("title", {}, about)),
      make("rect", { class: "engine", x: x(from), y, width: wide(Math.min(turn.engine_s, turn.total_s)), height: row - 8, rx: 2 })));
  }
  const used = KINDS.filter((kind) => open.turns.some((turn) => turn.branch === kind));
  return make("section", { class: "card" }, make("h2", {}, "Time"), ...phases(), make("div", { style: { height: "10px" } }), svg,
    make("div", { class: "legend" }, ...used.map((kind) => make("span", { "data-kind": kind }, make("i", { style: { background: "var(--kind)" } }), kind)), make("span", {}, "dark: in the engine · faded: another branch")));
}

const path = () => open.chains.find((one) => one.index === chain)?.turns.map((index) => open.turns[index]) ?? [];

function jump(turn) {
  chain = turn.segment;
  if (!["Conversation", "Tokens"].includes(tab)) tab = "Conversation";
  draw();
  at(`turn-${turn.index}`)?.scrollIntoView({ block: "start" });
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
    return make("li", {}, make("button", { "aria-pressed": one.index === chain, onclick: () => { chain = one.index; draw(); } },
      make("span", { class: "badge", "data-kind": one.kind }, one.kind),
      make("span", {}, one.thread === "main" ? `chain ${one.index}` : `${one.agent_type ?? "agent"} ${one.thread}`),
      make("span", { class: "why dim", title: one.break_reason ?? "" }, one.break_reason ?? ""),
      make("span", { class: "sum dim" }, `${own.length} turn${own.length > 1 ? "s" : ""}${shared ? ` after ${shared} shared` : ""} · ${number(sampled)} sampled`)),
      below.has(one.index) ? level(one.index) : null);
  }));
  return make("section", { class: "card" }, make("h2", {}, open.chains.length > 1 ? `${open.chains.length} branches` : "Branch"), level(null));
}

// Tabs.

const TABS = { Conversation: conversation, Tokens: tokens, Patch: patch, Tests: tests, Record: record };

function tabs() {
  return make("div", { class: "tabs", role: "tablist" }, ...Object.keys(TABS).map((name) =>
    make("button", { role: "tab", "aria-selected": name === tab, onclick: () => { tab = name; draw(); } }, name)));
}

function fill() {
  at("tab").replaceChildren(...TABS[tab]());
  for (const block of at("tab").querySelectorAll(".may-clip")) {
    if (block.scrollHeight < 420) continue;
    block.classList.add("clip");
    const more = make("button", { class: "more", onclick: () => { block.classList.remove("clip"); more.remove(); } }, "Show all");
    block.after(more);
  }
}

function head(turn) {
  const shared = turn.segment !== chain;
  const about = [`turn ${turn.index}`, `${number(turn.prompt_tokens)} + ${turn.output_tokens} tokens`, `${fixed(turn.total_s)} s`, `version ${turn.weight_version}`];
  if (turn.finish_reason !== "stop") about.push(`finish: ${turn.finish_reason}`);
  if (turn.malformed_calls) about.push(`${turn.malformed_calls} malformed calls`);
  if (shared) about.push(`shared: trained in chain ${turn.segment}`);
  return make("div", { class: "head" }, make("span", { class: "badge", "data-kind": turn.branch }, turn.branch), about.join(" · "));
}

const wrap = (turn, ...inside) => make("section", { class: `turn ${turn.segment === chain ? "" : "shared"}`, id: `turn-${turn.index}` }, head(turn), ...inside);

function asText(content) {
  if (typeof content === "string") return content;
  if (Array.isArray(content)) return content.map((part) => part?.text ?? JSON.stringify(part)).join("\n");
  return content === null || content === undefined ? "" : JSON.stringify(content, null, 2);
}

function call(one) {
  const given = one?.function?.arguments;
  const entries = given && typeof given === "object" ? Object.entries(given) : [["", given]];
  return make("div", { class: "call" }, make("b", {}, one?.function?.name ?? "?"),
    make("dl", {}, ...entries.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, make("pre", {}, asText(value)))])));
}

function message(said) {
  const body = asText(said.content);
  const mono = said.role === "tool";
  return make("div", { class: "message", "data-role": said.role }, make("div", { class: "who" }, said.role, said.tool_call_id ? make("span", { class: "dim mono" }, said.tool_call_id) : null),
    said.reasoning_content ? make("div", { class: "text thinking may-clip" }, asText(said.reasoning_content)) : null,
    body ? make(mono ? "pre" : "div", { class: "text may-clip" }, body) : null,
    ...(Array.isArray(said.tool_calls) ? said.tool_calls.map(call) : []));
}

function conversation() {
  const turns = path();
  if (!turns.length) return [make("p", { class: "empty" }, "No model call was made.")];
  return turns.map((turn) => wrap(turn, ...turn.sent.map(message), message(turn.reply)));
}

// Texts of the tokens of the rollouts that have been read, null without a tokenizer.
const known = { words: {}, blocks: 0 };

function knownWords() {
  const blocks = document.getElementsByClassName("words");
  while (known.blocks < blocks.length) Object.assign(known.words, JSON.parse(blocks[known.blocks++].textContent));
  return known.blocks ? known.words : null;
}

function tokens() {
  const turns = path();
  if (!turns.length) return [make("p", { class: "empty" }, "No model call was made.")];
  if (turns.some((turn) => turn.has_ids === false)) {
    return [make("p", { class: "empty" }, "The engine took and gave texts: token ids and logprobs are not known.")];
  }
  const words = knownWords();
  const word = (id) => words?.[id] ?? `${id} `;
  const visible = (text) => (text === "" ? "∅" : text.replace(/\n/g, "⏎\n").replace(/\t/g, "⇥\t"));
  const legend = make("div", { class: "legend card" }, make("span", { class: "dim" }, "grey: context, mask 0"),
    make("span", {}, "sampled here, mask 1, from unlikely to certain"), make("span", { class: "ramp" }),
    make("span", {}, "dotted: sampled in another chain"), words ? null : make("span", {}, "no tokenizer at hand: ids"));
  return [legend, ...turns.map((turn) => {
    const box = make("div", { class: "tokens" });
    const own = turn.segment === chain;
    const all = [...turn.prompt_new.map((id, index) => [id, null, turn.prompt_tokens - turn.prompt_new.length + index]),
      ...turn.output_ids.map((id, index) => [id, turn.logprobs[index], turn.prompt_tokens + index])];
    let done = 0;
    const more = make("button", { class: "more", onclick: add });
    function add() {
      for (const [id, logprob, position] of all.slice(done, done + TOKENS_AT_ONCE)) {
        const sampled = logprob !== null;
        box.append(make("span", { class: !sampled ? "context" : own ? "sampled" : "elsewhere",
          title: `${position}: id ${id}${sampled ? `, logprob ${logprob}, p ${Math.exp(logprob).toFixed(3)}, version ${turn.weight_version}` : ""}`,
          style: sampled && own ? { "--p": Math.exp(logprob).toFixed(3) } : {} }, visible(word(id))));
      }
      done += TOKENS_AT_ONCE;
      more.textContent = `Show ${number(Math.max(0, all.length - done))} more tokens`;
      more.hidden = done >= all.length;
    }
    add();
    return wrap(turn, box, more);
  })];
}

function patch() {
  if (!open.patch) return [make("p", { class: "empty" }, "No patch.")];
  const tone = (line) => (/^(diff |index |--- |\+\+\+ )/.test(line) ? "file" : line.startsWith("@@") ? "place" : line.startsWith("+") ? "plus" : line.startsWith("-") ? "minus" : "");
  return [make("div", { class: "card diff" }, ...open.patch.replace(/\n$/, "").split("\n").map((line) => make("div", { class: tone(line) }, line)))];
}

function tests() {
  if (!open.verdict) return [make("p", { class: "empty" }, "No grade.")];
  const signs = { passed: ["✓", "good"], failed: ["✗", "bad"] };
  return Object.entries(open.verdict).map(([name, value]) => {
    const [sign, tone] = signs[name] ?? ["·", "dim"];
    const body = Array.isArray(value) ? make("ul", { class: "tests" }, ...value.map((one) => make("li", { class: tone }, `${sign} ${asText(one)}`)), value.length ? null : make("li", { class: "dim" }, "none"))
      : make("pre", { class: "may-clip" }, asText(value));
    return make("section", { class: "card" }, make("h2", {}, name), body);
  });
}

function record() {
  const { rollout_id, session_id, outcome, reward, advantage, tokens: counts, usage, timings, extra, tools, final_message } = open;
  const calls = tools.map((tool) => tool?.function?.name ?? "?");
  return Object.entries({ "final message": final_message, rollout: { rollout_id, session_id, outcome, reward, advantage }, tokens: { ...counts, ...usage }, timings, extra, tools: calls })
    .map(([name, value]) => make("section", { class: "card" }, make("h2", {}, name), make("pre", { class: "may-clip" }, asText(value) || "–")));
}

// Begin.

options(at("code"), rows.map((row) => row.code));
options(at("step"), rows.map((row) => String(row.step)));
options(at("split"), rows.map((row) => row.split));
options(at("kind"), rows.flatMap((row) => Object.keys(row.kinds)).sort());
at("filters").addEventListener("input", filter);
document.addEventListener("keydown", (event) => {
  if (["INPUT", "SELECT"].includes(event.target.tagName)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else if (event.key === "/") { event.preventDefault(); at("search").focus(); }
});
at("list").addEventListener("scroll", () => {
  const list = at("list");
  if (list.scrollTop + 3 * list.clientHeight > list.scrollHeight) lengthen(list.children.length + ROWS_AT_ONCE);
});
filter();
const wanted = decodeURIComponent(location.hash.slice(1));
const first = rows.find((row) => row.rollout_id === wanted) ?? rows[0];
if (first) show(first.index);
else at("main").append(make("p", { class: "empty" }, "No rollouts were chosen."));
