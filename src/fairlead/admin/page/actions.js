// What changes something: each action is sent with the token that the operator has typed, and nothing else keeps it.

import { byId, plural } from "./dom.js";

const WITHIN_MS = 4000;

// The answer's document, or null after a sentence in `output`.
async function send(path, body, output) {
  const token = byId("token").value.trim();
  if (!token) {
    output.textContent = "Type the token first, under Actions.";
    byId("token").focus();
    return null;
  }
  try {
    const response = await fetch(path, {
      method: "POST", body: JSON.stringify(body), signal: AbortSignal.timeout(WITHIN_MS), cache: "no-store",
      headers: { "content-type": "application/json", authorization: `Bearer ${token}` },
    });
    if (response.ok) return await response.json();
    output.textContent = response.status === 401 ? "The sidecar does not know this token." : (await response.text()).trim();
    if (response.status === 401) byId("token").focus();
  } catch {
    output.textContent = "The sidecar does not answer.";
  }
  return null;
}

export async function drain(endpoint, output) {
  const planned = await send("migrate/drain", { endpoint, dry_run: true }, output);
  if (!planned) return;
  const question = `Drain ${endpoint}? It gets no new session. ${plural(planned.sessions, "session")} move at their next request, `
    + `${plural(planned.inflight_requests, "running request")} end there. Others of its model: ${planned.targets.join(", ")}.`;
  if (!confirm(question)) return;
  if (await send("migrate/drain", { endpoint }, output)) output.textContent = "It drains.";
}

export async function undrain(endpoint, output) {
  if (await send("migrate/undrain", { endpoint }, output)) output.textContent = "It takes sessions again.";
}

export async function move(session, tenant, to, output) {
  const planned = await send("migrate/move", { session, tenant, to }, output);
  if (planned) output.textContent = `From ${planned.from} to ${to} at its next request: ${planned.way}.`;
}

async function changeTuner() {
  const output = byId("tuner-answer");
  const changed = await send("debug/tuner", { state: byId("tuner-state").dataset.wanted }, output);
  if (changed) output.textContent = `The tuner is ${changed.state}.`;
}

byId("tuner-state").addEventListener("click", changeTuner);
byId("actions").addEventListener("submit", (event) => event.preventDefault());
