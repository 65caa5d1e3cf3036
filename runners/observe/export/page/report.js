"use strict";
// The report of a run: sections drawn from its document (runners/observe/report/report_data.py). In a file of its own a rollout's name
// leads to a line of the page that says how it is opened; in the viewer, to the rollout.

const GROUPS = ["scenario", "model", "engine", "sandbox", "harness", "task", "trainer"];
const SPLITS = { train: "training", eval: "evaluation" };
const SERIES = ["blue", "orange", "green", "vermillion", "purple", "sky", "grey", "yellow"]; // those after the eighth are dashed
const SEGMENTS = { final: "blue", wipe: "grey", edit: "vermillion", subagent: "purple", compaction: "orange", side: "green" };
const FEW = 30; // most flips that are listed unfolded
const MEANS = {
  policy: "the policy's own end: graded, trained", budget: "a limit ended it: graded like any other", infra: "a service failed: no reward, retried",
  grader: "no verdict: no reward, retried", cancelled: "the run was stopped: not counted", internal: "a defect of agentrl: no reward, retried",
};
const EVENTS = {
  __proto__: null, checked: "a patch of a task was graded, or all of them", fault: "a fault that the fault plan injected",
  metrics_failed: "metrics.jsonl could not be written; it is rewritten later", reaped: "resources that a dead driver left were removed", regraded: "a stored patch was graded again",
  retry: "a rollout was retried in a fresh sandbox", routing_refused: "a sample with impossible routing was masked", sink_failed: "a service that gets steps or spans failed (a tracker, a collector, a plug-in)",
  service_gone: "a process that the run needs ended", teardown_failed: "a session or sandbox could not be closed", unbuilt: "a rollout's samples could not be built; its reward still counts", write_failed: "a record was written at the second attempt",
};
const BRANCHES = { __proto__: null, main: "the task itself", subagent: "a part of it, given to a sub-agent", compaction: "the summary that replaces a history", side: "a title, a topic, a probe" };
const DROPPED = { "fanout/dropped_long": "longer than fanout.max_segment_tokens", "fanout/dropped_many": "beyond fanout.max_segments", "fanout/untrained_side": "side requests (fanout.train_side=false)", "fanout/untrained_unfinished": "of unfinished rollouts (trainer.train_unfinished=false)" };
const COSTS = [["hours of the run", "run_hours"], ["GPU hours", "gpu_hours", "gpu_hour"], ["sandbox hours", "sandbox_hours", "sandbox_hour"], ["CPU hours in them", "cpu_hours"], ["prompt tokens", "prompt_tokens", "input_token_million"], ["sampled tokens", "sampled_tokens", "output_token_million"]];

// Sections and tables.

const code = (text, attributes = {}) => make("code", attributes, text);
const said = (text, attributes = {}) => make("span", { class: "message", ...attributes }, text);
const dim = (...parts) => make("p", { class: "dim" }, ...parts);
const fine = (text) => make("p", { class: "good" }, text);
const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`);
const section = (name, ...content) => make("section", { class: "card", id: name.toLowerCase().replaceAll(" ", "-") }, make("h2", {}, name), ...content);
const folded = (name, isOpen, ...content) => make("details", { open: isOpen }, make("summary", {}, name), ...content);

// `numbers`: the columns that are aligned to the right.
function table(columns, rows, numbers = []) {
  const line = (tag, cells) => make("tr", {}, cells.map((cell, place) => make(tag, { class: numbers.includes(place) ? "number" : null }, cell)));
  return make("div", { class: "scroll" }, make("table", {}, make("thead", {}, line("th", columns)), make("tbody", {}, rows.map((cells) => line("td", cells)))));
}

const upTo = (first, last) => Array.from({ length: last - first + 1 }, (_, index) => first + index);

// What a report is drawn with: how its rollouts are linked, and those that it has named.
function linkInPage(named) {
  return (id) => {
    named.add(id);
    return make("a", { href: `#${encodeURIComponent(`rollout-${id}`)}` }, code(id));
  };
}

const linkInViewer = (id) => link(id, {}, {}, code(id));

