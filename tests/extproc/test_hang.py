"""What the endpoints hear of requests that their clients gave up."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fairlead.core.health import REQUEST_FAILURES_TO_EJECT, SILENCE_S
from fairlead.extproc.pick import Shared
from tests.extproc.world import Conversation, chat, make_shared, request_body, request_headers, response_headers

ONLY = "10.0.0.3:1"  # of the model that is asked for


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


def world() -> tuple[Shared, Clock]:
    clock = Clock()
    return replace(make_shared(), clock_s=clock), clock


def sent(shared: Shared) -> Conversation:
    talk = Conversation(shared)
    talk.say(request_headers(), request_body(chat("large")))
    return talk


def test_requests_given_up_after_long_silence_eject_the_engine() -> None:
    shared, clock = world()
    talks = [sent(shared) for _ in range(REQUEST_FAILURES_TO_EJECT)]
    clock.now_s = SILENCE_S
    for talk in talks:
        assert talk.endpoints[ONLY].healthy
        talk.stream.close()
    assert not shared.router.pool.by_address[ONLY].healthy


def test_clients_that_leave_early_say_nothing_of_the_engine() -> None:
    shared, clock = world()
    for _ in range(3 * REQUEST_FAILURES_TO_EJECT):
        talk = sent(shared)
        clock.now_s += SILENCE_S - 0.1
        talk.stream.close()
    assert shared.router.pool.by_address[ONLY].healthy


def test_an_engine_that_answered_somebody_in_the_meantime_does_not_hang() -> None:
    shared, clock = world()
    talks = [sent(shared) for _ in range(3 * REQUEST_FAILURES_TO_EJECT)]
    other = sent(shared)
    clock.now_s = SILENCE_S / 2
    other.say(response_headers(status=404))  # an answer, though no success
    clock.now_s = SILENCE_S
    for talk in talks:
        talk.stream.close()
    assert shared.router.pool.by_address[ONLY].healthy
