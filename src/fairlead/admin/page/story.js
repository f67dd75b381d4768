// What became of one request, by its id: each decision with its candidates, and how each attempt ended.

import { byId, count, element, fill, milliseconds, plural } from "./dom.js";
import { candidates, expectedMs, promptOf, ways, why } from "./decisions.js";

const WITHIN_MS = 4000;
const PREFIX = "#request="; // so that a story can be linked to

const TIME = { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3, hour12: false };

let asked = 0; // only the last question's answer is shown

export async function findRequest(id) {
  const [answer, story, mine] = [byId("request-answer"), byId("story"), ++asked];
  byId("request-id").value = id;
  history.replaceState(null, "", PREFIX + encodeURIComponent(id));
  let [text, events] = ["The sidecar does not answer.", []];
  try {
    const response = await fetch(`debug/requests/${encodeURIComponent(id)}`,
      { signal: AbortSignal.timeout(WITHIN_MS), cache: "no-store" });
    if (response.ok) {
      ({ events } = await response.json());
      text = summary(events);
    } else {
      text = (await response.text()).trim();
    }
  } catch { /* as above */ }
  if (mine !== asked) return;
  answer.textContent = text;
  const most = Math.max(1, ...events.filter(isDecision).map(expectedMs));
  story.hidden = events.length === 0;
  fill(story, "", ...events.map((event) => (isDecision(event) ? decided(event, most) : ended(event))));
  if (events.length) story.focus({ preventScroll: true });
  if (events.length) story.scrollIntoView({ block: "nearest" });
}

const isDecision = (event) => event.event === "decision";

function summary(events) {
  const decisions = events.filter(isDecision).length;
  const ends = events.length - decisions;
  const open = decisions - events.filter((each) => each.event === "ended").length;
  const running = open > 0
    ? ` ${plural(open, "decision")} without an end: still running, or taken back before it was sent.` : "";
  return `${plural(decisions, "decision")}, ${plural(ends, "end")}.${running}`;
}

function step(kind, event, title, ...rest) {
  const at = new Date(event.at * 1000);
  const time = element("time", "quiet", at.toLocaleTimeString(undefined, TIME));
  time.dateTime = at.toISOString();
  return element("li", `step ${kind}`, time, element("div", "", element("b", "", title), ...rest));
}

const line = (text, className = "") => element("span", `line ${className}`, text);

function decided(d, most) {
  const [word, meaning] = why(d);
  const asked = d.asked && d.asked !== d.model ? `, asked as ${d.asked}` : "";
  const lines = [
    line(`${promptOf(d)}, length class ${d.bucket}; ${count(d.cached_tokens)} of them expected in its cache`),
    line(`${word}. ${meaning}`),
  ];
  if (d.attempted.length) lines.push(line(`already wrong: ${d.attempted.join(", ")}`));
  if (d.endpoints.length > 1) lines.push(line(`if it fails: ${d.endpoints.slice(1).join(", ")}`));
  if (d.migration) lines.push(line(`its session: ${d.migration}`));
  return step("more", d, `Sent to ${d.endpoints[0]} (${d.model}${asked})`, ...lines,
    ...candidates(d, Math.max(most, ...d.best.map((each) => expectedMs({ best: [each] })))), ...ways(d));
}

function ended(e) {
  if (e.event === "refused") {
    return step(e.code < 400 ? "" : "bad", e, `Fairlead answered ${e.code} itself, after ${milliseconds(e.total_ms)}`,
      line(e.message));
  }
  const gone = e.code === 499;
  const lines = [line(e.until_decision_ms === null ? ""
    : `${milliseconds(e.until_decision_ms)} until the decision, with reading its body and waiting for room`)];
  if (e.first_token_ms !== null) lines.push(line(`first token ${milliseconds(e.first_token_ms)} after the decision`));
  const tokens = [[e.prompt_tokens, "prompt token"], [e.cached_tokens, "cached token"], [e.completion_tokens, "answered token"]]
    .filter(([number]) => number !== null).map(([number, word]) => plural(number, word));
  lines.push(line(tokens.length ? `the engine counts ${tokens.join(", ")}` : "what the engine counts was not observed", "quiet"));
  return step(e.code >= 500 ? "bad" : "", e,
    `${gone ? "The client left, or no engine answered" : `${e.endpoint} answered ${e.code}`}, after ${milliseconds(e.total_ms)}`,
    ...lines);
}

function findLinked() {
  if (!location.hash.startsWith(PREFIX)) return;
  try {
    findRequest(decodeURIComponent(location.hash.slice(PREFIX.length)));
  } catch { /* a link that was cut in the middle of a character */ }
}

byId("request").addEventListener("submit", (event) => {
  event.preventDefault();
  findRequest(byId("request-id").value.trim());
});
document.addEventListener("story", (event) => findRequest(event.detail));
window.addEventListener("hashchange", findLinked);
findLinked();
