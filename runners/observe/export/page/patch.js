"use strict";
// A patch, file by file, with line numbers and the colours of the language.

const WORDS = new Set(("and as assert async await break case catch class const continue def default defer del do elif else enum except export extends false False finally fn for from func function "
  + "global go if impl import in interface is lambda let match mod mut new nil None nonlocal not null or package pass pub raise return self static struct super switch this throw trait true True try type undefined use var void while with yield int float double char long bool string").split(" "));
const LANGUAGE = /(#.*$|\/\/.*$|\/\*.*?\*\/)|("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`(?:[^`\\]|\\.)*`)|\b(\d[\w.]*)\b|([A-Za-z_]\w*)/g;
const HASH_COMMENTS = /\.(py|pyi|sh|rb|toml|ya?ml|cfg|ini|r|pl)$|(^|\/)(Makefile|Dockerfile)$/i;
const COLOURED = 400; // characters of a line, longer ones are one colour
const LINES = 3000; // lines that are drawn at once

function coloured(text, file) {
  if (text.length > COLOURED) return [text];
  const parts = [];
  let from = 0;
  for (const found of text.matchAll(LANGUAGE)) {
    const [all, comment, string, digits, word] = found;
    const style = comment ? (all[0] === "#") === HASH_COMMENTS.test(file) ? "comment" : null : string ? "string" : digits ? "digits" : WORDS.has(word) ? "keyword" : text[found.index + all.length] === "(" ? "called" : null;
    if (comment && !style) continue;
    if (!style) continue;
    parts.push(text.slice(from, found.index), make("i", { class: style }, all));
    from = found.index + all.length;
  }
  parts.push(text.slice(from));
  return parts;
}

function splitFiles(text) {
  const files = [];
  for (const one of text.replace(/\n$/, "").split("\n")) {
    if (one.startsWith("diff ") || !files.length) files.push({ name: "", lines: [], plus: 0, minus: 0 });
    const file = files.at(-1);
    file.lines.push(one);
    if (one.startsWith("+++ ") || (one.startsWith("--- ") && !file.name)) {
      const name = one.slice(4).replace(/^[ab]\//, "");
      if (name !== "/dev/null") file.name = name;
    } else if (one.startsWith("+")) file.plus += 1;
    else if (one.startsWith("-")) file.minus += 1;
  }
  return files;
}

function drawFile(file) {
  let old = 0, fresh = 0, inHunk = false;
  const lines = file.lines.slice(0, LINES).map((one) => {
    const place = /^@@ -(\d+)(?:,\d+)? \+(\d+)/.exec(one);
    if (place) {
      [old, fresh] = [Number(place[1]), Number(place[2])];
      inHunk = true;
      return make("div", { class: "place" }, make("span", { class: "number" }), make("span", { class: "number" }), make("code", {}, one));
    }
    if (/^(diff |index |--- |\+\+\+ )/.test(one) && !inHunk) return null; // the summary has the name
    if (/^(new file|deleted file|old mode|new mode|similarity|rename |Binary |\\)/.test(one) || !inHunk) return make("div", { class: "file" }, make("span", { class: "number" }), make("span", { class: "number" }), make("code", {}, one));
    const tone = { "+": "plus", "-": "minus" }[one[0]] ?? "";
    const numbers = [tone === "plus" ? "" : old++, tone === "minus" ? "" : fresh++];
    return make("div", { class: tone }, numbers.map((value) => make("span", { class: "number" }, value)), make("code", {}, one[0] ?? " ", coloured(one.slice(1), file.name)));
  });
  const rest = file.lines.length - LINES;
  return make("details", { class: "card diff", open: true }, make("summary", {}, make("b", { class: "mono" }, file.name || "patch"), " ", make("span", { class: "good" }, `+${file.plus}`), " ", make("span", { class: "bad" }, `−${file.minus}`)),
    make("div", { class: "lines" }, lines.filter(Boolean)), rest > 0 ? make("p", { class: "dim" }, `${number(rest)} more lines`) : null);
}

function drawPatch(text) {
  return text ? splitFiles(text).slice(0, 200).map(drawFile) : [empty("No patch.")];
}

const patch = () => drawPatch(open.patch);
