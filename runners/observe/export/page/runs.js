"use strict";
// Runs side by side: results, curves over each other, tasks, flips, costs, keys. Their document is that of `agentrl compare --json`.

const TASKS = 300; // most tasks whose rates are shown
const lineOf = (index) => ({ colour: SERIES[index % SERIES.length], dashed: index >= SERIES.length });
const markRun = (index) => make("i", { class: `mark ${lineOf(index).colour} ${lineOf(index).dashed ? "dashed" : ""}` });
const runHeads = (runs) => runs.map((run) => make("span", { class: "heading" }, run.label));

function drawRuns(found) {
  const { runs } = found;
  const lines = runs.map((run, index) => make("li", {}, markRun(index), run.label, make("span", { class: "dim" }, ` ${run.benchmark ? `evaluation of ${run.benchmark}, ` : ""}${run.state} `), found.reports[index] ? make("a", { href: found.reports[index] }, "report") : null));
  return [make("header", {}, dim("comparison"), make("h1", {}, found.title), make("ul", { class: "runs" }, lines), dim(`as of ${stamp(found.written_at)}`)),
    [resultSection(runs, found.seeds), runCurves(runs), pairSection(found.pairs, found.tasks, runs), runTasks(found.tasks, runs), runCosts(runs), differenceSection(found.differences, runs)]];
}

function resultSection(runs, seeds) {
  const row = (run, mark) => [make("span", { class: "name" }, mark, run.label), rounded(run.steps), [run.eval.first, run.eval.last].filter(isKnown).map(percent).join(" → ") || UNKNOWN, between(run.eval.interval), fixed(run.reward, 3),
    rounded(run.tokens.trained + (run.tokens.examples ?? 0)), isKnown(run.k3) ? run.k3.toExponential(1) : UNKNOWN, duration(run.wall_s), run.state];
  const rates = runs.filter((run) => run.benchmark && run.rates.length).map((run) => dim(`${run.label}: ${run.rates.map((rate) => `${rate.name} ${percent(rate.value)} (${between(rate.interval)})`).join(", ")}`));
  return section("Results", table(["run", "steps", "held-out", "95 %", "reward", "trained tokens", "k3", "time", "end"], [...runs.map((run, index) => row(run, markRun(index))), ...seeds.map((pool) => row(pool, null))], upTo(1, 7)), rates);
}

function runCurves(runs) {
  const lines = (metric) => runs.map((run, index) => ({ name: run.label, points: run.curves[metric] ?? [], ranges: run.intervals[metric] ?? [], band: true, ...lineOf(index) }));
  const heldOut = runs.map((run, index) => ({ name: run.label, points: run.benchmark ? [] : run.rates.map((rate) => [rate.step, rate.value]), ranges: run.rates.map((rate) => [rate.step, ...rate.interval]), ...lineOf(index) }));
  const interval = "with 95 % interval (Wilson)", shares = { rate: true, most: 1 };
  const drawn = [
    drawLines("Held-out solve rate", interval, heldOut, shares), drawLines("Training solve rate", interval, lines("train/solve_rate"), shares), drawLines("Mean reward", "graded rollouts", lines("train/reward_mean")), drawLines("Trained tokens", "per step", lines("tokens/trained")),
    drawLines("Sampling speed", "tokens/s while rolling out", lines("tokens/per_s")), drawLines("Time of a step", "seconds", lines("time/step_s")), drawLines("Training against rollout", "k3", lines("policy/k3"), { log: true }),
  ].filter(Boolean);
  return drawn.length ? section("Curves", charts(drawn)) : null;
}

// The paired test of each run against the first, and the flips by name.
function pairSection(pairs, tasks, runs) {
  if (!pairs.length) return null;
  const points100 = (value) => `${value < 0 ? "" : "+"}${(100 * value).toFixed(1)}`, place = (pair) => runs.findIndex((run) => run.label === pair.run);
  const rows = pairs.map((pair) => [make("span", { class: "name" }, markRun(place(pair)), pair.run), number(pair.tasks), points100(pair.difference), pair.interval.map(points100).join(" to "), significant(pair.p), number(pair.gained.length), number(pair.lost.length)]);
  const lists = pairs.flatMap((pair) => ["lost", "gained"].filter((kind) => pair[kind].length).map((kind) => flips(`${kind === "lost" ? "Lost" : "Gained"} by ${pair.run}`, ["task", ...runHeads([{ label: pair.against }, { label: pair.run }])],
    pair[kind].map((name) => [code(name, { class: "name" }), solvedOf(tasks[name][0]), solvedOf(tasks[name][place(pair)])]))));
  return section("Task by task", dim(`Against ${pairs[0].against}, over the tasks that both measured: the interval is a bootstrap over tasks, p is of a two-sided permutation test that flips the signs of their differences. Gained or lost is a task that most of its rollouts solve in one run only.`),
    table(["run", "tasks", "difference, points", "95 %", "p", "gained", "lost"], rows, upTo(1, 6)), lists);
}

// Each task's solve rate in each run's last evaluation, the least solved first.
function runTasks(tasks, runs) {
  const names = Object.keys(tasks), more = names.length - TASKS;
  if (!names.length) return null;
  const rows = names.slice(0, TASKS).map((name) => [code(name, { class: "name" }), ...tasks[name].flatMap((counts) => [solvedOf(counts), counts ? between(wilson(counts[1], counts[0])) : ""])]);
  return section("Tasks", folded(`${number(names.length)} tasks`, false, table(["task", ...runHeads(runs).flatMap((name) => [name, "95 %"])], rows, upTo(1, 2 * runs.length)), more > 0 ? dim(`and ${number(more)} more: compare --json has all`) : null));
}

function runCosts(runs) {
  const used = [...COSTS, ["tasks solved", "tasks_solved"]].map(([name, field]) => [name, ...runs.map((run) => formatUsed(run.cost[field]))]);
  const prices = [["price", "total"], ["price of a solved task", "per_solved_task"]].filter(([, field]) => runs.some((run) => run.cost[field] !== null));
  return section("Cost", table(["", ...runHeads(runs)], [...used, ...prices.map(([name, field]) => [name, ...runs.map((run) => formatPrice(run.cost[field]))])], upTo(1, runs.length)));
}

function differenceSection(differences, runs) {
  const rows = Object.entries(differences).map(([key, values]) => [code(key), ...values.map((value) => (value === null ? UNKNOWN : code(JSON.stringify(value), { class: "message" })))]);
  return section("Different keys", rows.length ? table(["key", ...runHeads(runs)], rows) : fine("Their configurations are the same."));
}
