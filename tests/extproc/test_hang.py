"""What the endpoints hear of requests that their clients gave up."""

from __future__ import annotations

from dataclasses import replace

from fairlead.core.health import SILENCE_S
from fairlead.core.streak import REQUEST_FAILURES_TO_EJECT
from fairlead.extproc.services import Services
from tests.extproc.world import (
    Clock,
    Conversation,
    chat,
    make_services,
    request_body,
    request_headers,
    response_headers,
)

ONLY = "10.0.0.3:1"  # of the model that is asked for


def world() -> tuple[Services, Clock]:
    clock = Clock()
    return replace(make_services(), clock_s=clock), clock


def sent(services: Services) -> Conversation:
    talk = Conversation(services)
    talk.say(request_headers(), request_body(chat("large")))
    return talk


def test_requests_given_up_after_long_silence_eject_the_engine() -> None:
    services, clock = world()
    talks = [sent(services) for _ in range(REQUEST_FAILURES_TO_EJECT)]
    clock.now_s = SILENCE_S
    for talk in talks:
        assert talk.endpoints[ONLY].health.healthy
        talk.stream.close()
    assert not services.router.pool.by_address[ONLY].health.healthy


def test_clients_that_leave_early_say_nothing_of_the_engine() -> None:
    services, clock = world()
    for _ in range(3 * REQUEST_FAILURES_TO_EJECT):
        talk = sent(services)
        clock.now_s += SILENCE_S - 0.1
        talk.stream.close()
    assert services.router.pool.by_address[ONLY].health.healthy


def test_an_engine_that_answered_somebody_in_the_meantime_does_not_hang() -> None:
    services, clock = world()
    talks = [sent(services) for _ in range(3 * REQUEST_FAILURES_TO_EJECT)]
    other = sent(services)
    clock.now_s = SILENCE_S / 2
    other.say(response_headers(status=404))  # an answer, though no success
    clock.now_s = SILENCE_S
    for talk in talks:
        talk.stream.close()
    assert services.router.pool.by_address[ONLY].health.healthy
