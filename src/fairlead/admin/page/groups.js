// Endpoints of one model in one region as one row of the table: sums where they add up, the worst where they do not.

import { bar, compact, count, element, fill, milliseconds, percent, plural, range, significant } from "./dom.js";
import { inflight, pending, waitMs } from "./load.js";
import { troubleOf } from "./trouble.js";

const TROUBLED_SHOWN = 5; // of a closed group

// In the order of the worst endpoint of each, then by name: `endpoints` are sorted already.
export function groupsOf(endpoints) {
  const groups = new Map();
  for (const e of endpoints) {
    const key = JSON.stringify([e.model, e.region]);
    let group = groups.get(key);
    if (!group) groups.set(key, group = { key, name: [e.model, e.region].filter(Boolean).join(", "), model: e.model, region: e.region, endpoints: [], rank: 0 });
    group.endpoints.push(e);
    group.rank = Math.max(group.rank, troubleOf(e).rank);
  }
  return [...groups.values()].sort((a, b) => b.rank - a.rank || a.name.localeCompare(b.name, "en", { numeric: true }));
}

export const stayInSight = (endpoints) => endpoints.filter((e) => troubleOf(e).rank > 0)
  .sort((a, b) => troubleOf(b).rank - troubleOf(a).rank).slice(0, TROUBLED_SHOWN);

const small = (text, className = "") => element("small", className, text);

export function showGroup(row, { model, region, endpoints }) {
  const [name, health, load, wait, reported, cache, rtt, sessions, sent, speed] = row.cells;
  const sum = (of) => endpoints.reduce((total, e) => total + of(e), 0);
  const known = (of) => endpoints.map(of).filter((value) => value !== null);
  const up = endpoints.filter((e) => e.healthy).length;
  const troubled = endpoints.filter((e) => troubleOf(e).rank > 0);
  const kind = up === 0 ? "bad" : troubled.length ? "warn" : "good";

  fill(name.firstChild, "", element("b", "", model), small([region, plural(endpoints.length, "endpoint")].filter(Boolean).join(", ")));
  fill(health, [...new Set(troubled.flatMap((e) => troubleOf(e).words))].slice(0, 8).join("\n") || "No trouble",
    element("span", "", element("span", `dot ${kind}`), `${count(up)} of ${count(endpoints.length)} up`),
    small(troubled.length ? `${count(troubled.length)} in trouble` : "", kind));
  const running = sum(inflight);
  fill(load, "Of all its endpoints", element("span", "", count(running)),
    small(`${significant(running / endpoints.length)} each, most ${count(Math.max(...endpoints.map(inflight)))}`));
  const longest = Math.max(...endpoints.map(waitMs));
  fill(wait, "The longest wait at one of them, and tokens at all", element("span", "", longest ? `≤ ${milliseconds(longest)}` : "none"),
    small(sum(pending) ? `${compact(sum(pending))} tokens` : ""));
  const kv = known((e) => e.reported.kv_usage);
  const queued = sum((e) => e.reported.waiting_requests ?? 0);
  fill(reported, "Average of KV caches in use, and requests that wait in engines",
    element("span", "", kv.length ? `KV ${percent(kv.reduce((a, b) => a + b, 0) / kv.length)}` : "KV unknown"),
    small(kv.length ? `most ${percent(Math.max(...kv))}, ${count(queued)} wait` : ""));
  const prompts = sum((e) => e.prompt_tokens);
  const share = prompts ? sum((e) => e.prefix_hit_tokens) / prompts : 0;
  fill(cache, "Of the prompt tokens sent to all of them", element("span", "", prompts ? percent(share) : "no prompt yet"),
    bar(1, ["cached", share]));
  fill(rtt, "The nearest and the farthest", range(known((e) => e.rtt_ms), milliseconds, "not measured"));
  fill(sessions, "", count(sum((e) => e.sessions)));
  const errors = sum((e) => e.requests.server_error ?? 0);
  fill(sent, "", element("span", "", compact(sum((e) => e.decisions))), small(errors ? `${count(errors)} with 5xx` : "", "bad"));
  fill(speed, "The fastest and the slowest",
    element("span", "", `${range(endpoints.map((e) => e.prefill.ms_per_token), significant)} prefill`),
    element("span", "line", `${range(endpoints.map((e) => e.decode.ms_per_token), significant)} decoding`),
    small([...new Set(endpoints.flatMap((e) => [e.prefill.source, e.decode.source]))].join(", ")));
}
