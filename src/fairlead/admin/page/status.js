// The page's clock: asks for the JSON each second, keeps a minute of counts for rates, and shows a missing sidecar.

import { bar, byId, compact, count, duration, element, fill, keepInStep, percent, plural, significant } from "./dom.js";
import { showDecisions } from "./decisions.js";
import { move } from "./actions.js";
import { showCalibration, showCascades, showMoves, showRates, showTuner } from "./features.js";
import { showQueues, showSources, showSpeeds } from "./pool.js";
import "./story.js";
import { explainColumns, showEndpoints } from "./endpoints.js";
import { inflight, pending } from "./load.js";

const EVERY_MS = 1000;
const EVERY_MS_WHEN_LARGE = 5000; // a document of many endpoints takes the sidecar milliseconds
const LARGE_POOL = 200;
const FEATURES_EVERY_MS = 3000; // what changes slowly
const ANSWER_WITHIN_MS = 4000;
const SHOWN_DECISIONS = 15;
const KEPT_S = 60;

let paused = false;
let timer = 0;
let last = null; // the last answer
let config = null;
let features = {}; // documents of those that are on
let featuresAt = -Infinity;
let goneSince = null;
const samples = []; // of the last minute, oldest first

async function ask(path) {
  const response = await fetch(path, { signal: AbortSignal.timeout(ANSWER_WITHIN_MS), cache: "no-store" });
  if (!response.ok) throw new Error(`${path} answered ${response.status}`);
  return response.json();
}

async function refresh() {
  try {
    config ??= await ask("debug/config");
    const [status, { endpoints }, { decisions }, { waiting }] = await Promise.all([
      ask("debug/status"), ask("debug/endpoints"), ask(`debug/decisions?limit=${SHOWN_DECISIONS}`), ask("debug/waiting"),
    ]);
    last = { status, endpoints, decisions, waiting };
    goneSince = null;
    remember(status);
    await refreshFeatures(status.features);
  } catch {
    goneSince ??= new Date();
    config = null; // the next one to answer may have another
  }
  draw();
}

async function refreshFeatures(on) {
  if (performance.now() - featuresAt < FEATURES_EVERY_MS) return;
  const [rates, calibration, cascades, moves, tuner] = await Promise.all([
    on.rates ? ask("debug/rates") : {}, ask("debug/calibration"), on.cascades ? ask("debug/cascades") : null,
    ask("debug/moves"), on.tuner ? ask("debug/tuner") : null,
  ]);
  features = { rates: rates.rates, calibration: calibration.calibration, cascades, moves, tuner };
  featuresAt = performance.now();
}

async function tick() {
  clearTimeout(timer);
  if (paused || document.hidden) return;
  await refresh();
  clearTimeout(timer);
  if (paused || document.hidden) return;
  timer = setTimeout(tick, last && last.endpoints.length > LARGE_POOL ? EVERY_MS_WHEN_LARGE : EVERY_MS);
}

function remember(status) {
  const total = Object.values(status.requests).reduce((sum, each) => sum + each, 0);
  if (samples.length && samples[0].started !== status.started) samples.length = 0; // it restarted: counts start again
  samples.push({
    started: status.started, at: status.at, total, errors: status.requests.server_error ?? 0,
    prompt: status.prompt_tokens, hit: status.prefix_hit_tokens,
    decisions: status.decisions, seconds: status.decision_seconds,
  });
  while (samples.length > 2 && status.at - samples[0].at > KEPT_S) samples.shift();
}

