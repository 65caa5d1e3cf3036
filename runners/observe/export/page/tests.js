"use strict";
// The verdict: each test by name, with the part of the log that names it.

const RESULTS = { __proto__: null, failed: ["✗", "bad"], error: ["✗", "bad"], missing: ["∅", "none"], void: ["∅", "none"], passed: ["✓", "good"] };
const TOLD = ["tests", "log", "reason", "kind"]; // drawn by name; other findings are listed

const PASSED_OF = ["fail_to_pass", "pass_to_pass"]; // [passed, all]

// The log from a line that names the test to the next line that names another one.
function logOf(name, names, log) {
  const lines = log.split("\n");
  const from = lines.findIndex((one) => one.includes(name));
  if (from < 0) return "";
  const others = names.filter((other) => other !== name);
  const after = lines.slice(from + 1, from + 400).findIndex((one) => others.some((other) => one.includes(other)));
  return lines.slice(from, after < 0 ? from + 400 : from + 1 + after).join("\n").trim();
}

function tests() {
  const { verdict } = open;
  if (!verdict) return [empty("No grade.")];
  const log = asText(verdict.log), parts = [];
  const [sign, tone] = verdictOf(open.reward.solved);
  if (verdict.reason) parts.push(make("p", { class: `verdict ${tone}` }, `${sign} ${asText(verdict.reason)}`));
  const found = Object.entries(verdict.tests && typeof verdict.tests === "object" ? verdict.tests : Object.fromEntries(Object.entries(verdict).filter(([, value]) => Array.isArray(value) && value.every((one) => typeof one === "string"))));
  const names = found.flatMap(([, list]) => [list].flat().map(asText)).slice(0, 5000);
  const order = Object.keys(RESULTS);
  found.sort(([a], [b]) => (order.indexOf(a) + 1 || 99) - (order.indexOf(b) + 1 || 99));
  for (const [result, list] of found) {
    const [mark, colour] = RESULTS[result] ?? ["·", "dim"];
    const all = [list].flat().map(asText);
    if (!all.length) continue;
    parts.push(make("section", { class: "card" }, make("h2", {}, `${number(all.length)} ${result}`), make("div", { class: "tests" }, all.slice(0, 2000).map((name) => {
      const its = logOf(name, names, log);
      const told = make("span", { class: colour }, `${mark} ${name}`);
      return its ? make("details", { open: colour === "bad" && all.length < 6 }, make("summary", {}, told), make("pre", { class: "may-clip" }, its)) : make("div", {}, told);
    })), all.length > 2000 ? make("p", { class: "dim" }, `${number(all.length - 2000)} more`) : null));
  }
  if (log.trim()) parts.push(make("section", { class: "card" }, make("h2", {}, "end of the log"), make("pre", { class: "may-clip" }, log.trim())));
  const rest = Object.entries(verdict).filter(([name, value]) => !TOLD.includes(name) && value !== null && value !== "" && value !== false && !(typeof value === "object" && !Object.keys(value).length));
  if (rest.length) parts.push(make("section", { class: "card" }, make("h2", {}, "findings"), make("dl", { class: "findings" }, rest.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, make("pre", { class: "may-clip" }, PASSED_OF.includes(name) && Array.isArray(value) ? value.map(asText).join(" of ") : asText(value)))]))));
  return parts;
}
