"use strict";
// Makes elements. The page only ever sets text: no string of a rollout is parsed as markup.

const at = (id) => document.getElementById(id);
const number = (value) => value.toLocaleString("en");
const fixed = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits));
const signed = (value) => (value === null || value === undefined ? "–" : `${value > 0 ? "+" : ""}${value.toFixed(2)}`);
const short = (value) => (value > 999999 ? `${(value / 1e6).toFixed(1)}M` : value > 9999 ? `${(value / 1e3).toFixed(0)}k` : number(value));

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.round(seconds), two = (value) => String(value).padStart(2, "0");
  return whole < 3600 ? `${Math.floor(whole / 60)}:${two(whole % 60)}` : `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
}

const SVG = ["svg", "rect", "line", "text", "g", "title", "path", "circle"];

function make(name, attributes = {}, ...children) {
  const node = SVG.includes(name) ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") Object.entries(value).forEach(([property, is]) => node.style.setProperty(property, is));
    else node.setAttribute(key, value === true ? "" : value);
  }
  // One by one: a call takes some 100,000 arguments, and a policy decides how many parts a text has.
  for (const child of children.flat()) if (child !== null && child !== undefined) if (child instanceof Node) node.append(child); else appendText(node, visible(String(child)));
  return node;
}

// A text with U+FFFD for Unicode's Bidi_Control, as printable.py has it: a patch must not read otherwise than it runs.
// A text that the browser would lay out for minutes is cut off.
const LONGEST = 1000000;
const whole = (text) => (text.length > LONGEST ? `${text.slice(0, LONGEST)}\n… ${number(text.length - LONGEST)} more characters` : text);
const visible = (text) => whole(text).replace(/[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");

// Append a text; a word of thousands of letters may be broken every PIECE: to find a place in all of it, the browser takes minutes.
const PIECE = 500;
function appendText(node, text) {
  text.split(/(\S{2000,})/).forEach((part, index) => {
    if (index % 2 === 0) node.append(part);
    else for (let from = 0; from < part.length; from += PIECE) node.append(part.slice(from, from + PIECE), document.createElement("wbr"));
  });
}

// Text of a message's content, of a call's argument, of anything in JSON.
function asText(content) {
  if (typeof content === "string") return content;
  if (Array.isArray(content)) return content.map((part) => (typeof part === "string" ? part : part?.text ?? JSON.stringify(part))).join("\n");
  return content === null || content === undefined ? "" : JSON.stringify(content, null, 2);
}

const isInProgress = (code) => code.startsWith("running.");
const verdictOf = (solved, code = "") => (isInProgress(code) ? ["▸", "live", "in progress"] : solved === null || solved === undefined ? ["○", "none", "no grade"] : solved ? ["✓", "good", "solved"] : ["✗", "bad", "unsolved"]);

function dots(kinds) {
  const all = Object.entries(kinds).flatMap(([kind, count]) => Array(Math.min(count, 6)).fill(kind));
  if (all.length < 2) return null;
  return make("span", { class: "dots", title: Object.entries(kinds).map(([kind, count]) => `${count} ${kind}`).join(", ") },
    all.map((kind) => make("i", { class: "dot", "data-kind": kind })));
}

// Let long blocks be opened, when they are in the document and have a height. All are measured before one is changed:
// the browser lays the page out again for a measurement after a change.
function clip(root) {
  const blocks = [...root.querySelectorAll(".may-clip")], long = blocks.filter((one) => one.scrollHeight >= 420);
  for (const block of blocks) block.classList.remove("may-clip"); // a rollout that goes on is drawn again: each block is asked once
  for (const block of long) {
    block.classList.add("clip");
    const more = make("button", { class: "more", onclick: () => { block.classList.remove("clip"); more.remove(); } }, "Show all");
    block.after(more);
  }
}

const empty = (text) => make("p", { class: "empty" }, text);