function drawReport(run, to) {
  const sections = [checkSection(run.checked), alarmSection(run), curveSection(run), outcomeSection(run), againstSection(run.against, to), taskSection("Training tasks", "step", run.train_tasks, to), taskSection(run.status.benchmark ? "Tasks" : "Held-out tasks", "evaluation", run.held_out_tasks, to),
    routingSection(run), branchSection(run), rolloutSection(run, to), costSection(run.cost), tamperingSection(run.sums, to), unsolvedSection(run.sums, to), failureSection(run, to), configSection(run)];
  return [reportHead(run), sections];
}

const kindOf = (run, group) => run.config[group]?.kind ?? "?";

function reportHead(run) {
  const { status } = run, states = { done: "green", running: "blue", created: "grey" };
  const chosen = GROUPS.filter((group) => !(status.benchmark && group === "trainer")).map((group) => make("span", {}, make("span", { class: "dim" }, `${group} `), kindOf(run, group)));
  return make("header", {}, dim(run.checked ? "check of tasks" : status.benchmark ? `evaluation of ${status.benchmark}` : "campaign"), make("h1", {}, runName(run), " ", make("span", { class: `state-of ${states[status.state] ?? "orange"}` }, status.state)), make("p", { class: "legend" }, chosen),
    status.message ? make("p", { class: "message" }, status.message) : null, status.inexact ? make("p", { class: "message" }, status.inexact) : null, status.resume ? make("p", {}, "Continue with ", code(status.resume)) : null,
    make("div", { class: "tiles" }, tiles(run).map(([name, value, more]) => make("div", {}, make("span", { class: "dim" }, name), make("b", {}, value), make("small", {}, more || "\u00a0")))), dim(`as of ${stamp(run.written_at)}, in ${status.run_dir}`));
}

const runName = ({ status }) => status.run_dir.replace(/\/+$/, "").split("/").at(-1) || status.run_dir;
const stamp = (at) => new Date(1000 * at).toLocaleString("sv", { timeZoneName: "short" });

function tiles(run) {
  const { status, rates, sums } = run, found = [], range = ({ low, high }) => between([low, high]);
  if (run.checked) return [["fit", partOf(run.checked.fit, run.checked.tasks), `each patch graded ${run.checked.times} times`], ["wall time", duration(run.wall_s), "of all executions"]];
  if (status.benchmark) for (const rate of rates) found.push([rate.name, percent(rate.value), `95 %: ${range(rate)}, ${number(rate.of)} tasks`]);
  else {
    const last = rates.at(-1), several = rates.length > 1, rewards = run.steps.map((step) => step["train/reward_mean"]).filter(isKnown);
    if (last) found.push(["held-out solve rate", percent(rates[0].value) + (several ? ` → ${percent(last.value)}` : ""), `95 %: ${range(rates[0])}${several ? ` → ${range(last)}` : ""}, ${number(rates[0].of)} rollouts`]);
    if (rewards.length) found.push(["mean reward", fixed(rewards[0]) + (rewards.length > 1 ? ` → ${fixed(rewards.at(-1))}` : ""), "first and last step"]);
    found.push(["steps", partOf(status.steps_done, status.steps), status.step_rollouts ? `${quantity(status.step_rollouts, "rollout")} of the next done` : ""]);
  }
  const ended = Object.values(sums.outcomes).flatMap(Object.values).reduce((sum, one) => sum + one, 0);
  found.push(["rollouts", number(ended), sums.failed ? `${quantity(sums.failed, "attempt")} failed` : "no attempt failed"]);
  if (status.groups.total) found.push(["groups", number(status.groups.total), `${number(status.groups.flat)} flat: no gradient`]);
  return [...found, ["tokens of all attempts", number(status.sampled_tokens), status.benchmark ? "" : `${number(status.tokens.trained)} trained`], ["wall time", duration(run.wall_s), "of all executions"]];
}

// Tasks before a training.

function checkSection(checked) {
  if (!checked) return null;
  const { attacks, shown, tasks } = checked, more = tasks - shown.length;
  const rows = shown.map(([task, state, reason, patches]) => [code(task, { class: "name" }), state, said(reason), folded(`${number(patches.length)} patches`, false, table(["patch", "verdicts"], patches.map(([patch, verdicts]) => [code(patch), verdicts])))]);
  return section("Tasks checked", table(["task", "", "reason", "graded"], rows), more > 0 ? dim(`and ${number(more)} more, in calibration.json`) : null,
    make("h3", {}, "Attacks"), table(["attack", "", "tasks that it fits", "paid by"], attacks.map(([name, sentence, fits, paid]) => [code(name), sentence, number(fits), number(paid)]), [2, 3]));
}

