"use strict";
// The attempts of a step as lanes over time: a bar for each stage, a stripe for each model call. Attempts of one rollout share a lane.

const STAGES = { queue: "grey", session: "yellow", boot: "sky", harness: "blue", patch: "purple", teardown: "green", finish: "vermillion", grade: "orange" };
const ENDS = { solved: ["good", "✓"], unsolved: ["bad", "✗"] };

const stageLegend = (more = []) => makeLegend([...Object.entries(STAGES).map(([name, colour]) => [name, `${colour} box`]), ...more]);

// `choose`: called with the attempt that is clicked.
function drawLanes({ attempts, total }, choose = null) {
  const spans = attempts.flatMap((one) => (one.stages.length ? one.stages : one.calls));
  const start = spans.reduce((least, [, at]) => Math.min(least, at), Infinity), end = spans.reduce((most, [, at, took]) => Math.max(most, at + took), start);
  const width = 1120, height = 13, top = 22, left = 46, along = makeScale(0, Math.max(end - start, 0.1), left, width - 26);
  const lanes = [...new Set(attempts.map((one) => one.lane))], bottom = top + lanes.length * height + 4;
  const svg = make("svg", { viewBox: `0 0 ${width} ${bottom}`, role: "img", "aria-label": "stages of the rollouts over time" });
  for (const tick of along.ticks(12)) svg.append(make("line", { class: "grid", x1: along.place(tick), x2: along.place(tick), y1: top - 4, y2: bottom }), label(`${significant(tick)} s`, along.place(tick), top - 8));
  lanes.forEach((lane, index) => svg.append(label(lane, left - 5, top + index * height + 10, "end", { class: "lane-name" })));
  for (const one of attempts) svg.append(drawAttempt(one, top + lanes.indexOf(one.lane) * height, height, (seconds) => along.place(seconds - start), choose));
  const cut = attempts.some((one) => one.calls.some(([, , , , isCut]) => isCut));
  const note = attempts.length < total ? `   ${number(attempts.length)} of ${number(total)} attempts` : "";
  return make("div", {}, stageLegend([["model call", "call-mark box"], ...(cut ? [["cut off (tokens, abort)", "cut-mark box"]] : [])]),
    make("p", { class: "dim small pre" }, "✓ solved   ✗ unsolved   ! no grade", note), make("div", { class: "scroll" }, make("div", { class: "lanes wide" }, svg)));
}

function drawAttempt(one, top, height, place, choose) {
  const box = ([, at, took], y, tall, classes) => (place(at + took) - place(at) < 0.05 ? null : make("rect", { class: classes, x: place(at).toFixed(2), y: y.toFixed(2), width: (place(at + took) - place(at)).toFixed(2), height: tall.toFixed(2) }));
  const threads = [...new Set(one.calls.map(([, , , thread]) => thread))], thin = (height - 9) / Math.max(threads.length, 1);
  const stages = one.stages.filter(([, , took]) => took >= 0.005).map(([name, , took]) => `${name} ${seconds(took)}`);
  const about = [`${one.rollout_id}, attempt ${one.attempt}`, `${one.task}: ${one.code}`, ...stages, `${one.calls.length} model calls`].join("\n");
  const [tone, sign] = ENDS[one.end] ?? ["none", "!"], ended = (one.stages.length ? one.stages : one.calls).reduce((most, [, at, took]) => Math.max(most, at + took), 0);
  return make("g", { class: `${one.counts ? "" : "faded"} ${choose ? "chosen" : ""}`, onclick: choose ? () => choose(one) : null }, make("title", {}, about),
    one.stages.map((span) => box(span, top + 1.5, height - 3, `fill ${STAGES[span[0]]}`)),
    one.calls.map((span) => box(span, top + 4.5 + threads.indexOf(span[3]) * thin, thin, span[4] ? "call-mark cut-mark" : "call-mark")),
    ended ? label(sign, place(ended) + 4, top + height - 3, "start", { class: tone }) : null);
}
