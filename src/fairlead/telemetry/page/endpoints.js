// The table of endpoints.

import { bar, byId, compact, count, duration, element, fill, keepInStep, milliseconds, percent, plural, significant }
  from "./dom.js";

const MOST_ROWS = 200; // a browser draws these every second without effort
const FILTER_FROM = 9;
const LEAST_SCALE_REQUESTS = 8; // so that one request on an idle pool is not a full bar
const LEAST_SCALE_MS = 200;

const COLUMNS = [
  ["Endpoint", identity], ["Health", health], ["In flight", load], ["Waiting prefill", waiting],
  ["Engine says", reported], ["Cache share", cache], ["Round trip", roundTrip], ["Sessions", sessions],
  ["Sent here", sent], ["Speed", speed],
];

export function explainColumns() {
  for (const head of document.querySelectorAll("th[data-means]")) {
    head.title = document.querySelector(`dd[data-term="${head.dataset.means}"]`).textContent;
  }
}

export function showEndpoints(all) {
  const wanted = byId("filter").value.trim().toLowerCase();
  const found = all.filter((e) => `${e.address} ${e.model} ${e.region} ${e.engine}`.toLowerCase().includes(wanted));
  found.sort((a, b) => a.healthy - b.healthy); // what needs attention comes first; the sort keeps the order otherwise
  const shown = found.slice(0, MOST_ROWS);
  const scale = {
    requests: Math.max(LEAST_SCALE_REQUESTS, ...shown.map(inflight)),
    wait: Math.max(LEAST_SCALE_MS, ...shown.map(waitMs)),
    rtt: Math.max(1, ...shown.map((e) => e.rtt_ms ?? 0)),
  };
  byId("filter-label").hidden = all.length < FILTER_FROM;
  byId("endpoints-note").textContent = note(all, shown);
  keepInStep(byId("endpoints").tBodies[0], shown, (e) => e.address, makeRow, (row, e) => update(row, e, scale));
}

function note(all, shown) {
  const healthy = all.filter((e) => e.healthy).length;
  const about = `${count(healthy)} of ${count(all.length)} may be chosen`;
  return shown.length < all.length ? `${about}; ${count(shown.length)} shown` : about;
}

function makeRow() {
  const row = element("tr");
  row.setAttribute("role", "row");
  for (const [name] of COLUMNS) {
    const cell = element("td");
    cell.dataset.label = name;
    cell.setAttribute("role", "cell");
    row.append(cell);
  }
  return row;
}

function update(row, endpoint, scale) {
  row.classList.toggle("out", !endpoint.healthy);
  COLUMNS.forEach(([, show], index) => show(row.cells[index], endpoint, scale));
}

// With the load of the sidecars that share a store with this one, as decisions count it.
export const inflight = (e) => e.inflight_requests + e.others.inflight_requests;
export const pending = (e) => e.pending_prefill_tokens + e.others.pending_prefill_tokens;

const small = (text, className = "") => element("small", className, text);
const wait = (ms) => (ms === 0 ? "none" : ms < 1 ? "under 1 ms" : milliseconds(ms));
const waitMs = (e) => pending(e) * e.prefill.ms_per_token;

function identity(cell, e) {
  const length = e.max_model_len ? `, up to ${count(e.max_model_len)} tokens` : "";
  const version = `${e.engine}${e.version ? ` ${e.version}` : ""}`;
  fill(cell, `${version}${length}`, element("b", "", e.address), small([e.model, e.region].filter(Boolean).join(", ")));
}

function health(cell, e) {
  let state = ["good", "up"];
  if (!e.answers_probes) state = ["bad", "down: probes fail"];
  else if (!e.healthy) state = ["bad", "out: requests fail"];
  const history = [[e.ejections, "ejection"], [e.returns, "return"], [e.restarts, "restart"]]
    .filter(([times]) => times).map(([times, word]) => plural(times, word)).join(", ");
  fill(cell, history || "Never taken out, never restarted", element("span", "", element("span", `dot ${state[0]}`), state[1]),
    small(history));
}

function load(cell, e, scale) {
  const requests = inflight(e);
  const decoding = e.decoding_requests + e.others.decoding_requests;
  const parts = `${plural(decoding, "request")} decoding, ${count(requests - decoding)} in prefill`;
  const others = e.others.inflight_requests ? `; ${count(e.others.inflight_requests)} of them by other sidecars` : "";
  fill(cell, `${parts}${others}; ${count(e.inflight_prompt_tokens + e.others.inflight_prompt_tokens)} prompt tokens`,
    element("span", "", count(requests)),
    bar(scale.requests, ["decode", decoding], ["prefill", requests - decoding]),
    small(requests ? `${count(decoding)} decoding` : ""));
}

function waiting(cell, e, scale) {
  const tokens = plural(pending(e), "token");
  fill(cell, `${tokens} at ${significant(e.prefill.ms_per_token)} ms each`, element("span", "", wait(waitMs(e))),
    bar(scale.wait, ["queue", waitMs(e)]), small(pending(e) ? tokens : ""));
}

function reported(cell, e) {
  const said = e.reported;
  if (said.read_ago_s === null) {
    fill(cell, "Its /metrics could not be read yet", element("span", "quiet", "nothing yet"));
    return;
  }
  const queue = said.running_requests === null
    ? "" : `${count(said.running_requests)} run, ${count(said.waiting_requests ?? 0)} wait`;
  const capacity = said.kv_capacity_tokens ? ` of ${compact(said.kv_capacity_tokens)} tokens` : "";
  fill(cell, `KV cache in use${capacity}, and requests, as the engine reports`,
    element("span", "", said.kv_usage === null ? "KV unknown" : `KV ${percent(said.kv_usage)}`),
    bar(1, ["kv", said.kv_usage ?? 0]),
    said.stale ? small(`stale: read ${duration(said.read_ago_s)} ago`, "warn") : small(queue));
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
  fill(cell, "Sessions that live here", count(e.sessions));
}

function sent(cell, e) {
  const errors = e.requests.server_error ?? 0;
  const left = e.requests.client_left ?? 0;
  fill(cell, `${plural(errors, "answer")} with 5xx, ${plural(left, "client")} left before the answer`,
    element("span", "", compact(e.decisions)), errors ? small(`${count(errors)} with 5xx`, "bad") : small(""));
}

function speed(cell, e) {
  const from = (constant) => (constant.learned ? `learned from ${plural(constant.samples, "answer")}` : "as configured");
  fill(cell, `Prefill ${from(e.prefill)}, decoding ${from(e.decode)}`,
    element("span", "", `${significant(e.prefill.ms_per_token)} prefill`),
    element("span", "line", `${significant(e.decode.ms_per_token)} decoding`),
    small(e.prefill.learned || e.decode.learned ? "learned" : "configured"));
}
