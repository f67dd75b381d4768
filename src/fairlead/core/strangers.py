"""What an engine has to do for requests that no sidecar we know of sent, by its own report.

Other routers' requests, and those of clients that go round the gateway, delay ours as much as our own do, and our
counts do not have them. An engine says how many requests wait, not how long they are: each is taken as long as ours
usually are there. Of reports that are rare nothing is believed, else everybody goes where the queue once was short.
"""

from __future__ import annotations

from typing import Final

from fairlead.core.load import Load
from fairlead.core.prefills import TRUST_S
from fairlead.core.reported import EngineReport

NOBODY: Final = Load()


def strangers(
    before: EngineReport, report: EngineReport, known_requests: int, usual_tokens: float, usual_attended: float = 0.0
) -> Load:
    """Requests, and tokens that wait for prefill; `known_requests` are in flight for all sidecars that we know of."""
    if report.stale or before.read_s is None or report.read_s is None or report.read_s - before.read_s > TRUST_S:
        return NOBODY
    waiting = report.waiting_requests or 0
    everyones = (report.running_requests or 0) + waiting
    requests = everyones - known_requests
    if requests <= 0:
        return NOBODY
    theirs = waiting * requests / everyones
    tokens, attended = round(theirs * usual_tokens), round(theirs * usual_attended)
    return Load(requests, pending_prefill_tokens=tokens, pending_attended_tokens=attended)
