"use strict";
// The tokens of a chain as they were sampled, each turn's when it comes into view.

const TOKENS_AT_ONCE = 4000;
const COLOURS = { __proto__: null, probability: "how likely the token was", mask: "which tokens are in the loss", advantage: "what the loss does with them", version: "weights that sampled them", routing: "experts that were recorded, and how far training's own router agrees" };
const seen = new IntersectionObserver((entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => {
  seen.unobserve(entry.target);
  entry.target.dispatchEvent(new Event("seen"));
}), { root: at("main"), rootMargin: "600px" });

const colourName = () => (state.view.colour in COLOURS ? state.view.colour : "probability");
const spaced = (text) => (text === "" ? "∅" : text.replace(/\n/g, "⏎\n").replace(/\t/g, "⇥\t"));

function tokens() {
  const turns = path();
  if (!turns.length) return [noTurns()];
  if (turns.some((turn) => turn.has_ids === false)) return [empty("The engine took and gave texts: token ids and logprobs are not known.")];
  const legend = keep("legend", () => make("div", { class: "legend card" }, make("span", { role: "group", "aria-label": "colours" }, Object.entries(COLOURS).map(([name, about]) =>
    make("button", { "aria-pressed": String(name === colourName()), title: about, onclick: () => go({ view: { colour: name } }, { replace: true }) }, name))),
    make("span", { class: "dim" }, "grey: context, mask 0"), colourName() === "probability" ? make("span", {}, "unlikely ", make("span", { class: "ramp" }), " certain") : null,
    colourName() === "routing" ? make("span", {}, "other experts in training ", make("span", { class: "ramp" }), " the same, or not compared") : null,
    make("span", { class: "dim" }, "dotted: trained in another chain")));
  const detail = keep("detail", () => make("div", { class: "detail mono", id: "detail", "aria-live": "polite" }, "Point at a token."));
  return [legend, ...turns.map((turn) => keep(turn.index, () => wrap(turn, tokenBox(turn)))), detail];
}

function tokenBox(turn) {
  const box = make("div", { class: "tokens", "data-colour": colourName() }, make("span", { class: "dim" }, "…"));
  const more = make("button", { class: "more", hidden: true });
  const data = [];
  const shownIn = open;
  let first = true;
  async function add() {
    try {
      const page = await source.tokens(shownIn, turn, data.length);
      if (first) box.replaceChildren();
      first = false;
      page.ids.forEach((id, index) => {
        const one = { position: page.start + index, id, text: page.words?.[id] ?? `${id} `, logprob: page.logprobs[index], version: page.versions[index], routed: page.routed?.[index] ?? null, agreed: page.agreed?.[index] ?? null };
        box.append(token(one, data.length, turn));
        data.push(one);
      });
      more.textContent = `Show ${number(Math.min(TOKENS_AT_ONCE, page.total - data.length))} more of ${number(page.total)} tokens`;
      more.hidden = data.length >= page.total;
    } catch (error) {
      box.replaceChildren(make("span", { class: "bad" }, error.message));
    }
  }
  more.addEventListener("click", add);
  for (const kind of ["pointerover", "click"]) box.addEventListener(kind, (event) => tell(data[event.target.dataset?.n], turn));
  const holder = make("div", {}, box, more);
  holder.addEventListener("seen", add);
  seen.observe(holder);
  return holder;
}

const VERSION_HUES = [210, 30, 140, 280, 60, 330, 180, 0];

function token(one, n, turn) {
  const sampled = one.logprob !== null, own = turn.segment === chain;
  const style = {};
  let tone = !sampled ? "context" : own ? "sampled" : "elsewhere";
  const colour = colourName();
  if (sampled && own) {
    if (colour === "probability") style["--hue"] = (Math.exp(one.logprob) * 130).toFixed(0);
    else if (colour === "mask") style["--hue"] = 210;
    else if (colour === "version") style["--hue"] = VERSION_HUES[Math.abs(one.version) % VERSION_HUES.length];
    else if (colour === "advantage" && open.advantage && open.tokens.trained) style["--hue"] = open.advantage > 0 ? 140 : 5;
    else if (colour === "advantage") tone = "unmoved";
  }
  if (colour === "routing") {
    tone = one.routed === null || one.routed === 0 ? "context" : "sampled";
    if (one.routed) style["--hue"] = one.routed === 1 ? 140 : 30;
    if (one.agreed !== null) style["--hue"] = (one.agreed * 1.3).toFixed(0);
  }
  return make("span", { class: tone, "data-n": n, style }, spaced(one.text));
}

function tell(one, turn) {
  if (!one || !at("detail")) return;
  const own = turn.segment === chain, sampled = one.logprob !== null;
  const parts = [`position ${number(one.position)}`, `id ${one.id}`];
  if (sampled) parts.push(`logprob ${fixed(one.logprob, 3)}`, `p ${fixed(Math.exp(one.logprob), 3)}`, `version ${one.version}`, own ? "mask 1" : `mask 0 here: trained in chain ${turn.segment}`,
    open.tokens.trained ? `advantage ${signed(open.advantage)}` : "rollout not trained");
  else parts.push("context, mask 0");
  if (one.routed !== null) parts.push(["no experts stored: not recorded, or deleted since (routing_replay.keep_steps)", "experts recorded with these weights", "experts recorded with other weights: not replayed"][one.routed]);
  if (one.agreed !== null) parts.push(`training's router chooses ${one.agreed} % of them, too`);
  at("detail").textContent = parts.join(" · ");
}