function alarmSection({ steps, alarms }) {
  if (!steps.length) return null;
  if (!alarms.length) return section("Alarms", fine("✓ The adviser found nothing wrong."));
  return section("Alarms", table(["alarm", "after steps", "", "evidence, the last", "fix"], alarms.map((alarm) => [code(alarm.name), ranges(alarm.steps), alarm.now ? "now" : "over", said(alarm.evidence), said(alarm.fix)])));
}

// "3–5, 9" of steps in order.
function ranges(steps) {
  const found = [];
  for (const step of steps) if (found.length && step === found.at(-1)[1] + 1) found.at(-1)[1] = step; else found.push([step, step]);
  return found.map(([first, last]) => (first === last ? first : `${first}–${last}`)).join(", ");
}

// Curves.

const points = (run, metric) => run.steps.map((step) => [step.step, step[metric]]);
const curve = (run, name, metric, more = {}) => ({ name, points: points(run, metric), colour: "blue", ...more });
const heights = (run, metric) => new Map(run.steps.map((step) => [step.step, step[metric] ?? 0]));
const byStep = (counts, name) => new Map(Object.entries(counts).map(([step, found]) => [Number(step), found[name] ?? 0]));
const charts = (drawn) => make("div", { class: "charts" }, drawn);

function curveSection(run) {
  const { rates, status, sums } = run, interval = "with 95 % interval (Wilson)", shares = { rate: true, most: 1 };
  const heldOut = { name: "held-out", points: rates.map((rate) => [rate.step, rate.value]), colour: "orange", ranges: rates.map((rate) => [rate.step, rate.low, rate.high]) };
  const parts = [...new Set(run.steps.flatMap(Object.keys))].filter((name) => name.startsWith("reward/"));
  const cheating = (name) => (points(run, `cheating/${name}`).some(([, value]) => value) ? [curve(run, name, `cheating/${name}`, { colour: "vermillion" })] : []);
  const phases = [["rollouts", "blue", heights(run, "time/rollout_s")], ["training", "orange", heights(run, "time/train_s")]];
  const rest = new Map(run.steps.map((step) => [step.step, Math.max(0, (step["time/step_s"] ?? 0) - phases.reduce((sum, [, , found]) => sum + found.get(step.step), 0))]));
  const ended = (step) => Math.max(1, Object.values(sums.ends[step] ?? {}).reduce((sum, one) => sum + one, 0));
  const stages = Object.entries(STAGES).map(([stage, colour]) => [stage, colour, new Map(Object.entries(sums.stages).map(([step, spent]) => [Number(step), (spent[stage] ?? 0) / ended(step)]))]);
  const drawn = [
    drawLines("Held-out solve rate", interval, status.benchmark ? [] : [heldOut], shares),
    drawLines("Training solve rate", `graded rollouts, ${interval}`, [curve(run, "solved", "train/solve_rate", { ranges: run.intervals, band: true })], shares),
    ...chartsBySet(run, "train/solve_rate", "Training solve rate", "blue"), ...chartsBySet(run, "eval/solve_rate", "Held-out solve rate", "orange"),
    drawLines("Solved in part", "graded rollouts; partial credit pays them", status.partly_solved.length ? [curve(run, "solved in part", "train/solved_in_part")] : [], { rate: true }),
    drawLines("Mean reward", "graded rollouts", [curve(run, "reward", "train/reward_mean")]),
    drawLines("Parts of the reward", "mean, graded rollouts", parts.length > 1 ? parts.slice(0, SERIES.length).map((name, index) => curve(run, name.slice("reward/".length), name, { colour: SERIES[index] })) : []),
    drawStack("How rollouts ended", "rollouts per step", [["solved", "green"], ["unsolved", "vermillion"], ["no grade", "yellow"]].map(([end, colour]) => [end, colour, byStep(sums.ends, end)])),
    drawLines("Tampered", "rollouts per step, by canaries", cheating("tampered")), drawLines("Signs of cheating", "rollouts per step", cheating("signs")),
    drawStack("Trained tokens", "per step, by kind of segment", Object.entries(SEGMENTS).map(([kind, colour]) => [kind, colour, heights(run, `tokens/trained_${kind}`)])),
    drawLines("Sampling speed", "tokens/s while rolling out", [curve(run, "tokens/s", "tokens/per_s")]),
    drawStack("Time of a step", "seconds, by phase", [...phases, ["batch and checkpoint", "grey", rest]]), drawStack("Time of a rollout", "mean seconds, by stage", stages),
    drawLines("Training against rollout", "k3, an estimate of KL", [curve(run, "k3", "policy/k3")], { log: true }),
  ].filter(Boolean);
  return drawn.length ? section("Curves", charts(drawn)) : null;
}

