"""The order of Envoy's messages: which kinds are lawful in which phase, and the phases that each may lead to.

An engine may answer before it has the whole request, so each half of the exchange has a phase of its own.

    request   start -> collecting -> [reading] -> settled -> over      each may lead to `refused`
                 \\____-> passing ______________________-> over
    response  start -> passing ________-> over
                 \\____-> held -> judged -> over

A kind that its half's phase does not list is out of order: what is in flight is withdrawn, both halves are `broken`,
and every later message gets a reply that changes nothing. Response headers end a request half that is not
settled, as the answer is then Envoy's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

RequestPhase = Literal[
    "start",
    "collecting",  # the body comes in; in full duplex nothing has been answered yet
    "reading",  # the body is whole and read elsewhere, or waits for an engine; its pending replies settle or refuse it
    "settled",  # answered in full, with an endpoint; only trailers may come
    "passing",  # unread, the body goes on as it comes
    "refused",  # Fairlead answered it; parts may still be on their way
    "over",
    "broken",
]
ResponsePhase = Literal[
    "start",
    "passing",  # the body goes on as it comes; maybe it is observed
    "held",  # the body is for a judge
    "judged",  # its replies are pending or made
    "over",
    "broken",
]

REQUEST: Final[Mapping[str, Mapping[RequestPhase, frozenset[RequestPhase]]]] = {
    "request_headers": {"start": frozenset({"collecting", "passing", "over", "refused"})},
    "request_body": {
        "collecting": frozenset({"collecting", "reading", "settled", "refused"}),
        "passing": frozenset({"passing", "over"}),
        "refused": frozenset({"refused"}),
    },
    "request_trailers": {
        "collecting": frozenset({"reading", "over", "refused"}),
        "settled": frozenset({"over"}),
        "passing": frozenset({"over"}),
        "refused": frozenset({"refused"}),
    },
}
RESPONSE: Final[Mapping[str, Mapping[ResponsePhase, frozenset[ResponsePhase]]]] = {
    "response_headers": {"start": frozenset({"passing", "held", "over"})},
    "response_body": {"passing": frozenset({"passing", "over"}), "held": frozenset({"judged"})},
    "response_trailers": {
        "passing": frozenset({"over"}),
        "held": frozenset({"over"}),
        "judged": frozenset({"over"}),
    },
}
UNSETTLED: Final[frozenset[RequestPhase]] = frozenset({"start", "collecting", "reading"})
