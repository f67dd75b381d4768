// The latest decisions, each with its cost as a bar, and the candidates it was chosen from.

import {
  bar, byId, compact, count, duration, element, fill, keepInStep, milliseconds, plural, significant, tableRow, titled,
} from "./dom.js";

const WHY = {
  cost: ["least cost", "Its cost was the least"],
  rendezvous: ["agreed endpoint", "Several cost nearly the same: all sidecars take the one that the prompt itself chooses"],
  affinity: ["bound endpoint", "The request's session is bound to it, and its cost was the least or near it"],
  migration: ["migrated", "The session was moved there from a hot endpoint, with its cache"],
  fallback: ["fallback", "The policy gave no ranking: the least busy endpoint was taken. See the log"],
};
const COLUMNS = ["When", "Asked → chosen", "Endpoint", "Why", "Prompt", "Cost"];
const languages = new Intl.DisplayNames(["en"], { type: "language", fallback: "code" });
const opened = new Set(); // keys of the decisions whose candidates are shown
let shown = [];

// On a busy pool all rows change within a second: they are kept while the pointer or keyboard focus is on them.
const isHeld = () => shown.length > 0 && byId("decisions").tBodies[0].matches(":hover, :focus-within");

export function showDecisions(newest, now) {
  const decisions = shown = isHeld() ? shown : newest;
  byId("decisions-held").hidden = decisions === newest;
  const known = new Set(decisions.map(keyOf));
  for (const key of opened) if (!known.has(key)) opened.delete(key);
  const most = Math.max(1, ...decisions.map(expectedMs));
  const rows = decisions.flatMap((d) => (opened.has(keyOf(d)) ? [{ d }, { d, more: true }] : [{ d }]));
  byId("no-decisions").hidden = decisions.length > 0;
  byId("decisions").hidden = decisions.length === 0;
  keepInStep(byId("decisions").tBodies[0], rows, (row) => keyOf(row.d) + (row.more ? "+" : ""), makeRow,
    (row, { d, more }) => (more ? updateMore(row, d, most) : update(row, d, now, most)));
}

const keyOf = (d) => `${d.at} ${d.request_id}`;

function makeRow({ d, more }) {
  const row = tableRow(more ? [""] : COLUMNS, more ? "more" : "");
  if (more) row.cells[0].colSpan = COLUMNS.length;
  else row.cells[5].append(element("div", "cost"), expander(d));
  return row;
}

function expander(d) {
  const button = element("button", "expand");
  button.type = "button";
  button.addEventListener("click", () => {
    if (opened.delete(keyOf(d))) {
      document.dispatchEvent(new Event("redraw"));
    } else {
      opened.add(keyOf(d));
      document.dispatchEvent(new Event("hold")); // else the row would be replaced before it can be read
    }
  });
  return button;
}

function update(row, d, now, most) {
  const [when, model, endpoint, reason, prompt, cost] = row.cells;
  fill(when, new Date(d.at * 1000).toLocaleString(), `${duration(now - d.at)} ago`);
  fill(model, `Request ${d.request_id}`, ...names(d));
  const rest = d.endpoints.slice(1);
  fill(endpoint, rest.length ? `If it fails: ${rest.join(", ")}` : "No fallback", d.endpoints[0],
    isSplit(d) ? element("small", "", `prompt at ${d.prefill.split.prefiller}`) : "");
  const [word, meaning] = why(d);
  fill(reason, meaning, element("span", `why ${d.why}`, word));
  fill(prompt, `Length class ${d.bucket}`, promptOf(d),
    element("small", "", `${d.bucket}${d.cached_tokens ? `, ${compact(d.cached_tokens)} cached` : ""}`));
  showCost(cost.firstChild, d.best[0], most);
  const open = opened.has(keyOf(d));
  const button = cost.lastChild;
  button.setAttribute("aria-expanded", String(open));
  button.textContent = open ? "hide" : d.considered > 1 ? `why not others (${count(d.considered - 1)})` : "more";
}

function names(d) {
  const asked = d.asked && d.asked !== d.model ? `${d.asked} → ` : "";
  const named = [element("span", "", asked, element("b", "", d.model))];
  if (d.attempted.length) named.push(element("small", "", `already wrong: ${d.attempted.join(", ")}`));
  return named;
}

function updateMore(row, d, most) {
  const story = element("button", "", `whole story of ${d.request_id}`);
  story.type = "button";
  story.addEventListener("click", () => document.dispatchEvent(new CustomEvent("story", { detail: d.request_id })));
  fill(row.cells[0], "", ...candidates(d, most), ...ways(d), story);
}

export const why = (d) => WHY[d.why] ?? [d.why, ""];
export const expectedMs = (d) => (d.best[0]?.terms ? parts(d.best[0].terms).expected : 0);