function draw() {
  drawState();
  drawBanners();
  if (!last) return;
  const { status, endpoints, decisions, waiting } = last;
  byId("about").textContent = `${status.version}, up for ${duration(status.at - status.started)}`;
  byId("first-steps").hidden = status.decisions > 0;
  byId("try").textContent = example(status);
  byId("tenant-label").hidden = !config?.tenants?.header;
  drawTiles(status, endpoints);
  showQueues(waiting, status.features.admission);
  showRates(features.rates);
  showEndpoints(endpoints, status.features.actions);
  showSpeeds(endpoints);
  showCalibration(features.calibration);
  showSources(status, endpoints);
  showMoves(features.moves, status.features.migration);
  showCascades(features.cascades);
  showTuner(features.tuner, status.features.actions);
  byId("actions-section").hidden = !status.features.actions;
  showDecisions(decisions, status.at);
}

function drawState() {
  const state = paused ? "paused" : goneSince ? "no answer" : !last ? "connecting" : last.status.state === "ready" ? "live" : last.status.state;
  byId("state").textContent = state;
  byId("state").className = state.replace(" ", "-");
  document.body.classList.toggle("old", goneSince !== null && last !== null);
}

function drawBanners() {
  const banners = [];
  if (goneSince) {
    const then = last ? " The data below is from before." : "";
    banners.push(["bad", `The sidecar has not answered since ${goneSince.toLocaleTimeString()}.${then} `
      + "Envoy continues to serve without it. Retrying every second."]);
  } else if (last) {
    const { status, endpoints } = last;
    if (status.state === "draining") banners.push(["warn", "The sidecar is draining: running requests finish, new ones are not taken."]);
    if (!endpoints.some((endpoint) => endpoint.healthy)) {
      banners.push(["bad", "No endpoint may be chosen. Check that the engines run and that their /health answers."]);
    }
    const { policy, stream } = status.failures;
    if (policy + stream) {
      banners.push(["warn", `Fairlead itself failed ${plural(policy + stream, "time")} (policy ${count(policy)}, `
        + `stream ${count(stream)}). Those requests continued without a decision; the log has the cause.`]);
    }
  }
  const place = byId("banners");
  keepInStep(place, banners, ([, text]) => text, ([kind, text]) => element("p", `banner ${kind}`, text), () => {});
}

function drawTiles(status, endpoints) {
  const [first, newest] = [samples[0], samples[samples.length - 1]];
  const seconds = newest.at - first.at;
  const rate = (name) => (seconds > 0 ? (newest[name] - first[name]) / seconds : 0);
  const share = (part, whole) => (newest[whole] > first[whole]
    ? (newest[part] - first[part]) / (newest[whole] - first[whole]) : null);
  const cached = share("hit", "prompt");
  const failing = share("errors", "total");
  const took = share("seconds", "decisions");
  const window = seconds > 0 ? `last ${duration(seconds)}` : "measuring";
  const running = endpoints.reduce((sum, e) => sum + inflight(e), 0);
  const waiting = endpoints.reduce((sum, e) => sum + pending(e), 0);
  const tiles = [
    ["Requests", `Requests that ended, ${window}`, [`${significant(rate("total"))} /s`, sparkline(), window]],
    ["Errors", "Answers with 5xx: from engines, or because no endpoint was left. Clients that left are not errors.", [
      element("span", failing ? "bad" : "", `${significant(rate("errors"))} /s`), bar(1, ["bad", failing ?? 0]),
      failing === null ? window : `${percent(failing)}, ${window}`]],
    ["In flight", "Requests sent to engines and not ended", [
      count(running), bar(1), `${compact(waiting)} tokens wait`]],
    ["Cache share", "Share of prompt tokens that were expected in the prefix cache of the endpoint chosen", [
      cached === null ? "–" : percent(cached), bar(1, ["cached", cached ?? 0]),
      cached === null ? "no prompt lately" : window]],
    ["Sessions", "Sessions bound to an endpoint", [count(status.sessions), bar(1), "bound"]],
    ["Policy", parameters(status.policy), [element("span", "name", status.policy.name), bar(1),
      took === null ? "rule in force" : `decides in ${significant(1e3 * took)} ms`]],
  ];
  keepInStep(byId("tiles"), tiles, ([name]) => name, ([name]) => element("div", "tile", element("h3", "", name),
    element("p", "value"), element("div", "graph"), element("p", "quiet")), (tile, [, title, [value, graph, text]]) => {
    tile.title = title;
    fill(tile.children[1], "", value);
    fill(tile.children[2], "", graph);
    fill(tile.children[3], "", text);
  });
}

