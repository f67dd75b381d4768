// What is on in some pools only: rate limits, calibration, cascades, moves of sessions, the tuner.

import { bar, byId, count, duration, element, fill, milliseconds, percent, plural, showTable, significant } from "./dom.js";

const UNITS = { tokens: "tokens", engine_ms: "engine time" };
const TIMES = { first_token: "first token", pace: "pace" };
const REASONS = {
  judge: "the judge failed", deadline: "out of time", tokens: "out of its budget of tokens", stages_down: "no larger model answered",
  tool_calls: "tool calls", unjudgeable: "not of a kind that is judged", unreadable: "unreadable", full_duplex: "Envoy's mode",
  too_large: "too large", busy: "too many at once",
};
const VERDICTS = {
  accepted: "accepted", rejected: "rejected", first_token: "rejected: first tokens were later", guard: "abandoned by the guard",
  rolled_back: "rolled back to the configured weights",
};
const SHOWN_TRIALS = 10;

const small = (text, className = "") => element("small", className, text);

export function showRates(rates) {
  byId("rates-section").hidden = !rates;
  if (!rates) return;
  const limits = rates.flatMap(({ tenant, limits: of }) => Object.entries(of).map(([unit, level], index) => ({ tenant, unit, ...level, index })));
  const out = new Set(limits.filter((each) => each.left <= 0).map((each) => each.tenant)).size;
  byId("rates-note").textContent = limits.length
    ? `${plural(new Set(limits.map((each) => each.tenant)).size, "tenant")} of the last minute; ${count(out)} with nothing left`
    : "No tenant has sent anything yet.";
  byId("rates").hidden = limits.length === 0;
  showTable("rates", limits.map(({ tenant, unit, limit, left, full_in_s: full, index }) => {
    const shown = (value) => (unit === "tokens" ? count(value) : milliseconds(value));
    const share = Math.max(0, Math.min(1, left / limit));
    return { key: JSON.stringify([tenant, unit]), className: index ? "tenant" : "", cells: [
      index ? "" : element("b", "", tenant || "no tenant"), `${shown(limit)}${unit === "tokens" ? " tokens" : " of engine time"}`,
      [element("span", left <= 0 ? "bad" : "", left <= 0 ? (left < 0 ? `none, ${shown(-left)} owed` : "none") : `${shown(left)}, ${percent(share)}`),
        bar(1, ["cached", share])],
      full > 0 ? `in ${duration(Math.ceil(full))}` : "now",
    ], title: UNITS[unit] };
  }));
}

export function showCalibration(calibration) {
  byId("calibration-section").hidden = !calibration?.length;
  showTable("calibration", (calibration ?? []).map(({ model, time, tenths }) => {
    const answers = tenths.reduce((sum, each) => sum + each.answers, 0);
    const mean = (of) => tenths.reduce((sum, each) => sum + each.answers * of(each), 0) / answers;
    const [expected, seen, inTime] = [mean((t) => t.expected_ms), mean((t) => t.seen_p50_ms), mean((t) => t.in_time)];
    const factor = seen / expected;
    const off = factor >= 2 || factor <= 0.5;
    return { key: JSON.stringify([model, time]), cells: [
      [element("b", "", model), small(plural(answers, "answer"))], TIMES[time] ?? time, milliseconds(expected),
      [element("span", "", milliseconds(seen)), small(`${significant(factor)} times what was expected`, off ? "warn" : "")],
      percent(inTime), plot(tenths),
    ] };
  }));
}

const [WIDE, HIGH, EDGE] = [130, 56, 4];

function drawn(kind, attributes, parent) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  parent?.append(made);
  return made;
}

// One scale for both axes, from 0: the line is where what was seen is what was expected.
function plot(tenths) {
  const most = Math.max(...tenths.flatMap((t) => [t.expected_ms, t.seen_p50_ms])) || 1;
  const svg = drawn("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, class: "plot", role: "img",
    "aria-label": `expected and seen by tenths: ${tenths.map((t) => `${significant(t.expected_ms)} and ${significant(t.seen_p50_ms)}`).join(", ")} ms` });
  const x = (ms) => (EDGE + (WIDE - 2 * EDGE) * ms / most).toFixed(1);
  const y = (ms) => (HIGH - EDGE - (HIGH - 2 * EDGE) * ms / most).toFixed(1);
  drawn("line", { x1: x(0), y1: y(0), x2: x(most), y2: y(most) }, svg);
  for (const t of tenths) drawn("circle", { cx: x(t.expected_ms), cy: y(t.seen_p50_ms), r: 2.5 }, svg);
  return svg;
}