// The solve rates of each set of a mixture.
function chartsBySet(run, key, name, colour) {
  const metrics = [...new Set(run.steps.flatMap(Object.keys))].filter((metric) => metric.startsWith(`${key}/`));
  return metrics.map((metric) => drawLines(`${name}: ${metric.slice(key.length + 1)}`, "graded rollouts", [{ name: metric, points: points(run, metric).filter(([, value]) => isKnown(value)), colour }], { rate: true, most: 1 }));
}

function outcomeSection({ sums, status, rewarded }) {
  const splits = Object.keys(SPLITS).filter((split) => sums.outcomes[split]), all = (name) => splits.reduce((sum, split) => sum + (sums.outcomes[split][name] ?? 0), 0);
  const codes = [...new Set(splits.flatMap((split) => Object.keys(sums.outcomes[split])))].sort((a, b) => all(b) - all(a));
  if (!codes.length) return section("Outcomes", dim("No rollout has ended yet."));
  const totals = splits.map((split) => Object.values(sums.outcomes[split]).reduce((sum, one) => sum + one, 0));
  const rows = codes.map((name) => {
    const kind = name.split(".")[0], counts = splits.map((split) => sums.outcomes[split][name] ?? 0);
    return [code(name), ...counts.flatMap((value, index) => [number(value), percent(value / totals[index])]), MEANS[kind], rewarded.includes(kind) ? "yes" : "no"];
  });
  const parts = status.partly_solved.map((one, index) => dim(`Solved in part, in ${SPLITS[one.split]}: ${status.parts[index]}.`));
  return section("Outcomes", table(["outcome", ...splits.flatMap((split) => [SPLITS[split], ""]), "meaning", "reward counts"], rows, upTo(1, 2 * splits.length)), parts);
}

// Tasks.

function flips(name, columns, rows) {
  return folded(`${name}: ${number(rows.length)}`, rows.length <= FEW, table(columns, rows, [1, 2]));
}

const solvedOf = (counts) => (counts ? partOf(counts[1], counts[0]) : UNKNOWN);

function againstSection(against, to) {
  if (!against) return null;
  const { label: other, pair } = against, name = "Against another run";
  if (!pair) return section(name, dim(`No task was measured by this run and by ${other}.`));
  const list = (about, tasks) => (tasks.length ? flips(about, ["task", "solved there", "here", "for example"], tasks.map((one) => [code(one.task, { class: "name" }), solvedOf(one.theirs), solvedOf(one.ours), to(one.example)])) : dim(`${about}: none`));
  const points100 = (value) => `${value < 0 ? "" : "+"}${(100 * value).toFixed(1)}`;
  return section(name, make("p", {}, `Of ${quantity(pair.tasks, "task")} that ${other} measured, too, the mean solve rate differs by ${points100(pair.difference)} points (95 %: ${pair.interval.map(points100).join(" to ")}; p = ${significant(pair.p)}, a paired permutation test). A task counts as solved if most of its rollouts solve it.`),
    list("Solved there and not here", against.lost), list("Solved here and not there", against.gained));
}

function taskSection(name, when, tasks, to) {
  if (!tasks.tried) return null;
  const { several, shown } = tasks;
  const bins = table(several ? ["solved", `in all ${when}s`, `in its last ${when}`] : ["solved", "tasks"], tasks.bins.map(([bin, first, last]) => [bin, number(first), ...(several ? [number(last)] : [])]), [1, 2]);
  const columns = several ? ["task", `${when}s`, "graded", "solved", "95 %", `last ${when}`, "in it", `each ${when}`, "for example"] : ["task", "graded", "solved", "95 %", "for example"];
  const rows = shown.map(({ task, counts, example }) => {
    const graded = counts.reduce((sum, one) => sum + one[1], 0), solved = counts.reduce((sum, one) => sum + one[2], 0), [step, lastGraded, lastSolved] = counts.at(-1);
    const rate = [number(graded), percent(solved / graded), between(wilson(solved, graded))];
    return [code(task, { class: "name" }), ...(several ? [number(counts.length), ...rate, step, percent(lastSolved / lastGraded), drawRates(counts)] : rate), example ? to(example) : null];
  });
  const more = tasks.tried - shown.length;
  return section(name, dim(`${number(tasks.tried)} tasks were tried.`), bins, folded("The least solved", when === "evaluation", table(columns, rows, several ? upTo(1, 6) : [1, 2, 3]), more > 0 ? dim(`and ${number(more)} more`) : null));
}

