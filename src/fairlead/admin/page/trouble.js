// What is wrong with an endpoint, worst first: by this the table is sorted, and these stay in sight.

import { percent, significant } from "./dom.js";

const WITHHELD = {
  draining: "draining: gets nothing new",
  unconfirmed: "new: Envoy has not confirmed it yet",
  warming_in: "new: more requests after its first answers",
  leaving: "leaving: those that replace it come first",
  half: "does only the prefill or the decoding of a request",
  other_model: "answers 404: it lists other models than its own",
  unknown_to_envoy: "chosen but not served: does Envoy know it?",
};
const BAD = ["unknown_to_envoy", "half", "other_model"]; // reasons that do not pass by themselves
const FAILING_SHARE = 0.02;
const LEAST_FAILED = 5;
const SLOW = 1.5; // times what is usual of the model

export const withheldBecause = (reason) => WITHHELD[reason] ?? reason;

// [class of its dot, words].
export function stateOf(e) {
  if (!e.answers_probes) return ["bad", "down: probes fail"];
  const bad = BAD.find((reason) => e.withheld.includes(reason));
  if (bad) return ["bad", withheldBecause(bad)];
  if (e.withheld.length) return ["warn", withheldBecause(e.withheld[0])];
  if (e.draining) return ["warn", "draining: its sessions move away"];
  return e.healthy ? ["good", "up"] : ["bad", "out: requests fail"];
}

export function troubleOf(e) {
  const found = [];
  const [kind, state] = stateOf(e);
  if (kind !== "good") found.push([kind === "bad" ? 4 : 3, state]);
  if (!e.takes_prompts) found.push([2, "the prompts that it computes for others come to nothing"]);
  const answers = Object.values(e.requests).reduce((sum, each) => sum + each, 0);
  const failed = e.requests.server_error ?? 0;
  if (failed >= LEAST_FAILED && failed > FAILING_SHARE * answers) found.push([2, `${percent(failed / answers)} of its answers since the start are 5xx`]);
  if (e.reported.read_ago_s !== null && e.reported.stale) found.push([2, "its metrics are stale"]);
  for (const [word, { source, endpoint_factor: factor }] of [["prefills", e.prefill], ["decodes", e.decode]]) {
    if (source === "learned" && factor >= SLOW) found.push([1, `${word} ${significant(factor)} times slower than is usual of its model`]);
  }
  return { rank: Math.max(0, ...found.map(([rank]) => rank)), words: found.map(([, words]) => words) };
}
