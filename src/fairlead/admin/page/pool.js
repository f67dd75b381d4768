// Smaller tables about the pool: what waits, what was learned of each model, and where endpoints come from.

import { byId, count, duration, element, fill, milliseconds, plural, range, showTable, significant } from "./dom.js";
import { withheldBecause } from "./trouble.js";

const SHOWN_ADAPTERS = 12;
const STANDS_OUT = 1.1; // times what is usual of the model
const SHOWN_WITHHELD = 5; // addresses of each reason

const small = (text, className = "") => element("small", className, text);

export function showQueues(waiting, isOn) {
  byId("queues-section").hidden = !isOn && waiting.length === 0;
  const requests = waiting.reduce((sum, band) => sum + band.requests, 0);
  byId("queues-note").textContent = requests ? `${plural(requests, "request")} held back until an engine has room` : "Nothing waits.";
  byId("queues").hidden = waiting.length === 0;
  const bands = [...waiting].sort((a, b) => a.models.localeCompare(b.models) || b.level - a.level);
  showTable("queues", bands.flatMap((band) => [line(band, band.models, band.priority), ...tenants(band)]));
}

function line(of, models, priority, className = "", key = JSON.stringify([models, priority])) {
  const waits = of.new_request_waits_ms ? milliseconds(of.new_request_waits_ms) : "next";
  const cells = [models, priority, count(of.requests), milliseconds(of.engine_ms), waits];
  return { key, className, cells };
}

function tenants(band) {
  if (band.tenants.length === 1 && band.tenants[0].tenant === "") return [];
  return band.tenants.map((each) => line(each, "", [element("span", "", each.tenant || "no tenant")], "tenant",
    JSON.stringify([band.models, band.priority, each.tenant])));
}

export function showSpeeds(endpoints) {
  const models = new Map();
  for (const e of endpoints) models.set(e.model, [...(models.get(e.model) ?? []), e]);
  showTable("speeds", [...models].map(([model, of]) => ({ key: model, cells: [
    [element("b", "", model), small(adaptersOf(of))], perToken(of, "prefill"), perToken(of, "decode"),
    [basis("prefill", of[0].prefill), basis("decoding", of[0].decode)], slowest(of),
  ] })));
}

function adaptersOf(endpoints) {
  const names = [...new Set(endpoints.flatMap((e) => e.adapters))].sort();
  const most = Math.max(names.length, ...endpoints.map((e) => e.adapter_count));
  if (most === 0) return "";
  const rest = most - Math.min(SHOWN_ADAPTERS, names.length);
  return `adapters: ${names.slice(0, SHOWN_ADAPTERS).join(", ")}${rest ? ` and ${count(rest)} more` : ""}`;
}

function perToken(endpoints, of) {
  const sources = [...new Set(endpoints.map((e) => e[of].source))];
  return [element("span", "", `${range(endpoints.map((e) => e[of].ms_per_token), significant)} ms`),
    small(sources.join(", "), sources.includes("default") ? "warn" : "")];
}

function basis(word, constant) {
  if (!constant.samples) return element("span", "line quiet", `${word}: ${constant.learned ? "from earlier answers" : "no answer yet"}`);
  return element("span", "line", `${word}: ${plural(constant.samples, "answer")} in the last ${duration(constant.oldest_sample_s ?? 0)}`);
}

function slowest(endpoints) {
  const factor = (e) => Math.max(e.prefill.endpoint_samples ? e.prefill.endpoint_factor : 0, e.decode.endpoint_samples ? e.decode.endpoint_factor : 0);
  const worst = endpoints.reduce((a, b) => (factor(b) > factor(a) ? b : a));
  if (!factor(worst)) return element("span", "quiet", "not known apart");
  if (factor(worst) < STANDS_OUT) return element("span", "quiet", "none stands out");
  return [element("span", "", worst.address), small(`${significant(factor(worst))} times what is usual`)];
}

export function showSources(status, endpoints) {
  const reasons = new Map();
  for (const e of endpoints) for (const reason of e.withheld) reasons.set(reason, [...(reasons.get(reason) ?? []), e.address]);
  const { streams, acks, nacks, last_nack: lastNack } = status.envoys;
  byId("sources-section").hidden = !status.discovery.length && !reasons.size && !streams;
  byId("envoys").textContent = streams || nacks
    ? `${plural(streams, "stream")} of Envoys to follow the pool; ${plural(acks, "set")} taken, ${count(nacks)} refused${lastNack ? `: ${lastNack}` : ""}` : "";
  byId("sources").hidden = !status.discovery.length;
  showTable("sources", status.discovery.map((each) => ({ key: each.source, cells: [
    element("b", "", each.source), each.endpoints === null ? "no set yet" : count(each.endpoints),
    each.age_s === null ? "never" : `${duration(each.age_s)} ago`,
    element("span", each.error ? "bad" : "quiet", each.error || "none"),
  ] })));
  fill(byId("withheld"), "", ...[...reasons].map(([reason, addresses]) => {
    const rest = addresses.length - SHOWN_WITHHELD;
    return element("li", "", element("b", "", plural(addresses.length, "endpoint")),
      ` ${withheldBecause(reason)}: ${addresses.slice(0, SHOWN_WITHHELD).join(", ")}${rest > 0 ? ` and ${count(rest)} more` : ""}`);
  }));
}
