// The table of endpoints: a small pool as a list, a larger one by model and region, with those in trouble in sight.

import {
  bar, byId, compact, count, duration, element, fill, keepInStep, milliseconds, percent, plural, significant, tableRow,
} from "./dom.js";
import { drain, undrain } from "./actions.js";
import { groupsOf, showGroup, stayInSight } from "./groups.js";
import { inflight, pending, waitMs } from "./load.js";
import { stateOf, troubleOf, withheldBecause } from "./trouble.js";

const MOST_ROWS = 200; // a browser can redraw these every second
const FILTER_FROM = 9;
const LEAST_SCALE_REQUESTS = 8; // so that one request on an idle pool is not a full bar
const LEAST_SCALE_MS = 200;

const COLUMNS = [
  ["Endpoint", identity], ["Health", health], ["In flight", load], ["Waiting prefill", waiting],
  ["Engine reports", reported], ["Cache share", cache], ["Round trip", roundTrip], ["Sessions", sessions],
  ["Sent here", sent], ["Speed", speed],
];
const LABELS = COLUMNS.map(([name]) => name);
const ORDERS = {
  trouble: (a, b) => troubleOf(b).rank - troubleOf(a).rank, // equal ones stay in the pool's order: rows do not jump
  load: (a, b) => inflight(b) - inflight(a),
  wait: (a, b) => waitMs(b) - waitMs(a),
  address: (a, b) => a.address.localeCompare(b.address, "en", { numeric: true }),
};
const opened = new Set(); // addresses whose details are shown
const toggled = new Map(); // groups that somebody opened or closed

export function explainColumns() {
  for (const head of document.querySelectorAll("th[data-means]")) {
    head.title = document.querySelector(`dd[data-term="${head.dataset.means}"]`).textContent;
  }
}

export function showEndpoints(all, mayAct) {
  const wanted = byId("filter").value.toLowerCase().split(/[\s,]+/).filter(Boolean); // all of these words
  const found = all.filter((e) => wanted.every((word) => searched(e).includes(word)));
  found.sort(ORDERS[byId("order").value]);
  const isLarge = all.length >= FILTER_FROM;
  const rows = isLarge ? grouped(found, wanted.length > 0) : found.map((e) => ({ e }));
  const inSight = rows.slice(0, MOST_ROWS);
  const shown = inSight.flatMap(({ e }) => (e ? [e] : []));
  const scale = {
    requests: Math.max(LEAST_SCALE_REQUESTS, ...shown.map(inflight)),
    wait: Math.max(LEAST_SCALE_MS, ...found.map(waitMs)),
    rtt: Math.max(1, ...found.map((e) => e.rtt_ms ?? 0)),
  };
  for (const control of document.querySelectorAll(".of-large-pools")) control.hidden = !isLarge;
  byId("endpoints-note").textContent = note(all, found, shown);
  const withDetails = inSight.flatMap((row) => (row.e && opened.has(row.e.address) ? [row, { ...row, more: true }] : [row]));
  keepInStep(byId("endpoints").tBodies[0], withDetails, keyOf, makeRow, (row, item) => update(row, item, scale, mayAct));
}

const keyOf = ({ group, e, more }) => (group ? `group ${group.key}` : `${e.address}${more ? " +" : ""}`);
const ROLES = { prefill: "prefill only", decode: "decodes" };

const searched = (e) => [e.address, e.model, e.region, e.engine, stateOf(e)[1], ...e.adapters].join(" ").toLowerCase();

// A closed group shows those of its endpoints that are in trouble. A search opens all.
function grouped(found, searching) {
  const groups = groupsOf(found);
  return groups.flatMap((group) => {
    const isOpen = searching || (toggled.get(group.key) ?? (groups.length === 1 || found.length <= 2 * FILTER_FROM));
    const endpoints = isOpen ? group.endpoints : stayInSight(group.endpoints);
    return [{ group, isOpen, searching }, ...endpoints.map((e) => ({ e }))];
  });
}

function note(all, found, shown) {
  const healthy = all.filter((e) => e.healthy).length;
  const troubled = all.filter((e) => troubleOf(e).rank > 0).length;
  const parts = [`${count(healthy)} of ${count(all.length)} may be chosen`];
  if (troubled) parts.push(`${count(troubled)} in trouble`);
  if (found.length < all.length) parts.push(`${count(found.length)} found`);
  if (shown.length < found.length) parts.push(`${count(shown.length)} shown`);
  return parts.join("; ");
}

