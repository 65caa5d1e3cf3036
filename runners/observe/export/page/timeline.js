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

// The rollouts of a step as lanes.
async function stepView() {
  const [split, step] = state.place.slice("time:".length).split("-");
  const found = await source.step(split, step), about = split === "eval" ? `Evaluation after step ${step}` : `Step ${step}`;
  const head = [make("nav", { class: "crumbs", "aria-label": "place" }, back(), link("", { show: "overview" }, {}, run.name), " › ", about), make("div", { class: "title" }, make("h1", {}, `${about} by the clock`))];
  if (!found.attempts.length) return [...head, empty("No attempt of this step has ended yet.")];
  return [...head, make("section", { class: "card" }, drawLanes(found, (one) => go({ place: one.rollout_id, view: { tab: "Timeline", attempt: one.counts ? null : one.attempt } })))];
}
