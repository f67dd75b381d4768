"""An endpoint that Envoy does not serve: it is withheld nearly always, and tried again ever more rarely."""

from __future__ import annotations

from itertools import pairwise

import pytest

from fairlead.core.endpoint import Endpoint
from fairlead.core.health import UNKNOWN_TO_ENVOY
from fairlead.extproc.services import Services
from fairlead.serving.confirmed import Unserved
from tests.serving.test_tend import made_of


class Minutes:
    """Requests come all the time, and each that chooses the endpoint is answered elsewhere."""

    def __init__(self, services: Services) -> None:
        self.now_s = 0.0
        services.clock_s = lambda: self.now_s
        self.endpoint: Endpoint = services.router.pool.endpoints[0]
        self._unserved = Unserved(services)

    def second(self) -> bool:
        """Let one pass; whether it was chosen."""
        self.now_s += 1.0
        chosen = self.endpoint.health.healthy
        if chosen:
            self.endpoint.request_passed_over(self.now_s)
        self._unserved.look()
        return chosen


@pytest.fixture
async def minutes() -> Minutes:
    return Minutes(await made_of("pool: {endpoints: [{address: '127.0.0.1:1', model: m}]}"))


async def test_it_gets_one_request_a_minute_in_the_end(minutes: Minutes) -> None:
    chosen_s = [minutes.now_s for _ in range(1200) if minutes.second()]
    pauses_s = [later - earlier for earlier, later in pairwise(chosen_s)]
    assert pauses_s == sorted(pauses_s)
    assert 60 <= pauses_s[-1] <= 63
    assert pauses_s[-2:] == [pauses_s[-1]] * 2


async def test_it_is_reported_in_nearly_every_second(minutes: Minutes) -> None:
    """The alert looks at five minutes, which always have such a second."""
    seconds = []
    for _ in range(1200):
        minutes.second()
        seconds.append(UNKNOWN_TO_ENVOY in minutes.endpoint.health.withheld)
    assert sum(seconds[10:]) > 0.97 * len(seconds[10:])
    assert all(any(seconds[at : at + 5]) for at in range(10, 1190))


async def test_it_is_back_once_it_serves(minutes: Minutes) -> None:
    while UNKNOWN_TO_ENVOY not in minutes.endpoint.health.withheld:
        minutes.second()
    minutes.endpoint.request_answered(minutes.now_s)
    minutes.second()
    assert minutes.endpoint.health.healthy
    assert not minutes.endpoint.health.doubtful