function makeRow({ group, e, more }) {
  if (more) {
    const row = tableRow([""], "more");
    row.cells[0].colSpan = COLUMNS.length;
    row.cells[0].append(element("div"), action(e.address)); // apart from what changes, so that the focus stays
    return row;
  }
  const row = tableRow(LABELS, group ? "group" : "");
  const button = element("button", "details");
  button.type = "button";
  button.addEventListener("click", () => {
    if (group) toggled.set(group.key, button.getAttribute("aria-expanded") !== "true");
    else if (!opened.delete(e.address)) opened.add(e.address);
    document.dispatchEvent(new Event("redraw"));
  });
  row.cells[0].append(element("div"), button);
  return row;
}

function action(address) {
  const [button, output] = [element("button"), element("output")];
  button.type = "button";
  button.addEventListener("click", () => (button.dataset.draining ? undrain : drain)(address, output));
  return element("div", "act", button, output);
}

function update(row, { group, isOpen, searching, e, more }, scale, mayAct) {
  if (more) {
    const [dl, act] = row.cells[0].children;
    details(dl, e);
    act.hidden = !mayAct;
    act.firstChild.textContent = e.draining ? `take ${e.address} back` : `drain ${e.address}`;
    act.firstChild.dataset.draining = e.draining ? "yes" : "";
    return;
  }
  const button = row.cells[0].lastChild;
  if (group) {
    button.setAttribute("aria-expanded", String(isOpen));
    button.disabled = searching;
    button.textContent = isOpen ? "close" : "show all";
    button.setAttribute("aria-label", `${isOpen ? "close" : "show all of"} ${group.name}`);
    showGroup(row, group);
    return;
  }
  row.classList.toggle("out", !e.healthy);
  const open = opened.has(e.address);
  button.setAttribute("aria-expanded", String(open));
  button.setAttribute("aria-label", `details of ${e.address}`);
  button.textContent = open ? "hide" : "details";
  COLUMNS.forEach(([, show], index) => show(index ? row.cells[index] : row.cells[0].firstChild, e, scale));
}

const growth = (e) => e.prefill_growth_per_1k >= 0.005 ? ` and ${percent(e.prefill_growth_per_1k)} more for each 1,000 before it` : "";

// What the hover texts say, for those who do not hover.
function details(cell, e) {
  const entries = [["Reports", engineOf(e)], ["Trouble", troubleOf(e).words.join("; ") || "none"], ["Since the start", historyOf(e)],
    ["Prefill", `${significant(e.prefill.ms_per_token)} ms per token${growth(e)}, ${from(e.prefill)}`],
    ...(e.fixed_ms ? [["Each request", `${milliseconds(e.fixed_ms)}, whatever its length`]] : []),
    ["Decoding", `${significant(e.decode.ms_per_token)} ms per token, ${from(e.decode)}; `
      + `an answer takes ${count(e.answer_tokens)} tokens on average`]];
  if (e.withheld.length) entries.push(["Gets nothing new", e.withheld.map(withheldBecause).join("; ")]);
  if (e.adapter_count) {
    const rest = e.adapter_count - e.adapters.length;
    entries.push(["Adapters", e.adapters.join(", ") + (rest ? ` and ${count(rest)} more` : "")]);
    const load = e.adapter_load;
    entries.push(["Loaded", `${e.adapters_loaded.join(", ") || "none"}; ${plural(e.adapter_slots, "slot")}; a load takes `
      + `${milliseconds(load.ms)}, ${load.source === "learned" ? `learned from ${count(load.samples)}` : SOURCES.default}`]);
  }
  fill(cell, "", element("dl", "", ...entries.flatMap(([term, text]) => [element("dt", "", term), element("dd", "", text)])));
}

const small = (text, className = "") => element("small", className, text);
const wait = (ms) => (ms === 0 ? "none" : ms < 1 ? "under 1 ms" : milliseconds(ms));

const engineOf = (e) => `${e.engine}${e.version ? ` ${e.version}` : ""}`
  + `${e.max_model_len ? `, up to ${count(e.max_model_len)} tokens` : ""}`;

function identity(cell, e) {
  fill(cell, engineOf(e), element("b", "", e.address), small([e.model, e.region, ROLES[e.role]].filter(Boolean).join(", ")),
    small(e.adapter_count ? plural(e.adapter_count, "adapter") : ""));
}

const historyOf = (e) => [[e.ejections, "ejection"], [e.returns, "return"], [e.restarts, "restart"]]
  .filter(([times]) => times).map(([times, word]) => plural(times, word)).join(", ") || "never taken out, never restarted";

function health(cell, e) {
  const [kind, text] = stateOf(e);
  const history = historyOf(e);
  fill(cell, history, element("span", "", element("span", `dot ${kind}`), text),
    small(history.startsWith("never") ? "" : history));
}