const isSplit = (d) => d.prefill?.taken === "split";

// Both ways to compute the prompt, where there was a choice: here, or at another endpoint whose KV then comes here.
export function ways(d) {
  if (!d.prefill) return [];
  const way = (name, hops) => {
    const where = hops.prefiller ? `${hops.prefiller} → ${hops.decoder}` : hops.decoder;
    const terms = [["network", hops.rtt_ms], ["wait", hops.wait_ms], ["prefill", hops.prefill_ms],
      ["stalls others", hops.stall_ms], ["transfer", hops.transfer_ms], ["decoding", hops.decode_ms]]
      .filter(([, ms]) => ms > 0).map(([term, ms]) => `${term} ${milliseconds(ms)}`).join(" + ");
    return element("li", d.prefill.taken === name ? "chosen" : "",
      element("div", "candidate", where, element("small", "", name === "split" ? "prompt computed elsewhere" : "alone")),
      element("span", "sum", `${terms} = `, element("b", "", milliseconds(hops.total_ms))));
  };
  const { alone, split } = d.prefill;
  return [element("ol", "ways", way("alone", alone), way("split", split))];
}

// The best candidates, each with its cost.
export function candidates(d, most) {
  const lines = d.best.map((choice, index) => {
    const cost = element("div", "cost");
    showCost(cost, choice, most);
    const name = element("div", "candidate", `${index + 1}. ${choice.address}`, element("small", "", choice.model));
    return element("li", index ? "" : "chosen", name, cost);
  });
  const hidden = d.considered - d.best.length;
  return [element("ol", "", ...lines),
    element("small", "", hidden > 0 ? `and ${plural(hidden, "endpoint")} that cost more` : "All candidates, best first")];
}

// The cost as `core.cost` computes it: latency, divided by the chance of being right, times the penalty for retries.
function parts(terms) {
  const latency = terms.rtt_ms + terms.fixed_ms + terms.prefill_ms + terms.queue_ms + terms.decode_ms + terms.adapter_ms;
  const expected = latency / terms.success_probability;
  return { latency, expected, penalty: terms.retry_penalty ** terms.attempts };
}

function showCost(place, choice, most) {
  if (!choice) {
    fill(place, "", element("span", "quiet", "no cost: the policy gave no ranking"));
    return;
  }
  const terms = choice.terms;
  if (!terms) {
    fill(place, "This policy's score is not in milliseconds", element("span", "quiet", `score ${significant(choice.score)}`));
    return;
  }
  const { latency, expected, penalty } = parts(terms);
  const drawn = bar(most, ["rtt", terms.rtt_ms], ["fixed", terms.fixed_ms], ["prefill", terms.prefill_ms],
    ["queue", terms.queue_ms], ["decode", terms.decode_ms], ["adapter", terms.adapter_ms], ["chance", expected - latency]);
  if (expected > most * 1.001) drawn.classList.add("beyond");
  if (terms.attempts) {
    drawn.classList.add("penalised");
    drawn.append(titled(element("span", "penalty", `× ${compact(penalty)}`), "The penalty is not drawn to scale"));
  }
  fill(place, explained(terms, latency, expected, penalty), drawn, element("span", "sum", ...sum(terms, latency, penalty)));
}

function sum(terms, latency, penalty) {
  const chance = terms.success_probability;
  if (chance === 1 && !terms.attempts) return [element("b", "", milliseconds(latency))];
  const steps = [milliseconds(latency)];
  if (chance !== 1) steps.push(` ÷ ${significant(chance)}`);
  if (terms.attempts) steps.push(` × ${compact(penalty)}`);
  return [...steps, " = ", element("b", "", milliseconds(terms.total_ms))];
}

function explained(terms, latency, expected, penalty) {
  const lines = [
    `network ${milliseconds(terms.rtt_ms)}`,
    ...(terms.fixed_ms ? [`each request there ${milliseconds(terms.fixed_ms)}`] : []),
    `prefill ${milliseconds(terms.prefill_ms)}`,
    `queue ${milliseconds(terms.queue_ms)}`, `decoding ${milliseconds(terms.decode_ms)}`,
    ...(terms.adapter_ms ? [`loading the adapter ${milliseconds(terms.adapter_ms)}`] : []),
    `together ${milliseconds(latency)}`,
    `÷ ${significant(terms.success_probability)} chance to be right = ${milliseconds(expected)}`,
  ];
  if (terms.attempts) {
    lines.push(`× ${compact(penalty)}: this model was already wrong ${plural(terms.attempts, "time")} here`);
  }
  return lines.join("\n");
}

export const promptOf = (d) => `${language(d.language)}, ${plural(d.tokens, "token")}`;

function language(code) {
  if (code === "other") return "Other";
  try {
    return languages.of(code);
  } catch {
    return code;
  }
}
