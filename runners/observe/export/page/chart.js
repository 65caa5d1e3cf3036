"use strict";
// Charts over steps: lines with their intervals, stacked bars. Each step has its exact values as a tooltip; colours are classes of page.css.

const CHART = { width: 400, height: 210, left: 46, right: 10, top: 10, bottom: 34 };
const HOVERED = 200; // most tooltips of a chart; of more steps some have none
const MARKED = 40; // most points that are marked each
const LEAST = 1e-30; // smaller values are rounding errors and count as zero

// Numbers for a reader; unknown ones are a dash.
const UNKNOWN = "–";
const isKnown = (value) => value !== null && value !== undefined && Number.isFinite(value);
const rounded = (value) => (isKnown(value) ? number(Math.round(value)) : UNKNOWN);
const quantity = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
const partOf = (part, all) => `${number(part)} of ${number(all)}`;
const between = (range) => (range ? `${(100 * range[0]).toFixed(0)}–${(100 * range[1]).toFixed(0)} %` : UNKNOWN);
const seconds = (value) => (isKnown(value) ? `${value.toFixed(value >= 100 ? 0 : value >= 1 ? 1 : 2)} s` : UNKNOWN);

function significant(value) {
  if (!isKnown(value)) return UNKNOWN;
  return value && Math.abs(value) < 1e-4 ? value.toExponential(2).replace(/\.?0*e/, "e") : String(Number(value.toPrecision(3)));
}

// A share with enough digits to tell small ones apart.
function percent(share) {
  if (!isKnown(share)) return UNKNOWN;
  const digits = share === 0 || Math.abs(share) >= 0.01 ? 1 : Math.min(4, 1 - Math.floor(Math.log10(Math.abs(100 * share))));
  return `${(100 * share).toFixed(digits)}\u202f%`;
}

// At most three digits and k, M or G, for an axis.
function brief(value) {
  for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (Math.abs(value) >= size) return `${significant(value / size)}${letter}`;
  return significant(value);
}

// The 95 % interval of a rate (Wilson).
function wilson(part, all) {
  const z = 1.959963984540054, rate = part / all, spread = (z * z) / all;
  const half = (z * Math.sqrt((rate * (1 - rate)) / all + spread / (4 * all))) / (1 + spread), middle = (rate + spread / 2) / (1 + spread);
  return [Math.max(0, middle - half), Math.min(1, middle + half)];
}

// The next of 1, 2, 5, 10, … times a power of ten.
function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= least * (1 - 1e-9));
}

// An axis from `low` at `start` to `high` at `end`; values beyond an end lie on that end.
function makeScale(low, high, start, end, log = false) {
  const along = (value) => (log ? Math.log10(Math.max(value, low)) : value), from = along(low), to = along(high);
  const place = (value) => start + Math.min(Math.max((along(value) - from) / (to - from), 0), 1) * (end - start);
  const ticks = (about) => {
    if (log) {
      const least = Math.round(from), most = Math.round(to), every = Math.max(1, Math.ceil((most - least) / about));
      return Array.from({ length: Math.floor((most - least) / every) + 1 }, (_, index) => 10 ** (least + index * every));
    }
    const step = roundStep((high - low) / about), first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
    return Array.from({ length: Math.max(0, last - first + 1) }, (_, index) => (first + index) * step);
  };
  return { place, ticks };
}

// An axis with round ends that holds all values, and zero unless it is logarithmic.
function makeValueScale(values, log) {
  const { height, bottom, top } = CHART, held = values.filter((value) => isKnown(value) && (!log || value > LEAST));
  if (log) {
    const least = Math.floor(Math.log10(Math.min(...held))), most = Math.max(Math.ceil(Math.log10(Math.max(...held))), least + 1);
    return makeScale(10 ** least, 10 ** most, height - bottom, top, true);
  }
  const low = Math.min(0, ...held), high = Math.max(0, ...held);
  if (high - low < LEAST) return makeScale(low, low + 1, height - bottom, top);
  const step = roundStep((high - low) / 4);
  return makeScale(Math.floor(low / step) * step, Math.ceil(high / step - 1e-9) * step, height - bottom, top);
}

function makeStepScale(steps, bars = false) {
  const low = Math.min(...steps), high = Math.max(...steps), margin = bars ? 0.6 : low === high ? 1 : 0;
  return makeScale(low - margin, high + margin, CHART.left, CHART.width - CHART.right);
}

const label = (text, x, y, anchor = "middle", more = {}) => make("text", { x: x.toFixed(2), y: y.toFixed(2), "text-anchor": anchor, ...more }, text);

function drawAxes(along, up, say) {
  const { width, height, left, right, bottom } = CHART, end = width - right, base = height - bottom;
  const parts = up.ticks(5).flatMap((value) => [make("line", { class: "grid", x1: left, x2: end, y1: up.place(value), y2: up.place(value) }), label(say(value), left - 5, up.place(value) + 3.5, "end")]);
  for (const value of along.ticks(6)) if (value >= 0 && Math.abs(value - Math.round(value)) < 1e-9) parts.push(label(String(Math.round(value)), along.place(value), base + 14));
  return [...parts, make("line", { class: "axis", x1: left, x2: end, y1: base, y2: base }), label("step", (left + end) / 2, height - 4)];
}