// A small picture of a task's rates with their intervals: the last ones.
function drawRates(counts) {
  const drawn = counts.slice(-MARKED), steps = drawn.map(([step]) => step), along = makeScale(steps[0], Math.max(steps.at(-1), steps[0] + 1), 3, 93), up = makeScale(0, 1, 17, 3);
  const at = (step, rate) => `${along.place(step).toFixed(1)} ${up.place(rate).toFixed(1)}`, last = drawn.at(-1);
  return make("svg", { class: "rates", viewBox: "0 0 96 20", role: "img", "aria-label": "solve rates" }, make("title", {}, drawn.map(([step, graded, solved]) => `${step}: ${partOf(solved, graded)}`).join("\n")), make("line", { class: "grid", x1: 0, x2: 96, y1: 17, y2: 17 }),
    drawn.map(([step, graded, solved]) => make("path", { class: "interval blue", d: `M${wilson(solved, graded).map((end) => at(step, end)).join("L")}` })), make("path", { class: "stroke blue", d: `M${drawn.map(([step, graded, solved]) => at(step, solved / graded)).join("L")}` }),
    make("circle", { class: "fill blue", cx: along.place(last[0]), cy: up.place(last[2] / last[1]), r: 2.2 }));
}

// Rollouts.

function branchSection({ branches, breaks, sums, status, steps }) {
  if (!branches.length) return null;
  const all = branches.reduce((sum, branch) => sum + branch.sampled, 0), share = (part, sum) => (sum ? percent(part / sum) : UNKNOWN);
  const kinds = table(["branch", "threads", "turns", "sampled tokens", "", "what it is for"], branches.map((branch) => [code(branch.kind), number(branch.threads), number(branch.turns), number(branch.sampled), share(branch.sampled, all), BRANCHES[branch.kind] ?? ""]), upTo(1, 4));
  const { sampled, in_loss, trained } = status.tokens, use = [["sampled by graded rollouts of finished steps", sampled], ["averaged in the loss", in_loss ?? 0, share(in_loss ?? 0, sampled)], ["trained: with a gradient", trained, share(trained, sampled)],
    ["masked: rollouts without a grade", sums.tokens.ungraded ?? 0], ["sampled by attempts that were retried", sums.tokens.replaced ?? 0], ["sampled by evaluations", sums.tokens.evaluation ?? 0]];
  for (const [metric, why] of Object.entries(DROPPED)) {
    const dropped = steps.reduce((sum, step) => sum + (step[metric] ?? 0), 0);
    if (dropped) use.push([`segments not trained: ${why}`, dropped]);
  }
  const broken = breaks.length ? table(["chains that end in a break", "count", "the most frequent reason", "for example"], breaks.map((one) => [code(one.kind), number(one.count), said(one.example), code(one.session_id)]), [1]) : fine("✓ No chain broke: every history was continued token by token.");
  return section("Branches and tokens", kinds, status.benchmark ? null : table(["tokens", "count", "of those graded"], use.map(([name, value, part]) => [name, rounded(value), part ?? ""]), [1, 2]), broken);
}

function rolloutSection({ lanes, sums }, to) {
  if (!sums.slowest.length) return null;
  const names = Object.keys(STAGES);
  const rows = sums.slowest.map((one) => [to(one.rollout_id), said(one.task, { class: "name" }), seconds(one.timings.total), ...names.map((name) => seconds(one.timings[name])), number(one.turns), number(one.sampled), code(one.code)]);
  return section("Rollouts", lanes.filter(([, step]) => step.attempts.length).map(([name, step], index) => folded(name, index === 0, drawLanes(step))), make("h3", {}, "The slowest"), table(["rollout", "task", "total", ...names, "turns", "tokens", "outcome"], rows, upTo(2, 4 + names.length)));
}

