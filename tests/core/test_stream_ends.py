"""An engine that dies over a stream: the answer had begun, and its end looks like any other."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.api.usage import Usage
from fairlead.core.endpoint import Endpoint
from fairlead.core.facts import RequestFacts
from fairlead.core.in_flight import InFlight
from fairlead.core.policy import Refusal
from fairlead.core.stream_ends import MOST
from tests.core.test_suspects import DEADLY, OTHER, Engines

TO_EJECT = 3


class Streams(Engines):
    def stream(self, key: int, at: int) -> InFlight:
        """One that an engine has opened."""
        in_flight = self.sent(key, only=f"e{at}:1")
        assert isinstance(in_flight, InFlight)
        self.now_s += 0.001
        in_flight.served(in_flight.address, 200, self.now_s, in_one_piece=False)
        return in_flight

    def ends(self, *streams: InFlight) -> None:
        self.now_s += 0.001
        for each in streams:
            each.ended(self.now_s)

    def probed(self, at: int, *, answers: bool = False, says_so: bool = True) -> None:
        """It answers, or is seen to be gone."""
        endpoint = self._endpoint(at)
        for _ in range(1 if answers else TO_EJECT):
            self.now_s += 0.25
            endpoint.probed(answers, self.now_s, TO_EJECT, says_so=says_so)

    def kills(self, key: int, at: int) -> None:
        self.ends(self.stream(key, at))
        self.probed(at)

    def fallbacks(self, key: int) -> int | None:
        """Of its next request; None: it is refused."""
        asked = self.sent(key)
        if isinstance(asked, Refusal):
            assert asked == Refusal("kills_engines")
            return None
        asked.withdraw(self.now_s)
        return len(asked.decision.addresses) - 1

    def _endpoint(self, at: int) -> Endpoint:
        return self.router.pool.by_address[f"e{at}:1"]


@pytest.fixture
def engines() -> Streams:
    made = Streams()
    for number in range(8):
        made.probed(number, answers=True)
    return made


def test_a_prompt_over_whose_stream_two_engines_died_gets_one_more_and_then_none(engines: Streams) -> None:
    found = [engines.fallbacks(DEADLY)]
    for number in range(3):
        engines.kills(DEADLY, at=number)
        found.append(engines.fallbacks(DEADLY))
    assert found == [2, 2, 0, None]
    assert engines.fallbacks(OTHER) == 2


def test_streams_that_ended_before_the_engine_was_seen_well_say_nothing(engines: Streams) -> None:
    for number in range(3):
        engines.ends(engines.stream(DEADLY, number))
        engines.probed(number, answers=True)
        engines.probed(number)
    assert not engines.router.suspects.are_any
    assert engines.fallbacks(DEADLY) == 2


def test_a_probe_that_was_sent_before_a_stream_ended_says_nothing_of_it(engines: Streams) -> None:
    for number in range(2):
        asked_s = engines.now_s
        engines.ends(engines.stream(DEADLY, number))
        engines._endpoint(number).probed(True, engines.now_s, TO_EJECT, asked_s=asked_s)
        engines.probed(number)
    assert engines.fallbacks(DEADLY) == 0


def test_an_engine_that_only_is_silent_is_busy_or_cut_off_and_no_sign(engines: Streams) -> None:
    for number in range(3):
        engines.ends(engines.stream(DEADLY, number))
        engines.probed(number, says_so=False)
    assert not engines.router.suspects.are_any


def test_of_those_that_were_there_too_one_that_another_engine_answers_is_cleared(engines: Streams) -> None:
    for number in range(2):
        engines.ends(*[engines.stream(key, number) for key in (DEADLY, OTHER)])
        engines.probed(number)
    assert engines.fallbacks(OTHER) == 0
    engines.ends(engines.stream(OTHER, 2))
    assert engines.fallbacks(OTHER) == 2
    engines.probed(2, answers=True)
    assert engines.fallbacks(OTHER) == 2
    assert engines.fallbacks(DEADLY) == 0


def test_its_stream_that_seems_to_have_ended_well_clears_it_only_until_the_engine_is_gone(engines: Streams) -> None:
    for number in range(2):
        engines.kills(DEADLY, at=number)
    asked = engines.stream(DEADLY, 2)
    engines.ends(asked)
    assert engines.fallbacks(DEADLY) == 2
    engines.probed(2)
    assert engines.fallbacks(DEADLY) is None


def test_an_answer_that_was_seen_to_its_end_is_one_whatever_becomes_of_the_engine(engines: Streams) -> None:
    for number in range(4):
        in_flight = engines.stream(DEADLY, number)
        engines.now_s += 0.001
        in_flight.ended(engines.now_s, in_flight.observation(Usage(10, 0, 3), engines.now_s, streamed=True))
        engines.probed(number)
    assert not engines.router.suspects.are_any


def test_a_stream_that_stays_open_over_the_death_counts_as_it_ends(engines: Streams) -> None:
    for number in range(2):
        open_still = engines.stream(DEADLY, number)
        engines.probed(number)
        engines.now_s += 60.0
        engines.ends(open_still)
    assert engines.fallbacks(DEADLY) == 0


def test_an_engine_that_returns_starts_anew(engines: Streams) -> None:
    engines.kills(DEADLY, at=0)
    engines.probed(0, answers=True)
    for _ in range(5):
        engines.ends(engines.stream(OTHER, 0))
    engines.probed(0, answers=True)
    engines.probed(0)
    assert engines.fallbacks(OTHER) == 2


def test_a_prompt_that_was_not_read_leaves_nothing(engines: Streams) -> None:
    facts = msgspec.structs.replace(_facts(), turn=None)
    asked = engines.router.admit(facts, now_s=engines.now_s)
    assert isinstance(asked, InFlight)
    asked.sent(facts, engines.now_s)
    asked.served(asked.address, 200, engines.now_s, in_one_piece=False)
    engines.ends(asked)
    endpoint = engines.router.pool.by_address[asked.address]
    assert not endpoint.stream_ends._ends


def test_what_is_kept_of_an_engine_that_is_never_probed_is_bounded(engines: Streams) -> None:
    for key in range(2 * MOST):
        engines.ends(engines.stream(1000 + key, 0))
    assert len(engines._endpoint(0).stream_ends._ends) == MOST


def _facts() -> RequestFacts:
    return RequestFacts("m", 10, None, "en", 0)
