"use strict";
// Where the page's data come from in a file of its own: the blocks of this document. source_server.js has the same methods.

const rows = [...document.querySelectorAll("script.rows")].flatMap((block) => JSON.parse(block.textContent));
const words = { of: {}, blocks: 0 }; // texts of the tokens of the rollouts that have been read

function tokenWords() {
  const blocks = document.getElementsByClassName("words");
  while (words.blocks < blocks.length) Object.assign(words.of, JSON.parse(blocks[words.blocks++].textContent));
  return words.blocks ? words.of : null;
}

function unpack(base64) {
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let index = 0; index < text.length; index += 1) bytes[index] = text.charCodeAt(index);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
}

// The rollouts stand behind this script, so the browser may not have read this one yet.
async function readBlock(id) {
  const name = `rollout:${id}`;
  while (at(name) === null && document.readyState === "loading") await new Promise((done) => setTimeout(done, 20));
  if (at(name) === null) throw new Error("This file has no such rollout: it was not chosen, or the file was not written or copied whole.");
  return JSON.parse(await unpack(at(name).textContent));
}

// Filters and orders, as runners/observe/viewer/filters.py has them.

const ONLY = {
  train: (row) => row.split === "train",
  eval: (row) => row.split === "eval",
  solved: (row) => row.solved === true,
  unsolved: (row) => row.solved === false,
  failed: (row) => !["policy", "budget"].includes(row.code.split(".")[0]),
  running: () => false, // a file has what has ended
};
const ORDERS = { task: (row) => row.task, outcome: (row) => row.code, reward: (row) => row.score, advantage: (row) => row.advantage, turns: (row) => row.turns, tokens: (row) => row.sampled, duration: (row) => row.duration, branches: (row) => Object.values(row.kinds).reduce((sum, count) => (sum ?? 0) + count, null) };
const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
const glob = (text) => new RegExp(`^${escaped(text).replace(/\\\*/g, ".*").replace(/\\\?/g, ".")}$`, "s");

function selects(query) {
  const task = query.task && glob(query.task);
  const [first, last = first] = (query.step ?? "").split("-").map(Number);
  return (row) => (query.only ?? []).every((name) => ONLY[name]?.(row)) && (!task || task.test(row.task)) && (!query.step || (row.step >= first && row.step <= last))
    && (!query.group || row.group === Number(query.group)) && (!query.outcome || row.code === query.outcome || row.code.startsWith(`${query.outcome}.`))
    && (!query.kind || (query.kind === "wipe" ? row.kinds.main > 1 : row.kinds[query.kind] > 0)) && (!query.min_reward || (row.score !== null && row.score >= Number(query.min_reward)));
}

function sorted(chosen, sort = "run") {
  const down = sort.startsWith("-") ? -1 : 1, value = ORDERS[sort.replace("-", "")];
  if (!value) return down < 0 ? chosen.toReversed() : chosen;
  const is = (row) => value(row) ?? null;
  return chosen.toSorted((a, b) => (is(a) === null || is(b) === null ? (is(a) === null) - (is(b) === null) : is(a) < is(b) ? -down : is(a) > is(b) ? down : 0));
}

// The search reads one rollout after the other; what is found is shown meanwhile.

let scan = null; // of the search that was asked for last: { search, hits, read }

function textsOf(said) {
  const texts = { said: [], tools: [] };
  for (const one of said) {
    if (one === null || typeof one !== "object") continue;
    texts[one.role === "tool" ? "tools" : "said"].push(asText(one.reasoning_content), asText(one.content));
    for (const each of Array.isArray(one.tool_calls) ? one.tool_calls : []) texts.tools.push(asText(each?.function?.name), ...strings(each?.function?.arguments));
  }
  return { said: texts.said.join("\n"), tools: texts.tools.join("\n") };
}

// Every text in a JSON value, without the keys of objects.
function strings(value) {
  if (typeof value === "string") return [value];
  return value !== null && typeof value === "object" ? Object.values(value).flatMap(strings) : [];
}

function parseSearch(search) {
  const parts = [];
  for (const [, field, quoted, word] of search.matchAll(/(?:(said|tools|patch|tests):(?=\S))?(?:"([^"]*)"?|(\S+))/g)) {
    const found = (quoted ?? word).match(/[\p{L}\p{N}]+/gu);
    if (found) parts.push({ field, pattern: new RegExp(`(?<![\\p{L}\\p{N}])${found.map(escaped).join("[^\\p{L}\\p{N}]+")}`, "iu") });
  }
  return parts;
}

