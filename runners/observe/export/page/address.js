"use strict";
// The address says what is shown, so that every view has a link: #PLACE?NAME=VALUE&…
// PLACE is a rollout, "group:SPLIT-STEP-GROUP", "time:SPLIT-STEP", "report:run", or nothing: the overview.

const FILTERS = ["search", "only", "outcome", "kind", "step", "group", "task", "min_reward", "sort"];
const VIEWS = ["tab", "chain", "turn", "with", "attempt", "colour", "show"]; // show=overview: on a phone the list is a page of its own

function readAddress() {
  const [place, rest = ""] = location.hash.slice(1).split("?");
  const state = { place: "", query: {}, view: {} };
  try {
    state.place = decodeURIComponent(place);
  } catch {
    // a link that was cut off in the middle of a character: the overview
  }
  for (const [name, value] of new URLSearchParams(rest)) {
    if (!value) continue;
    if (name === "only") state.query.only = [...(state.query.only ?? []), value];
    else if (FILTERS.includes(name)) state.query[name] = value;
    else if (VIEWS.includes(name)) state.view[name] = value;
  }
  return state;
}

function parameters(query) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) for (const one of [value].flat()) if (one) found.append(name, one);
  return found;
}

function writeAddress({ place, query, view }) {
  const rest = parameters({ ...query, ...view }).toString();
  return `#${encodeURIComponent(place)}${rest ? `?${rest}` : ""}`;
}

let state = readAddress();

// Show something else. `view: null` begins a place anew; the query stays unless it is given.
function go({ place = state.place, query = state.query, view = {} }, { replace = false } = {}) {
  const kept = Object.fromEntries(Object.entries({ ...(place === state.place ? state.view : {}), ...view }).filter(([, value]) => value !== null && value !== undefined && value !== ""));
  const before = state;
  state = { place, query, view: kept };
  history[replace ? "replaceState" : "pushState"](null, "", writeAddress(state));
  render(before);
}

const linkTo = (place, view = {}) => writeAddress({ place, query: state.query, view });

// A link that a plain click follows inside the page.
function link(place, view, attributes, ...children) {
  return make("a", { ...attributes, href: linkTo(place, view), onclick: (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    go({ place, view });
  } }, ...children);
}

const REPORT = "report:run";
const groupOf = (row) => `group:${row.split}-${row.step}-${row.group}`;
