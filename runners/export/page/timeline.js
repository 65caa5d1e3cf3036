"use strict";
// What happened when, by the clock: in one rollout over all its branches, and in a step.

const MOMENTS = 1000; // drawn at once

function clock(seconds) {
  const whole = Math.floor(Math.abs(seconds) / 60);
  return `${seconds < 0 ? "−" : "+"}${whole}:${(Math.abs(seconds) % 60).toFixed(1).padStart(4, "0")}`;
}

function timeline() {
  const shownIn = open, body = make("tbody", {}), more = make("button", { class: "more", hidden: true }), note = empty("Reading…");
  const columns = ["clock", "seconds", "thread", "what"];
  const table = make("table", { class: "moments" }, make("thead", {}, make("tr", {}, columns.map((name, index) => make("th", { class: index < 2 ? "number" : null, scope: "col" }, name)))), body);
  source.timeline(shownIn).then((moments) => {
    note.remove();
    const longest = Math.max(...moments.filter((one) => one.kind !== "stage").map((one) => one.seconds ?? 0), 1e-6);
    let shown = 0;
    const add = () => {
      body.append(...moments.slice(shown, shown + MOMENTS).map((one) => moment(one, moments[0].at, longest)));
      shown = Math.min(shown + MOMENTS, moments.length);
      more.hidden = shown === moments.length;
      more.textContent = `Show more: ${number(moments.length - shown)} are left`;
    };
    more.addEventListener("click", add);
    if (moments.length) add();
  }).catch((error) => { note.textContent = error.message; note.className = "bad"; });
  return [make("div", { class: "card scroll" }, note, table, more)];
}

function moment(one, start, longest) {
  const kind = one.kind === "turn" ? open.turns[one.turn]?.branch : null;
  const text = one.turn === null ? one.text : link(open.rollout_id, { turn: one.turn, chain: open.turns[one.turn]?.segment, tab: "Conversation" }, {}, one.text);
  const share = one.kind === "stage" || !one.seconds ? 0 : Math.max(1, (100 * one.seconds) / longest);
  return make("tr", { class: `${one.kind} ${one.fault ? "bad" : ""}`, "data-kind": kind },
    make("td", { class: "number mono", title: new Date(one.at * 1000).toISOString() }, clock(one.at - start)), make("td", { class: "number" }, one.seconds === null ? "" : fixed(one.seconds)),
    make("td", { class: "dim" }, one.thread), make("td", {}, one.kind === "tools" ? "↳ " : null, text, share ? make("i", { class: "length", style: { width: `${share}%` } }) : null));
}

// The rollouts of a step as lanes, a bar for each stage.
async function stepView() {
  const [split, step] = state.place.slice("time:".length).split("-");
  const { attempts, total } = await source.step(split, step);
  const about = split === "eval" ? `Evaluation after step ${step}` : `Step ${step}`;
  const head = [make("nav", { class: "crumbs", "aria-label": "place" }, back(), link("", { show: "overview" }, {}, run.name), " › ", about), make("div", { class: "title" }, make("h1", {}, `${about} by the clock`))];
  const spans = attempts.flatMap((one) => one.stages);
  if (!spans.length) return [...head, empty("No attempt of this step has ended yet.")];
  const start = Math.min(...spans.map(([, at]) => at)), end = Math.max(...spans.map(([, at, seconds]) => at + seconds));
  const width = 1000, left = 190, row = 15, top = 18, span = Math.max(end - start, 1e-6), x = (seconds) => left + ((width - left - 24) * seconds) / span;
  const svg = make("svg", { viewBox: `0 0 ${width} ${attempts.length * row + top}`, role: "img", "aria-label": "stages of the rollouts over time" });
  for (let part = 0; part <= 5; part += 1) svg.append(make("line", { class: "tick", x1: x((span * part) / 5), x2: x((span * part) / 5), y1: top, y2: attempts.length * row + top }), make("text", { x: x((span * part) / 5), y: 11, "text-anchor": "middle" }, duration((span * part) / 5)));
  attempts.forEach((one, index) => {
    const [sign, , name] = verdictOf(one.solved, one.code), y = top + index * row, said = `${one.rollout_id}${one.attempt ? ` a${one.attempt}` : ""}`;
    const open = () => go({ place: one.rollout_id, view: { tab: "Timeline", attempt: one.counts ? null : one.attempt } });
    svg.append(make("g", { class: `lane-of ${one.counts ? "" : "faded"}`, onclick: open }, make("title", {}, `${said} · ${one.task}\n${one.code}, ${name}\n${one.stages.map(([stage, , seconds]) => `${stage} ${fixed(seconds)} s`).join(" · ")}`),
      make("rect", { class: "lane", x: 0, y, width, height: row - 1 }), make("text", { x: 4, y: y + 11 }, `${sign} ${said}`),
      one.stages.map(([stage, at, seconds]) => make("rect", { x: x(at - start), y: y + 2, width: Math.max(0.5, x(seconds) - x(0)), height: row - 5, style: { fill: `var(${STAGE_COLOURS[STAGES.indexOf(stage)]})` } }))));
  });
  const legend = make("div", { class: "legend" }, STAGES.map((name, index) => make("span", {}, make("i", { style: { background: `var(${STAGE_COLOURS[index]})` } }), name)), total > attempts.length ? make("span", {}, `${number(attempts.length)} of ${number(total)} attempts`) : null);
  return [...head, make("section", { class: "card scroll" }, legend, make("div", { class: "lanes" }, svg))];
}