// Areas that show, when pointed at, what each series has at a step.
function drawTooltips(along, series, say) {
  const { width, height, left, right, top, bottom } = CHART;
  const steps = [...new Set(series.flatMap(([, values]) => [...values.keys()]))].sort((a, b) => a - b);
  const shown = steps.filter((_, index) => index % Math.ceil(steps.length / HOVERED) === 0);
  return shown.map((step, index) => {
    const from = index ? along.place((shown[index - 1] + step) / 2) : left, to = index === shown.length - 1 ? width - right : along.place((step + shown[index + 1]) / 2);
    const lines = series.filter(([, values]) => isKnown(values.get(step))).map(([name, values]) => `${name}: ${say(values.get(step))}`);
    return make("rect", { class: "hover", x: from, y: top, width: Math.max(to - from, 0.5), height: height - top - bottom }, make("title", {}, [`step ${step}`, ...lines].join("\n")));
  });
}

const makeLegend = (marks) => make("ul", { class: "legend" }, marks.map(([name, classes]) => make("li", {}, make("i", { class: `mark ${classes}` }), name)));

function makeFigure(title, unit, parts, marks) {
  const drawing = make("svg", { viewBox: `0 0 ${CHART.width} ${CHART.height}`, role: "img", "aria-label": title }, parts);
  return make("figure", { class: "chart" }, make("figcaption", {}, make("b", {}, title), " ", make("span", { class: "dim" }, unit)), drawing, marks.length ? makeLegend(marks) : null);
}

// A chart of lines {name, points: [step, value], colour, dashed, ranges: [step, low, high], band}; null if none has a value.
// `rate`: shares, as percentages; `most`: the axis goes from 0 to it; `band`: the intervals are one area.
function drawLines(title, unit, given, { log = false, rate = false, most = null } = {}) {
  const isShown = (value) => isKnown(value) && (!log || value > 0);
  const lines = given.filter(({ points }) => points.some(([, value]) => isShown(value)));
  if (!lines.length) return null;
  const values = lines.flatMap(({ points, ranges = [] }) => [...points.map(([, value]) => value), ...ranges.flatMap(([, low, high]) => [low, high])]);
  const up = makeValueScale(most === null ? values : [most], log), along = makeStepScale(lines.flatMap(({ points }) => points.map(([step]) => step)));
  const parts = drawAxes(along, up, rate ? (value) => `${significant(100 * value)}\u202f%` : log ? significant : brief);
  for (const line of lines) parts.push(...drawLine(line, along, up, isShown));
  parts.push(...drawTooltips(along, lines.map(({ name, points }) => [name, new Map(points)]), rate ? percent : significant));
  return makeFigure(title, unit, parts, lines.length > 1 ? lines.map(({ name, colour, dashed }) => [name, `${colour} ${dashed ? "dashed" : ""}`]) : []);
}

function drawLine({ points, colour, dashed = false, ranges = [], band = false }, along, up, isShown) {
  const at = (step, value) => `${along.place(step).toFixed(1)} ${up.place(value).toFixed(1)}`;
  const parts = [];
  if (band && ranges.length) parts.push(make("path", { class: `band ${colour}`, d: `M${[...ranges.map(([step, , high]) => at(step, high)), ...ranges.map(([step, low]) => at(step, low)).reverse()].join("L")}z` }));
  else for (const [step, low, high] of ranges) parts.push(make("path", { class: `interval ${colour}`, d: `M${at(step, low)}L${at(step, high)}${[low, high].map((end) => `M${at(step, end)}m-4 0h8`).join("")}` }));
  let pen = "M", path = "";
  const places = [];
  for (const [step, value] of points) {
    if (isShown(value)) {
      path += `${pen}${at(step, value)}`;
      places.push([along.place(step), up.place(value)]);
    }
    pen = isShown(value) ? "L" : "M"; // an unknown value leaves a gap
  }
  parts.push(make("path", { class: `stroke ${colour} ${dashed ? "dashed" : ""}`, d: path }));
  if (places.length <= MARKED) parts.push(...places.map(([cx, cy]) => make("circle", { class: `fill ${colour}`, cx: cx.toFixed(1), cy: cy.toFixed(1), r: 2.4 })));
  return parts;
}

// Stacked bars per step of parts [name, colour, Map step → height]; null if all are empty.
function drawStack(title, unit, given) {
  const parts = given.filter(([, , heights]) => [...heights.values()].some((value) => value));
  const steps = [...new Set(parts.flatMap(([, , heights]) => [...heights.keys()]))].sort((a, b) => a - b);
  if (!steps.length) return null;
  const along = makeStepScale(steps, true), up = makeValueScale(steps.map((step) => parts.reduce((sum, [, , heights]) => sum + (heights.get(step) ?? 0), 0)), false);
  const wide = 0.8 * Math.min(24, (CHART.width - CHART.left - CHART.right) / (steps.at(-1) - steps[0] + 1));
  const drawn = drawAxes(along, up, brief), below = new Map(steps.map((step) => [step, 0]));
  for (const [, colour, heights] of parts) {
    let path = "";
    for (const step of steps) {
      const base = below.get(step), top = base + (heights.get(step) ?? 0), tall = up.place(base) - up.place(top);
      below.set(step, top);
      if (tall > 0.01) path += `M${(along.place(step) - wide / 2).toFixed(1)} ${up.place(base).toFixed(1)}v${(-tall).toFixed(1)}h${wide.toFixed(1)}v${tall.toFixed(1)}z`;
    }
    drawn.push(make("path", { class: `fill ${colour}`, d: path }));
  }
  drawn.push(...drawTooltips(along, parts.map(([name, , heights]) => [name, heights]), brief));
  return makeFigure(title, unit, drawn, parts.map(([name, colour]) => [name, `${colour} box`]));
}