function tamperingSection({ tampered, tampered_count: all, tampered_steps: steps }, to) {
  if (!all) return null;
  const most = Object.entries(steps).sort(([, a], [, b]) => b - a).slice(0, 5).map(([step, value]) => `${number(value)} in step ${step}`).join(", ");
  return section("Tampering", dim(`${number(all)} rollouts; they count as unsolved. `, most ? `In training, most: ${most}.` : null), table(["rollout", "step", "task", "evidence"], tampered.map((one) => [to(one.rollout_id), one.step, said(one.task, { class: "name" }), said(one.message)]), [1]));
}

function unsolvedSection({ causes, cause_kinds: kinds, unsolved }, to) {
  if (!causes.length) return null;
  const rows = causes.map((cause) => [said(cause.reason), number(cause.count), percent(cause.count / unsolved), to(cause.rollout_id), cause.tail ? folded("end of its log", false, make("pre", {}, cause.tail)) : ""]);
  return section("Unsolved", table(["reason", "rollouts", "", "for example", ""], rows, [1, 2]), kinds > causes.length ? dim(`${number(kinds - causes.length)} more reasons.`) : null);
}

function failureSection({ sums, events, status }, to) {
  const more = sums.failure_kinds - sums.failures.length, rows = sums.failures.map((one) => [code(one.code), number(one.count), number(one.retried), one.stage, said(one.message || UNKNOWN), to(one.first)]);
  const found = rows.length ? [table(["outcome", "attempts", "retried", "stage", "message", "first"], rows, [1, 2]), more > 0 ? dim(`${number(more)} more kinds.`) : null] : [fine("✓ No attempt failed.")];
  const noted = events.length ? table(["event", "count", "what it means", "the last one"], events.map((one) => [code(one.kind), number(one.count), EVENTS[one.kind] ?? "", said(one.last)]), [1]) : null;
  const left = [...status.diagnoses.map((path) => make("li", {}, "diagnosis: ", code(path))), ...status.leaks.map((leak) => make("li", {}, `left behind: ${leak.kind} `, code(leak.name)))];
  return section("Failures", ...found, noted, left.length ? make("ul", {}, left) : null);
}

const formatUsed = (amount) => (!isKnown(amount) ? UNKNOWN : Number.isInteger(amount) || amount >= 99.95 ? rounded(amount) : significant(amount));
const formatPrice = (price) => (!isKnown(price) ? UNKNOWN : price >= 1 || !price ? price.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 }) : significant(price));

function costSection(cost) {
  const rows = COSTS.map(([name, field, price]) => [name, formatUsed(cost[field]), price in cost.priced ? formatPrice(cost.priced[price]) : ""]), [measured, held] = cost.cpu_attempts;
  const priced = cost.total !== null, note = ["All attempts count: evaluations, and those that were retried.", priced ? null : "With observe.prices it says what that costs.", cost.gpu_hours === null ? "GPUs are counted of a job, and with trainer.device=cuda." : null,
    held && !measured ? "CPU time is measured in local sandboxes only." : measured < held ? `CPU time was measured in ${number(measured)} of ${number(held)} attempts.` : null];
  if (priced) rows.push(["together", "", formatPrice(cost.total)], [`for each of ${quantity(cost.tasks_solved, "solved task")}`, "", formatPrice(cost.per_solved_task)]);
  return section("Cost", table(["", "used", "price"], rows, [1, 2]), dim(note.filter(Boolean).join(" ")));
}

function configSection({ changes, config, status }) {
  const keys = Object.entries(changes), changed = keys.length ? table(["key", "value"], keys.map(([key, value]) => [code(key), code(JSON.stringify(value), { class: "message" })])) : dim("Every key has its default.");
  const again = make("p", {}, "Run it again: ", code(`agentrl run --config ${quoted(`${status.run_dir}/config.json`)}`));
  return section("Configuration", changed, status.benchmark ? null : again, folded("The whole configuration", false, make("pre", {}, JSON.stringify(config, null, 2))));
}

// Links to the sections, below the head of the page; `address` returns that of one.
function sectionBar(sections, address, follow = null) {
  return make("nav", { class: "sections" }, sections.map((one) => make("a", { href: address(one), onclick: follow && ((event) => follow(event, one)) }, one.querySelector("h2").textContent)));
}
