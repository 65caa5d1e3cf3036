"use strict";
// Two rollouts side by side: what they have in common, and where they part.

// The main thread in order, histories that were replaced later among it; a turn is at its first message.
const spoken = (one) => one.turns.filter((turn) => turn.thread === "main").flatMap((turn) => [...turn.sent, turn.reply].map((said, index) => ({ turn: index ? null : turn, said })));

// Ids of calls are drawn at random, so they do not count.
function essence(said) {
  return JSON.stringify(said, (key, value) => (key === "tool_call_id" || key === "id" ? undefined : value));
}

function commonLength(left, right) {
  let length = 0;
  while (length < Math.min(left.length, right.length) && essence(left[length].said) === essence(right[length].said)) length += 1;
  return length;
}

function partingPoint(left, right) {
  const [a, b] = [left, right].map((one) => (one ? `${asText(one.said.reasoning_content)}${asText(one.said.content)}${(one.said.tool_calls ?? []).map((each) => asText(each.function)).join("")}` : ""));
  let length = 0;
  while (length < Math.min(a.length, b.length) && a[length] === b[length]) length += 1;
  const cut = (text) => [text.slice(Math.max(0, length - 60), length), text.slice(length, length + 120)];
  return [cut(a), cut(b)];
}

function compareHead(one, other) {
  const [sign, tone, name] = verdictOf(one.reward.solved);
  return make("header", {}, make("div", { class: "title" }, link(one.rollout_id, {}, { class: "mono" }, one.rollout_id), make("span", { class: tone }, `${sign} ${name}`)),
    make("dl", { class: "facts" }, [["reward", fixed(one.reward.score)], ["advantage", signed(one.advantage)], ["turns", one.turns.length], ["sampled", number(one.tokens.sampled)], ["time", duration(one.timings.total)], ["outcome", one.outcome.code]]
      .map(([key, value]) => make("div", {}, make("dt", {}, key), make("dd", {}, value)))));
}

function compareView(left, right) {
  const pair = [left, right], said = pair.map(spoken);
  const same = commonLength(...said);
  const points = partingPoint(said[0][same], said[1][same]);
  const shared = make("details", { class: "card" }, make("summary", {}, same ? `Before that they are the same: ${number(same)} message${same > 1 ? "s" : ""} of the main thread` : "They differ from the first message on"),
    said[0].slice(0, same).map(({ said: one }) => message(one)));
  const ended = said.every((one) => one.length === same);
  const part = make("div", { class: "card note", id: "part" }, make("h2", {}, ended ? "They do not part: their messages are the same." : `They part at message ${number(same + 1)}`),
    ended ? null : points.map(([before, after], index) => make("pre", { class: "point" }, make("span", { class: "dim" }, before), make("mark", {}, after || "(ends here)"), make("span", { class: "dim" }, `  ${pair[index].rollout_id}`))));
  const columns = pair.map((one, index) => make("div", { class: "column" }, compareHead(one, pair[1 - index]),
    said[index].slice(same).map(({ turn, said: each }) => make("div", {}, turn && make("div", { class: "head" }, make("span", { class: "badge", "data-kind": turn.branch }, turn.branch), link(one.rollout_id, { turn: turn.index }, {}, `turn ${turn.index}`)), message(each))), make("h2", {}, "patch"), drawPatch(one.patch),
    one.verdict ? make("div", { class: "card" }, make("h2", {}, "verdict"), make("p", {}, asText(one.verdict.reason) || "–")) : null));
  const swap = link(right.rollout_id, { with: left.rollout_id }, {}, "exchange them");
  return [crumbs(left, left), make("div", { class: "title" }, make("h1", {}, left.task === right.task ? left.task : `${left.task} · ${right.task}`), swap), part, shared, make("div", { class: "columns" }, columns)];
}