function load(cell, e, scale) {
  const requests = inflight(e);
  const decoding = e.decoding_requests + e.peers.decoding_requests;
  const awaited = e.awaited_requests + e.peers.awaited_requests;
  const elsewhere = awaited ? `, ${count(awaited)} whose prompt another endpoint still computes` : "";
  const parts = `${plural(decoding, "request")} decoding, ${count(requests - decoding - awaited)} in prefill${elsewhere}`;
  const peers = e.peers.inflight_requests ? `; ${count(e.peers.inflight_requests)} of them by other sidecars` : "";
  fill(cell, `${parts}${peers}; ${count(e.inflight_prompt_tokens + e.peers.inflight_prompt_tokens)} prompt tokens`,
    element("span", "", count(requests)),
    bar(scale.requests, ["decode", decoding], ["prefill", requests - decoding - awaited], ["queue", awaited]),
    small(requests ? `${count(decoding)} decoding${awaited ? `, ${count(awaited)} to come` : ""}` : ""));
}

function waiting(cell, e, scale) {
  const tokens = plural(pending(e), "token");
  fill(cell, `${tokens} at ${significant(e.prefill.ms_per_token)} ms each${growth(e)}`, element("span", "", wait(waitMs(e))),
    bar(scale.wait, ["queue", waitMs(e)]), small(pending(e) ? tokens : ""));
}

function reported(cell, e) {
  const report = e.reported;
  if (report.read_ago_s === null) {
    fill(cell, "Its /metrics has not been read yet", element("span", "quiet", "nothing yet"));
    return;
  }
  const queue = report.running_requests === null
    ? "" : `${count(report.running_requests)} run, ${count(report.waiting_requests ?? 0)} wait`;
  const capacity = report.kv_capacity_tokens ? ` of ${compact(report.kv_capacity_tokens)} tokens` : "";
  fill(cell, `KV cache in use${capacity}, and requests, as the engine reports`,
    element("span", "", report.kv_usage === null ? "KV unknown" : `KV ${percent(report.kv_usage)}`),
    bar(1, ["kv", report.kv_usage ?? 0]),
    report.stale ? small(`stale: read ${duration(report.read_ago_s)} ago`, "warn") : small(queue));
}

function cache(cell, e) {
  const share = e.prompt_tokens ? e.prefix_hit_tokens / e.prompt_tokens : 0;
  const { prefix_queried_tokens: asked, prefix_hit_tokens: hit } = e.reported;
  const own = asked ? ` The engine itself counts ${percent(hit / asked)} since its start.` : "";
  fill(cell,
    `${count(e.prefix_hit_tokens)} of ${count(e.prompt_tokens)} prompt tokens. ${count(e.indexed_blocks)} blocks indexed.${own}`,
    element("span", "", e.prompt_tokens ? percent(share) : "no prompt yet"),
    bar(1, ["cached", share]), small(e.cached_tokens ? `≈ ${compact(e.cached_tokens)} held` : ""));
}

function roundTrip(cell, e, scale) {
  fill(cell, "Smoothed over probes", element("span", "", e.rtt_ms === null ? "not measured" : milliseconds(e.rtt_ms)),
    bar(scale.rtt, ["rtt", e.rtt_ms ?? 0]));
}

function sessions(cell, e) {
  fill(cell, "Sessions bound to this endpoint", count(e.sessions));
}

function sent(cell, e) {
  const errors = e.requests.server_error ?? 0;
  const left = e.requests.client_left ?? 0;
  fill(cell, `${plural(errors, "answer")} with 5xx, ${plural(left, "client")} left before the answer`,
    element("span", "", compact(e.decisions)), errors ? small(`${count(errors)} with 5xx`, "bad") : small(""));
}

const SOURCES = {
  configured: "as configured",
  default: "not learned yet: the default, which may be far off",
  reported: "not learned yet: what the engines' own metrics say",
};

// Where a time per token comes from, and how much that is worth.
export const from = (constant) => SOURCES[constant.source]
  ?? `learned from ${plural(constant.samples, "answer")} of the model in the last ${duration(constant.oldest_sample_s)}, `
    + `${count(constant.endpoint_samples)} of them here: ${against(constant.endpoint_factor)}`;

const against = (factor) => (significant(factor) === "1" ? "as is usual" : `${significant(factor)} times what is usual`);

function speed(cell, e) {
  fill(cell, `Prefill ${from(e.prefill)}; decoding ${from(e.decode)}`,
    element("span", "", `${significant(e.prefill.ms_per_token)} prefill`),
    element("span", "line", `${significant(e.decode.ms_per_token)} decoding`),
    small(e.prefill.source === e.decode.source ? e.prefill.source : `${e.prefill.source}, ${e.decode.source}`));
}