export function showCascades(cascades) {
  byId("cascades-section").hidden = !cascades;
  if (!cascades) return;
  byId("cascades-note").textContent = cascades.held ? `${plural(cascades.held, "answer")} held back now, to be judged` : "";
  byId("cascades").hidden = cascades.routes.length === 0;
  if (!cascades.routes.length) byId("cascades-note").textContent = "No request has entered one yet.";
  showTable("cascades", cascades.routes.map(({ route, accepted, not_judged: skipped, added_ms: added }) => {
    const all = Object.values(accepted).reduce((sum, each) => sum + each, 0);
    const models = Object.entries(accepted).map(([model, answers]) => element("div", "",
      `${model} ${count(answers)} (${percent(answers / all)})`, small(scored(cascades.scores[model]))));
    const reasons = Object.entries(skipped).map(([reason, answers]) => element("span", "line", `${REASONS[reason] ?? reason}: ${count(answers)}`));
    return { key: route, cells: [element("b", "", route), models, reasons.length ? reasons : element("span", "quiet", "none"),
      added === null ? element("span", "quiet", "not known") : milliseconds(added)] };
  }));
}

const scored = (score) => (score === null || score === undefined ? "" : `scored ${significant(score)} on average`);

export function showMoves(moves, isOn) {
  const done = Object.entries(moves?.done ?? {}).filter(([, times]) => times);
  const stayed = Object.values(moves?.stayed ?? {}).reduce((sum, each) => sum + each, 0);
  const parts = [
    moves?.commanded ? `${plural(moves.commanded, "session")} to move at the next request` : "",
    moves?.draining.length ? `draining: ${moves.draining.join(", ")}` : "",
    done.map(([way, times]) => `${count(times)} by ${way}`).join(", "),
    moves?.failed ? `${plural(moves.failed, "copy").replace("copys", "copies")} failed` : "",
    moves?.dropped ? `${count(moves.dropped)} dropped` : "",
    stayed ? `${plural(stayed, "request")} stayed on a hot endpoint` : "",
  ].filter(Boolean);
  byId("moves-section").hidden = !moves || (!isOn && !parts.length && !moves.copies.length);
  if (!moves) return;
  byId("moves-note").textContent = parts.join("; ") || "No session has moved yet.";
  byId("moves").hidden = moves.copies.length === 0;
  showTable("moves", moves.copies.map(({ source, target, tokens, age_s: age }, index) => ({ key: `${source} ${target} ${index}`,
    cells: [element("b", "", source), element("b", "", target), count(tokens), `since ${significant(age)} s`] })));
}

export function showTuner(tuner, mayAct) {
  byId("tuner-section").hidden = !tuner;
  if (!tuner) return;
  const p95 = tuner.incumbent_p95_ms === null ? "" : `; p95 of the best weights ${milliseconds(tuner.incumbent_p95_ms)}, ± ${percent(tuner.noise)} by chance`;
  const state = { warming: "waits for the first requests", tuning: "tries weights", frozen: "frozen: measures, tries nothing" }[tuner.state] ?? tuner.state;
  byId("tuner-note").textContent = `${tuner.mode === "shadow" ? "In the shadow: routing stays as configured" : "Live"}; ${state}${p95}`;
  byId("tuner-state").hidden = !mayAct;
  byId("tuner-state").textContent = tuner.state === "frozen" ? "Let it try again" : "Freeze";
  byId("tuner-state").dataset.wanted = tuner.state === "frozen" ? "tuning" : "frozen";
  showTable("weights", Object.keys(tuner.incumbent).map((name) => ({ key: name, cells: [element("b", "", name),
    significant(tuner.configured[name]), significant(tuner.incumbent[name]),
    tuner.candidate ? significant(tuner.candidate[name]) : element("span", "quiet", "none")] })));
  fill(byId("trials"), "", ...tuner.trials.slice(0, SHOWN_TRIALS).map((trial) => element("li", "",
    element("b", "", `${count(trial.number)}. ${VERDICTS[trial.verdict] ?? trial.verdict}`),
    ` ${Object.entries(trial.candidate).map(([name, value]) => `${name} ${significant(value)}`).join(", ")}`
    + (trial.gain === null ? "" : `; p95 ${percent(Math.exp(-trial.gain) - 1)} against the best known`))));
}
