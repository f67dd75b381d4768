"""A prompt that kills engines: it goes to no more than a few, and no other prompt is taken for one."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.core.facts import Turn
from fairlead.core.in_flight import InFlight
from fairlead.core.policy import Refusal
from fairlead.core.suspects import FIRST_REFUSED_S, KEPT_S, MOST_PROMPTS, TRIAL_S, Suspects
from tests.core.world import World, make_endpoint, request

DEADLY, OTHER = 7, 8


class Engines:
    """Eight engines of one model behind a gateway with two fallbacks, that have all served somebody."""

    def __init__(self, *, fallbacks: int = 2) -> None:
        self.world = World("round_robin")
        for number in range(8):
            self.world.endpoint(f"e{number}:1")
        self.router = self.world.router
        self.router.fallbacks = fallbacks
        self.number = 1000
        self.now_s = 0.0
        self.all_work()

    def sent(self, key: int, model: str = "m", only: str = "", *, text: int | None = None) -> InFlight | Refusal:
        """`key` stands for all that is sent, `text` for the prompt in it."""
        turn = Turn(key if text is None else text, 0, 0, 0)
        facts = msgspec.structs.replace(request(model), turn=turn, cause=key)
        self.now_s += 0.01
        in_flight = self.router.admit(facts, {only} if only else None, now_s=self.now_s)
        if isinstance(in_flight, InFlight):
            in_flight.sent(facts, self.now_s)
        return in_flight

    def fails(self, key: int, code: int = 503, model: str = "m", only: str = "") -> int:
        """A request with this prompt fails wherever it goes; at how many engines. 0: it was refused."""
        in_flight = self.sent(key, model, only)
        return 0 if isinstance(in_flight, Refusal) else self.failed(in_flight, code)

    def failed(self, in_flight: InFlight | Refusal, code: int = 503, *, unanswered: bool = False) -> int:
        assert isinstance(in_flight, InFlight)
        self.now_s += 0.001
        addresses = in_flight.decision.addresses
        in_flight.served(addresses[-1], code, self.now_s, in_one_piece=True, unanswered=unanswered)
        in_flight.ended(self.now_s)
        return len(addresses)

    def answered(self, in_flight: InFlight | Refusal, at: int = 0) -> None:
        assert isinstance(in_flight, InFlight)
        self.now_s += 0.001
        in_flight.served(in_flight.decision.addresses[at], 200, self.now_s, in_one_piece=True)
        in_flight.ended(self.now_s)

    def all_work(self) -> None:
        """Each engine serves another prompt."""
        for number in range(8):
            self.number += 1
            self.answered(self.sent(self.number, only=f"e{number}:1"))

    def refuses(self, key: int, model: str = "m") -> bool:
        asked = self.sent(key, model)
        if isinstance(asked, InFlight):
            asked.withdraw(self.now_s)
            return False
        return asked == Refusal("kills_engines")


@pytest.fixture
def engines() -> Engines:
    return Engines()


def test_a_prompt_that_fails_everywhere_gets_one_engine_the_second_time_and_none_after_that(engines: Engines) -> None:
    failures = []
    for _ in range(20):
        failures.append(engines.fails(DEADLY))
        engines.all_work()
    assert failures == [3, 1] + [0] * 18
    assert (engines.router.suspects.alone, engines.router.suspects.refused) == (1, 18)


def test_where_the_gateway_tries_one_engine_only_it_fails_at_three() -> None:
    engines = Engines(fallbacks=0)
    failures = []
    for number in range(5):
        failures.append(engines.fails(DEADLY, only=f"e{number}:1"))
        engines.all_work()
    assert failures == [1, 1, 1, 0, 0]


def test_after_a_while_it_is_tried_at_one_engine_and_refused_for_twice_as_long(engines: Engines) -> None:
    engines.fails(DEADLY)
    engines.all_work()
    engines.fails(DEADLY)
    engines.now_s += FIRST_REFUSED_S
    engines.all_work()
    assert engines.fails(DEADLY) == 1
    engines.now_s += FIRST_REFUSED_S
    assert engines.refuses(DEADLY)
    engines.now_s += FIRST_REFUSED_S
    assert not engines.refuses(DEADLY)


def test_an_engine_that_answers_it_clears_it(engines: Engines) -> None:
    engines.fails(DEADLY)
    engines.all_work()
    engines.answered(engines.sent(DEADLY))
    for _ in range(5):  # and it is never suspect again, as it is not why they fail
        engines.all_work()
        assert engines.fails(DEADLY) == 3


def test_other_prompts_and_other_models_are_not_concerned(engines: Engines) -> None:
    for _ in range(2):
        engines.fails(DEADLY)
        engines.all_work()
    assert engines.refuses(DEADLY)
    assert not engines.refuses(OTHER)
    assert not engines.refuses(DEADLY, model="any")


def test_a_parameter_that_engines_fail_at_is_no_sign_against_the_same_prompt_without_it(engines: Engines) -> None:
    """A client had others' prompts refused, by sending their text with what an engine answers 500 to."""
    text = 99
    for _ in range(2):
        engines.failed(engines.sent(DEADLY, text=text))
        engines.all_work()
    assert engines.sent(DEADLY, text=text) == Refusal("kills_engines")
    assert isinstance(engines.sent(OTHER, text=text), InFlight)


def test_an_answer_to_a_prompt_clears_no_parameter_that_engines_fail_at(engines: Engines) -> None:
    text = 99
    engines.answered(engines.sent(OTHER, text=text))
    failures = []
    for _ in range(5):
        asked = engines.sent(DEADLY, text=text)
        failures.append(0 if isinstance(asked, Refusal) else engines.failed(asked))
        engines.all_work()
    assert failures == [3, 1, 0, 0, 0]


