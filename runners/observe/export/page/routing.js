"use strict";
// Routing replay: capture, replay, and the mismatch with and without it.

const SHARE = "share", WHOLE = "whole";
const ROUTING = {
  captured: ["Share of the tokens whose experts came with the rollout.", SHARE], replayed: ["Share of the tokens on which training was made to use them.", SHARE],
  disagree_slot: ["Share of the replayed choices that training itself would have made otherwise.", SHARE], disagree_token: ["Share of the tokens with at least one such choice.", SHARE], disagree_sample_max: ["Largest share of a sample's replayed choices like that.", SHARE],
  k1: ["Mean difference of logprobs, sampling minus training: its sign is a bias."], k3: ["How far training is from the rollout, with replay (an estimate of KL)."], k3_native: ["The same without replay, measured in a shadow forward."],
  p999_abs: ["The difference of logprobs that one token in a thousand exceeds."], p999_abs_native: ["The same without replay."],
  "F_1.1": ["Share of tokens whose probabilities differ by over 10 %.", SHARE], "F_1.1_native": ["The same without replay.", SHARE], F_2: ["Share of tokens whose probabilities differ by more than a factor of 2.", SHARE],
  routing_share: ["Part of the mismatch that routing explains: 1 − k3 / k3 native.", SHARE], gate_grad_norm: ["Norm of the routers' gradient: they still learn."],
  invalid_rows: ["Tokens without experts of their own; training's router chose there.", WHOLE], refused_samples: ["Samples whose routing could not be true or their own; they are masked.", WHOLE],
};
const MODES = { rollout: "Training uses the experts that inference chose, token by token (R3).", recompute: "The experts of training's first pass stay for all updates of a step (R2)." };

function routingSection(run) {
  const mode = kindOf(run, "routing_replay"), name = "Routing replay", steps = run.steps.filter((step) => "r3/k3" in step);
  if (["off", "?"].includes(mode)) return null;
  const intro = make("p", {}, code(`routing_replay=${mode}`), " ", MODES[mode] ?? "");
  if (!steps.length) return section(name, intro, dim("No step has ended yet."));
  const said = (metric, value) => ({ [SHARE]: percent, [WHOLE]: rounded })[ROUTING[metric][1]]?.(value) ?? significant(value), names = Object.keys(ROUTING);
  const rows = names.map((metric) => {
    const found = steps.map((step) => step[`r3/${metric}`]).filter(isKnown), mean = found.reduce((sum, value) => sum + value, 0) / found.length;
    return [code(metric), ...(found.length ? [mean, found[0], found.at(-1)].map((value) => said(metric, value)) : [UNKNOWN, UNKNOWN, UNKNOWN]), ROUTING[metric][0]];
  });
  return section(name, intro, routingAlarms(run), charts(routingCharts(run)), table(["metric", "mean", "first", "last", "meaning"], rows, [1, 2, 3]),
    folded("Each step", false, table(["step", ...names], steps.map((step) => [step.step, ...names.map((metric) => said(metric, step[`r3/${metric}`]))]), upTo(0, names.length))));
}

function routingCharts(run) {
  const one = (name, metric, colour, dashed = false) => curve(run, name, `r3/${metric}`, { colour, dashed });
  const pair = (metric) => [one("with replay", metric, "blue"), { ...one("without", `${metric}_native`, "vermillion", true), points: points(run, `r3/${metric}_native`).filter(([, value]) => isKnown(value)) }];
  return [
    drawLines("Mismatch", "k3 estimate of KL", pair("k3"), { log: true }), drawLines("Its tail", "99.9th percentile of |Δ logprob|", pair("p999_abs"), { log: true }), drawLines("Tokens off by over 10 %", "F(1.1)", pair("F_1.1"), { rate: true }),
    drawLines("Choices training would not make", "share of what was replayed", [one("tokens", "disagree_token", "orange"), one("slots", "disagree_slot", "blue", true)], { rate: true }),
    drawLines("Coverage", "share of tokens", [one("captured", "captured", "blue"), one("replayed", "replayed", "orange", true)], { rate: true, most: 1 }), drawLines("Gradient of the routers", "norm", [one("norm", "gate_grad_norm", "blue")], { log: true }),
  ];
}

// The findings of the self-check, which name layer and sample.
function routingAlarms({ routing_alarms: alarms }) {
  const found = alarms.map(([name, reason]) => make("li", {}, code(name), ` ${reason}`));
  return found.length ? make("div", { class: "card note" }, make("b", {}, quantity(found.length, "alarm")), make("ul", {}, found)) : fine("✓ The self-check of each step found nothing wrong.");
}
