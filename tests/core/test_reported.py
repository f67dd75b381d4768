"""What an engine reports, from one page to the next."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.core.endpoint import EndpointSpec
from fairlead.core.reported import UNKNOWN, EngineIdentity, EngineReport, aged, following, restarted
from tests.core.world import make_endpoint

STALE_S = 3.0


def report(read_s: float, **numbers: float) -> EngineReport:
    return msgspec.convert({"read_s": read_s, "changed_s": read_s, "stale": False, **numbers}, EngineReport)


def test_what_was_never_read_is_unknown_and_stale() -> None:
    assert UNKNOWN.stale
    assert UNKNOWN.running_requests is None
    assert not UNKNOWN.works


def test_an_engine_that_works_and_moves_is_fresh() -> None:
    seen = report(0, running_requests=2, generated_tokens=0)
    for second in range(1, 10):
        seen = following(seen, report(second, running_requests=2, generated_tokens=second), STALE_S)
        assert not seen.stale
        assert seen.changed_s == second


def test_an_engine_that_says_it_works_and_does_not_move_is_stale() -> None:
    seen = report(0, running_requests=2, generated_tokens=7)
    stale = []
    for second in range(1, 6):
        seen = following(seen, report(second, running_requests=2, generated_tokens=7), STALE_S)
        stale.append(seen.stale)
    assert stale == [False, False, False, True, True]
    assert not following(seen, report(6, running_requests=2, generated_tokens=8), STALE_S).stale


def test_an_engine_without_requests_need_not_move() -> None:
    seen = report(0, running_requests=0, waiting_requests=0)
    for second in range(1, 10):
        seen = following(seen, report(second, running_requests=0, waiting_requests=0), STALE_S)
    assert not seen.stale


def test_a_report_that_no_newer_one_follows_becomes_stale() -> None:
    seen = report(10, running_requests=0)
    assert not aged(seen, 12, STALE_S).stale
    assert aged(seen, 13.5, STALE_S).stale
    assert aged(UNKNOWN, 1, STALE_S) is UNKNOWN


@pytest.mark.parametrize(
    ("before", "after", "is_another"),
    [
        ({}, {}, False),
        ({"prompt_tokens": 10}, {"prompt_tokens": 10}, False),
        ({"prompt_tokens": 10}, {"prompt_tokens": 9}, True),
        ({"generated_tokens": 10}, {"generated_tokens": 0}, True),
        ({"prompt_tokens": 10}, {}, False),
        ({}, {"prompt_tokens": 0}, False),
        ({"process_start_s": 5}, {"process_start_s": 5}, False),
        ({"process_start_s": 5}, {"process_start_s": 6}, True),
        ({"process_start_s": 6}, {"process_start_s": 5}, True),  # the engine's clock was set back
        ({"process_start_s": 5, "prompt_tokens": 10}, {"process_start_s": 5, "prompt_tokens": 0}, False),
        ({"running_requests": 5}, {"running_requests": 0}, False),
    ],
)
def test_a_restart_shows_in_the_start_time_or_in_a_counter_that_fell(
    before: dict[str, float], after: dict[str, float], is_another: bool
) -> None:
    assert restarted(report(0, **before), report(1, **after)) is is_another


@pytest.mark.parametrize(
    ("before", "after", "is_another"),
    [
        ({}, {}, True),
        ({"running_requests": 5}, {"running_requests": 0}, True),
        ({"prompt_tokens": 10}, {"prompt_tokens": 10}, False),
        ({"prompt_tokens": 10, "generated_tokens": 1}, {"prompt_tokens": 12, "generated_tokens": 1}, False),
        ({"prompt_tokens": 10, "generated_tokens": 1}, {"prompt_tokens": 12, "generated_tokens": 0}, True),
        ({"prompt_tokens": 10}, {}, True),
        ({}, {"prompt_tokens": 10}, True),
        ({"process_start_s": 5, "prompt_tokens": 10}, {"process_start_s": 5}, False),
        ({"process_start_s": 5, "prompt_tokens": 10}, {"prompt_tokens": 11}, False),
        ({"process_start_s": 5}, {"process_start_s": 6}, True),
    ],
)
def test_an_engine_that_was_gone_restarted_unless_its_page_shows_that_it_went_on(
    before: dict[str, float], after: dict[str, float], is_another: bool
) -> None:
    assert restarted(report(0, **before), report(1, **after), was_gone=True) is is_another


@pytest.mark.parametrize(
    ("configured", "said", "counts"),
    [(None, None, None), (100, None, 100), (None, 50, 50), (100, 50, 50), (30, 50, 30)],
)
def test_the_shorter_of_the_configured_and_the_engines_own_context_counts(
    configured: int | None, said: int | None, counts: int | None
) -> None:
    endpoint = make_endpoint("10.0.0.1:1", "m", max_model_len=configured)
    endpoint.identified(EngineIdentity(max_model_len=said))
    assert endpoint.max_model_len == counts
    endpoint.respecify(EndpointSpec("10.0.0.1:1", "m", max_model_len=configured))
    assert endpoint.max_model_len == counts


def test_an_engine_that_restarts_with_a_longer_context_gets_longer_prompts() -> None:
    endpoint = make_endpoint("10.0.0.1:1", "m", max_model_len=100)
    endpoint.identified(EngineIdentity(max_model_len=10))
    endpoint.identified(EngineIdentity(max_model_len=90))
    assert endpoint.max_model_len == 90
