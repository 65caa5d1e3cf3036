"use strict";
// Where the page's data come from: the server of `agentrl view`. source_file.js has the same methods.

async function ask(path, query = {}) {
  const found = parameters(query).toString();
  const response = await fetch(`api/${path}${found ? `?${found}` : ""}`);
  const body = await response.json();
  if (!response.ok) throw new Error(body.error ?? `the server answered ${response.status}`);
  return body;
}

const source = {
  live: true,
  hasReport: true,
  run: (watch) => ask("run", { watch }),
  report: () => ask("report"),
  groups: async () => (await ask("groups")).groups,
  list: (query, offset, limit) => ask("rollouts", { ...query, offset: String(offset), limit: String(limit) }),
  place: async (query, id) => (await ask(`rollouts/${encodeURIComponent(id)}/place`, query)).place,
  rollout: (id, attempt) => ask(`rollouts/${encodeURIComponent(id)}`, { attempt }),
  wire: (open, turn) => ask(`rollouts/${encodeURIComponent(open.rollout_id)}/wire`, { attempt: String(open.attempt), turn: String(turn.index) }),
  timeline: async (open) => (await ask(`rollouts/${encodeURIComponent(open.rollout_id)}/timeline`, { attempt: String(open.attempt) })).moments,
  step: (split, step) => ask("step", { split, step }),
  tokens: (open, turn, from) => ask(`rollouts/${encodeURIComponent(open.rollout_id)}/tokens`, { attempt: String(open.attempt), turn: String(turn.index), from: String(from) }),
};