function parameters(policy) {
  const set = Object.entries(policy.parameters).map(([name, value]) => `${name}: ${value}`);
  return `The rule in force. ${set.length ? `Parameters: ${set.join(", ")}` : "It has no parameters."}`;
}

function sparkline() {
  const name = "http://www.w3.org/2000/svg";
  const drawing = document.createElementNS(name, "svg");
  drawing.setAttribute("viewBox", `0 0 ${KEPT_S} 20`);
  drawing.setAttribute("preserveAspectRatio", "none");
  drawing.setAttribute("aria-hidden", "true");
  const newest = samples[samples.length - 1].at;
  const rates = samples.slice(1).map((sample, index) => {
    const before = samples[index];
    return [KEPT_S - (newest - sample.at), (sample.total - before.total) / Math.max(0.1, sample.at - before.at)];
  });
  const most = Math.max(1, ...rates.map(([, rate]) => rate));
  const line = document.createElementNS(name, "polyline");
  line.setAttribute("points", rates.map(([x, rate]) => `${x.toFixed(1)},${(19 - 18 * rate / most).toFixed(1)}`).join(" "));
  drawing.append(line);
  return drawing;
}

function example(status) {
  const address = config?.gateway?.listen ?? "127.0.0.1:8080";
  const model = Object.keys(status.routes)[0] ?? status.models[0];
  const body = JSON.stringify({ model, messages: [{ role: "user", content: "Hello" }] });
  return `curl http://${address}/v1/chat/completions -H 'content-type: application/json' \\\n  -d '${body.replaceAll("'", "'\\''")}'`;
}

async function findSession(event) {
  event.preventDefault();
  const answer = byId("session-answer");
  const tenant = byId("session-tenant").value;
  byId("move").hidden = true;
  const query = tenant ? `?tenant=${encodeURIComponent(tenant)}` : "";
  try {
    const response = await fetch(`debug/sessions/${encodeURIComponent(byId("session-id").value)}${query}`);
    if (!response.ok) {
      answer.textContent = (await response.text()).trim();
      return;
    }
    const found = await response.json();
    answer.textContent = `It is bound to ${found.endpoint}${found.model ? ` (${found.model})` : ""}${found.healthy ? "" : ", which may not be chosen now"}, `
      + `since ${duration(found.bound_for_s)}. Last used ${duration(found.idle_s)} ago; forgotten in ${duration(found.expires_in_s)} if it is not used.`;
    offerMove(found);
  } catch {
    answer.textContent = "The sidecar does not answer.";
  }
}

function offerMove({ endpoint, model }) {
  const others = last.endpoints.filter((e) => e.model === model && e.address !== endpoint && e.healthy && !e.draining);
  fill(byId("move-to"), "", ...others.map((e) => element("option", "", e.address)));
  byId("move-answer").textContent = "";
  byId("move").hidden = !last.status.features.actions || others.length === 0;
}

function pause(wanted) {
  paused = wanted;
  byId("pause").textContent = paused ? "Resume" : "Pause";
  byId("pause").setAttribute("aria-pressed", String(paused));
  draw();
  tick();
}

byId("pause").addEventListener("click", () => pause(!paused));
document.addEventListener("hold", () => pause(true));
byId("filter").addEventListener("input", draw);
byId("order").addEventListener("change", draw);
byId("session").addEventListener("submit", findSession);
byId("move").addEventListener("submit", (event) => {
  event.preventDefault();
  move(byId("session-id").value, byId("session-tenant").value, byId("move-to").value, byId("move-answer"));
});
document.addEventListener("redraw", draw);
document.addEventListener("visibilitychange", tick);
explainColumns();
tick();