function findIn(texts, parts) {
  let hit = null;
  for (const { field, pattern } of parts) {
    const name = (field ? [field] : Object.keys(texts)).find((one) => pattern.test(texts[one] ?? ""));
    if (!name) return null;
    if (hit === null) {
      const { index } = pattern.exec(texts[name]);
      hit = { field: name, text: `${index > 60 ? "…" : ""}${texts[name].slice(Math.max(0, index - 60), index + 120).replace(/\s+/g, " ")}…` };
    }
  }
  return hit;
}

async function findInRollout(row, parts) {
  const whole = await readBlock(row.rollout_id).catch(() => null);
  if (whole === null) return null;
  for (const turn of whole.turns) {
    const hit = findIn(textsOf([...turn.sent, turn.reply]), parts);
    if (hit) return { turn: turn.index, ...hit };
  }
  const hit = findIn({ said: `${whole.task}\n${whole.session_id}`, patch: whole.patch, tests: strings(whole.verdict).join("\n") }, parts);
  return hit && { turn: null, ...hit };
}

async function startScan(search) {
  const mine = { search, hits: new Map(), read: 0 };
  scan = mine;
  const parts = parseSearch(search);
  let told = performance.now();
  for (const row of parts.length ? rows : []) {
    const hit = await findInRollout(row, parts);
    if (scan !== mine || state.query.search !== search) {
      if (scan === mine) scan = null;
      return;
    }
    if (hit) mine.hits.set(row.rollout_id, hit);
    mine.read += 1;
    if (performance.now() - told > 300) {
      told = performance.now();
      await reloadList(true);
    }
  }
  mine.read = rows.length;
  reloadList(true);
}

// The rollouts that a query selects, in its order; of a search those that were found by now.
function selected(query) {
  let chosen = rows.filter(selects(query));
  if (query.search) {
    if (scan?.search !== query.search) startScan(query.search);
    chosen = chosen.filter((row) => scan.hits.has(row.rollout_id)).map((row) => ({ ...row, hit: scan.hits.get(row.rollout_id) }));
  }
  return sorted(chosen, query.sort);
}

function counts(values) {
  const found = {};
  for (const value of values) found[value] = (found[value] ?? 0) + 1;
  return found;
}

const source = {
  live: false,
  run: async () => ({ name: at("name").textContent, choices: { only: counts(rows.map((row) => row.split)), outcome: counts(rows.map((row) => row.code)), step: counts(rows.map((row) => row.step)) } }),
  hasReport: document.querySelector("script.document") !== null,
  report: async () => JSON.parse(document.querySelector("script.document").textContent),
  async groups() {
    const found = new Map();
    for (const row of rows) {
      const key = groupOf(row);
      if (!found.has(key)) found.set(key, { step: row.step, split: row.split, group: row.group, task: row.task, rollouts: 0, graded: 0, solved: 0, scores: [] });
      const group = found.get(key);
      group.rollouts += 1;
      group.graded += row.solved === null ? 0 : 1;
      group.solved += row.solved ? 1 : 0;
      if (row.score !== null) group.scores.push(row.score);
    }
    const all = [...found.values()].map((group) => ({ ...group, reward: group.scores.length ? group.scores.reduce((sum, one) => sum + one, 0) / group.scores.length : null }));
    return all.sort((a, b) => b.step - a.step || (a.split === b.split ? a.group - b.group : a.split === "train" ? -1 : 1));
  },
  async list(query, offset, limit) {
    const chosen = selected(query), scanned = query.search && scan.read < rows.length ? `searched ${number(scan.read)} of ${number(rows.length)}` : "";
    const scores = chosen.map((row) => row.score).filter((score) => score !== null), graded = chosen.filter((row) => row.solved !== null);
    const sums = { rollouts: chosen.length, graded: graded.length, solved: graded.filter((row) => row.solved).length, reward: scores.length ? scores.reduce((sum, one) => sum + one, 0) / scores.length : null, sampled: chosen.reduce((sum, row) => sum + row.sampled, 0) };
    return { rows: chosen.slice(offset, offset + limit), sums, scanned };
  },
  place: async (query, id) => selected(query).findIndex((row) => row.rollout_id === id),
  rollout: (id) => readBlock(id),
  async tokens(shown, turn, from) {
    const ids = [...turn.prompt_new, ...turn.output_ids];
    const page = ids.slice(from, from + TOKENS_AT_ONCE);
    const sampled = page.map((_, index) => from + index - turn.prompt_new.length);
    return { start: turn.prompt_tokens - turn.prompt_new.length + from, total: ids.length, ids: page, words: tokenWords(), logprobs: sampled.map((index) => (index < 0 ? null : turn.logprobs[index])), versions: sampled.map(() => turn.weight_version) };
  },
};
