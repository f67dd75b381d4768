"""Who is at fault where a request was not served: an engine, one of two, the request itself, or nobody.

The gateway says who answered last, and how. Of an engine that it passed over before, no status is known: its report
tells whether it was full, which is no fault, or a stream that it refused meanwhile. A request that fails wherever it
goes takes no engine from the others. What a fault does to an engine is in `core.streak`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from fairlead.core.endpoint import Endpoint
from fairlead.core.facts import RequestFacts
from fairlead.core.load import Load
from fairlead.core.policy import Decision

# Who is at fault where a prompt was not computed, or came to nothing: the endpoint that was asked; it or the prompt; or
# nothing but how the two endpoints are connected, so that it may still answer well.
Blame = Literal["nobody", "engine", "either", "connection"]

CLIENT_ERROR: Final = 400
NOT_FOUND: Final = 404
SERVER_ERROR: Final = 500
TIMED_OUT: Final = 504
QUEUE_FULL: Final = (429, 503)
_JUST_NOW_S: Final = 1.0  # before its status came, a stream that the engine refused was seen to be refused


def blame_passed_over(tried: Sequence[Endpoint], sent_s: float, now_s: float, *, was_served: bool) -> list[Endpoint]:
    """Each of `tried` was asked first, and another engine answered: with a success where the request `was_served`.

    If not, those whose fault it may be are returned: `Failure.blame` judges them together with the one that answered.
    """
    failed: list[Endpoint] = []
    for endpoint in tried:
        if endpoint.request_passed_over(now_s):
            continue
        if endpoint.queues or endpoint.refused_s >= sent_s:
            endpoint.refused(now_s)
        elif was_served:
            endpoint.request_failed(now_s)
        else:
            failed.append(endpoint)
    return failed


class Failure(msgspec.Struct, frozen=True, gc=False):
    """A request that was answered with an error."""

    code: int
    cause: int | None  # stands for its prompt; None: that is not at fault
    sent_s: float
    now_s: float
    waited_in_vain: bool  # for the prefill of another endpoint, which has its blame already
    unanswered: bool  # the error is the gateway's own, as the connection to the engine failed or ended

    def is_of(self, endpoint: Endpoint) -> bool:
        """The engine failed at it, by whosever fault: it had room, and waited for no other."""
        return self.code >= SERVER_ERROR and not self.waited_in_vain and not self._is_of_full_queue(endpoint)

    def blame(self, tried: Sequence[Endpoint], prefiller: Endpoint | None) -> None:
        """The last of `tried` answered with the error, after the others had failed, in this order.

        They may have had to ask a `prefiller`, which is then what they have in common.
        """
        endpoint = tried[-1]
        is_full = self._is_of_full_queue(endpoint)
        if is_full and prefiller is not None:  # the queue of one of the two
            prefiller.hops.failed(self.now_s, self.cause)
        elif is_full:
            endpoint.refused(self.now_s)
        elif self.code == NOT_FOUND:
            endpoint.models_are_doubted = True
        if len(tried) > 1 or self.is_of(endpoint):
            self._blame_one_of(tried, prefiller)

    def blame_in_stream(self, endpoint: Endpoint) -> None:
        """Its answer began as a success and was an error: what the engine then says of its queue is believed."""
        if self.code in QUEUE_FULL:
            endpoint.refused(self.now_s)
        elif self.code >= SERVER_ERROR and not self.waited_in_vain:
            endpoint.request_failed(self.now_s, self.cause)

    def _is_of_full_queue(self, endpoint: Endpoint) -> bool:
        """The engine has no room, as it says or as a stream shows that it refused just now: that is no fault."""
        if self.unanswered:
            return False
        was_full = self.code in QUEUE_FULL and endpoint.refused_s >= max(self.sent_s, self.now_s - _JUST_NOW_S)
        return was_full or endpoint.refuses(self.code, self.now_s)

    def _blame_one_of(self, tried: Sequence[Endpoint], prefiller: Endpoint | None) -> None:
        """None of them has served it: they are at fault, or it is.

        So it counts once, against the first of them, and against nobody where one of them serves others.
        """
        first, cause, now_s = tried[0], self.cause, self.now_s
        if prefiller is not None:
            prefiller.hops.failed(now_s, cause)
            if len(tried) > 1 or first.health.requests.failures <= prefiller.hops.failures:
                first.health.suspected(now_s, cause)
                return
        if len(tried) == 1 or not any(each.serves(now_s) for each in tried):
            first.request_failed(now_s, cause)


def blame_prefiller(prefiller: Endpoint, blames: Blame, cause: int | None, now_s: float) -> None:
    """It did not compute a prompt for another endpoint. `cause` stands for the prompt, where that may be at fault."""
    if blames == "nobody":
        return
    if blames == "engine":
        cause = None
    prefiller.hops.failed(now_s, cause)
    if blames != "connection":
        prefiller.request_failed(now_s, cause)


def blame_abandoned(endpoint: Endpoint, request: RequestFacts, decision: Decision, sent_s: float, now_s: float) -> None:
    """The client left before any answer: the engine may hang, unless so long a wait was to be expected."""
    speed = endpoint.speed
    if decision.prefill is not None and decision.prefill.is_split:
        hops = decision.prefill.split
        expected_ms = hops.wait_ms + hops.prefill_ms + hops.transfer_ms
    else:
        waits = Load(
            pending_prefill_tokens=decision.queued_tokens, pending_attended_tokens=decision.queued_attended_tokens
        )
        expected_ms = speed.pending_ms(waits) + speed.prefill_ms(request.tokens, decision.cached_tokens)
    endpoint.request_abandoned(sent_s, expected_ms / 1e3, now_s)
