"use strict";
// The conversation of a chain, turn by turn.

function head(turn) {
  const about = [`${number(turn.prompt_tokens)} + ${turn.output_tokens} tokens`, `${fixed(turn.total_s)} s`, `version ${turn.weight_version}`];
  if (turn.finish_reason !== "stop") about.push(`finish: ${turn.finish_reason}`);
  if (turn.malformed_calls) about.push(`${turn.malformed_calls} malformed calls`);
  const reward = open.turn_rewards?.[turn.index];
  if (reward) about.push(`reward ${fixed(reward)}`);
  if (turn.segment !== chain) about.push(`shared: trained in chain ${turn.segment}`);
  return make("div", { class: "head" }, make("span", { class: "badge", "data-kind": turn.branch }, turn.branch),
    link(state.place, { turn: turn.index, tab: tabName() }, { title: "link to this turn" }, `turn ${turn.index}`), about.join(" · "));
}

const wrap = (turn, ...inside) => make("section", { class: `turn ${turn.segment === chain ? "" : "shared"}`, id: `turn-${turn.index}` }, head(turn), ...inside.filter(Boolean));

// What was recorded of a turn's request and answer, read when it is opened.
function wireBox(turn) {
  if (!turn.wired) return null;
  const shownIn = open, inside = make("div", {}), box = make("details", { class: "wire" }, make("summary", {}, "on the wire"), inside);
  box.addEventListener("toggle", async () => {
    if (!box.open || inside.childNodes.length) return;
    inside.append(empty("Reading…"));
    try {
      const found = await source.wire(shownIn, turn);
      inside.replaceChildren(make("h2", {}, "request"), make("pre", {}, `POST ${found.path}`),
        make("dl", { class: "findings" }, found.headers.flatMap(([name, value]) => [make("dt", {}, name), make("dd", { class: "mono" }, value)])),
        make("pre", { class: "may-clip" }, found.request), make("h2", {}, "answer"), make("pre", { class: "may-clip" }, found.answer));
      clip(inside);
    } catch (error) {
      inside.replaceChildren(make("p", { class: "bad" }, error.message));
    }
  });
  return box;
}

const noTurns = () => empty(isInProgress(open.outcome.code) ? "No model call has been answered yet." : "No model call was made.");

const ARGUMENTS = 200; // of a call that are drawn

function call(one) {
  const given = one?.function?.arguments;
  const all = Object.entries(given && typeof given === "object" ? given : { "": given });
  const beyond = all.length > 1000 && all.at(-1)[0] === "…" ? all.at(-1)[1] : null; // the server's note on what it left out: it sends 1,000
  const entries = beyond === null ? all : all.slice(0, -1);
  return make("div", { class: "call" }, make("b", {}, asText(one?.function?.name ?? "?").slice(0, 200)),
    make("dl", {}, entries.slice(0, ARGUMENTS).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, make("pre", { class: "may-clip" }, asText(value)))])),
    entries.length > ARGUMENTS ? make("p", { class: "dim" }, `${number(entries.length - ARGUMENTS)} more arguments`, beyond ? `, and ${asText(beyond)}` : null) : null);
}

function message(said) {
  if (said === null || typeof said !== "object") return make("div", { class: "message" }, make("pre", {}, asText(said)));
  const body = asText(said.content);
  return make("div", { class: "message", "data-role": asText(said.role) }, make("div", { class: "who" }, asText(said.role), said.tool_call_id ? make("span", { class: "dim mono" }, asText(said.tool_call_id)) : null),
    said.reasoning_content ? make("div", { class: "text thinking may-clip" }, asText(said.reasoning_content)) : null,
    body ? make(said.role === "tool" ? "pre" : "div", { class: "text may-clip" }, body) : null,
    Array.isArray(said.tool_calls) ? said.tool_calls.map(call) : null);
}

function conversation() {
  const turns = path();
  if (!turns.length) return [noTurns()];
  const words = (state.query.search ?? "").replace(/\b(said|tools|patch|tests):/g, "").match(/[\p{L}\p{N}]+/gu);
  const note = open.wire_left_out ? [make("p", { class: "dim" }, "Requests as they were on the wire are not in this file: agentrl view RUN shows them, and agentrl rollouts RUN ROLLOUT --wire TURN.")] : [];
  return [...note, ...turns.map((turn) => keep(turn.index, () => {
    const part = wrap(turn, wireBox(turn), turn.sent.map(message), message(turn.reply));
    if (words) markWords(part, words);
    return part;
  }))];
}

// Mark the words of the search: text nodes are split, nothing is parsed.
function markWords(root, words) {
  const pattern = new RegExp(words.map((word) => word).join("|"), "giu");
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const nodes = [];
  while (walker.nextNode()) if (walker.currentNode.data.length < 100000 && !walker.currentNode.parentElement.closest(".head")) nodes.push(walker.currentNode);
  for (const node of nodes) {
    const parts = [];
    let from = 0;
    for (const found of node.data.matchAll(pattern)) {
      if (parts.length > 400) break;
      parts.push(node.data.slice(from, found.index), make("mark", {}, found[0]));
      from = found.index + found[0].length;
    }
    if (parts.length) node.replaceWith(...parts, node.data.slice(from));
  }
}