def test_requests_of_one_prompt_that_were_each_answered_are_no_sign_however_they_take_turns(engines: Engines) -> None:
    text, keys = 99, (DEADLY, OTHER)
    for key in keys:
        engines.answered(engines.sent(key, text=text))
    for _ in range(5):
        for key in keys:
            engines.all_work()
            assert engines.failed(engines.sent(key, text=text)) == 3


def test_an_outage_of_all_engines_makes_no_prompt_refused_however_often_it_is_repeated(engines: Engines) -> None:
    under_way = [engines.sent(key) for key in range(10)]
    for in_flight in under_way:
        engines.failed(in_flight)
    for _ in range(20):
        for key in range(20):
            assert engines.fails(key), "it was refused"
    engines.all_work()
    assert not any(engines.refuses(key) for key in range(20))


def test_an_engine_that_always_fails_is_no_sign_against_prompts(engines: Engines) -> None:
    engines.router.fallbacks = 0
    for _ in range(10):
        for key in range(5):
            engines.fails(key, only="e0:1")
        for number in range(1, 8):
            engines.answered(engines.sent(1000 + number, only=f"e{number}:1"))
    assert not engines.router.suspects.are_any or not any(engines.refuses(key) for key in range(5))
    assert engines.router.suspects.alone == 0


def test_engines_that_restart_one_after_the_other_while_a_prompt_is_there_make_it_suspect_and_not_refused() -> None:
    engines = Engines(fallbacks=0)
    for number in range(2):
        engines.fails(OTHER, only=f"e{number}:1")
    for _ in range(3):  # sent to an engine that is away, and so has failed others before
        engines.fails(DEADLY, only="e2:1")
        engines.fails(OTHER, only="e2:1")
    assert not engines.refuses(OTHER)


@pytest.mark.parametrize("code", [400, 413, 422, 429, 504])
def test_a_full_queue_a_wrong_request_and_a_time_out_are_no_sign_against_it(engines: Engines, code: int) -> None:
    for _ in range(20):
        assert engines.fails(DEADLY, code)
        engines.all_work()
    assert not engines.router.suspects.are_any


@pytest.mark.parametrize("unanswered", [False, True])
def test_a_503_of_an_engine_that_serves_others_is_a_full_queue_unless_its_connection_failed(
    engines: Engines, *, unanswered: bool
) -> None:
    for number in range(8):
        engines.sent(number, only=f"e{number}:1")
    for _ in range(4):
        asked = engines.sent(DEADLY + 100)
        if isinstance(asked, Refusal):
            break
        engines.failed(asked, unanswered=unanswered)
        engines.all_work()
    assert engines.refuses(DEADLY + 100) is unanswered


def test_a_client_that_leaves_is_no_sign_against_its_prompt(engines: Engines) -> None:
    for _ in range(20):
        in_flight = engines.sent(DEADLY)
        assert isinstance(in_flight, InFlight)
        in_flight.ended(engines.now_s + 100.0)
    assert not engines.router.suspects.are_any


def test_of_prompts_that_were_at_dying_engines_together_only_the_one_that_killed_them_is_refused(
    engines: Engines,
) -> None:
    together = [engines.sent(key) for key in (DEADLY, OTHER)]
    for in_flight in together:  # each at three engines that had failed nobody
        engines.failed(in_flight)
    engines.all_work()
    together = [engines.sent(key, only="e0:1") for key in (DEADLY, OTHER)]
    for in_flight in together:
        engines.failed(in_flight)
    assert not engines.refuses(DEADLY)
    assert not engines.refuses(OTHER)
    engines.now_s += TRIAL_S + 1.0
    engines.all_work()
    engines.fails(DEADLY, only="e1:1")
    engines.all_work()
    engines.answered(engines.sent(OTHER, only="e1:1"))
    assert engines.refuses(DEADLY)
    assert not engines.refuses(OTHER)


def test_copies_that_were_sent_together_are_one_sign_and_no_trial(engines: Engines) -> None:
    copies = [engines.sent(DEADLY) for _ in range(20)]
    for copy in copies:
        engines.failed(copy)
    assert not engines.refuses(DEADLY)


def test_prompts_that_were_not_read_are_never_suspect(engines: Engines) -> None:
    facts = request("m")
    for _ in range(5):
        engines.now_s += 1.0
        in_flight = engines.router.admit(facts, now_s=engines.now_s)
        assert isinstance(in_flight, InFlight)
        in_flight.sent(facts, engines.now_s)
        assert engines.failed(in_flight) == 3
        engines.all_work()


def test_what_is_kept_is_bounded_and_goes_after_a_while() -> None:
    suspects, pair = Suspects(), [make_endpoint("a:1"), make_endpoint("b:1")]
    for engine in pair:
        engine.served_s = engine.failing_s = 1.0
    for key in range(3 * MOST_PROMPTS):
        suspects.failed(("m", key), pair, 1.0, 2.0)
    assert len(suspects._prompts) <= MOST_PROMPTS
    assert suspects.treatment(("m", 3 * MOST_PROMPTS - 1), 3.0) == "alone"
    assert suspects.treatment(("m", 3 * MOST_PROMPTS - 1), 3.0 + KEPT_S) is None
    for number in range(MOST_PROMPTS):
        suspects.failed(("m", number), pair, 1.0, 4.0 + KEPT_S)
    suspects.tried(("m", 1), "a:1", 5.0)
    suspects.forget_all_but({"b:1"})
    assert not suspects._trials
