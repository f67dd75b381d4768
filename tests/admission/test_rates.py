"""What a tenant may take in a minute, and what memory of it costs."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.admission.rates import Charge, Denied, Rate, RateLimits, RateRules

A_THOUSAND = RateRules(others=Rate(tokens=1000))


def limits(rules: RateRules = A_THOUSAND) -> RateLimits:
    rates = RateLimits()
    rates.use(rules, 0.0)
    return rates


def granted(rates: RateLimits, tenant: bytes, tokens: float, now_s: float = 0.0) -> bool:
    return isinstance(rates.take(tenant, tokens, 0.0, now_s), Charge)


def left(rates: RateLimits, tenant: bytes, now_s: float = 0.0) -> float:
    return dict(rates.all_levels(now_s))[tenant][0].left


def test_a_minute_of_tokens_may_be_taken_at_once_and_then_as_they_come_in() -> None:
    rates = limits()
    assert [granted(rates, b"a", 400) for _ in range(3)] == [True, True, False]
    assert not granted(rates, b"a", 400, now_s=11.9)
    assert granted(rates, b"a", 400, now_s=12.1)


def test_one_tenants_limit_is_not_anothers() -> None:
    rates = limits()
    assert granted(rates, b"a", 1000)
    assert granted(rates, b"b", 1000)


def test_who_is_denied_learns_when_there_will_be_enough() -> None:
    rates = limits()
    rates.take(b"a", 1000, 0.0, 0.0)
    denied = rates.take(b"a", 250, 0.0, 0.0)
    assert isinstance(denied, Denied)
    assert denied.retry_in_s == pytest.approx(15)
    assert granted(rates, b"a", 250, now_s=15.0)


def test_a_request_above_the_limit_needs_a_full_bucket_and_leaves_a_debt() -> None:
    rates = limits()
    assert granted(rates, b"a", 3000)
    assert not granted(rates, b"a", 1, now_s=119.9)
    assert granted(rates, b"a", 1, now_s=120.1)


def test_of_two_limits_the_one_that_takes_longer_is_named() -> None:
    rates = limits(RateRules(others=Rate(tokens=1000, engine_ms=60_000)))
    rates.take(b"a", 600, 50_000, 0.0)
    denied = rates.take(b"a", 600, 50_000, 0.0)
    assert isinstance(denied, Denied)
    assert denied.unit == "engine_ms"
    assert denied.retry_in_s == pytest.approx(40)
    assert rates.denied == {"tokens": 0, "engine_ms": 1}


def test_what_it_took_in_the_end_counts() -> None:
    rates = limits()
    charge = rates.take(b"a", 900, 0.0, 0.0)
    assert isinstance(charge, Charge)
    charge = rates.settle(charge, 300, 0.0, 0.0)
    assert left(rates, b"a") == 700
    rates.settle(charge, 0, 0, 0.0)
    assert left(rates, b"a") == 1000


def test_tenants_without_a_limit_are_not_remembered() -> None:
    rates = limits(RateRules(of_tenants={b"a": Rate(tokens=10)}))
    assert rates.take(b"b", 1e9, 1e9, 0.0) is None
    assert rates.tenants == 0


def test_a_reload_leaves_a_bucket_as_full_as_it_was() -> None:
    rates = limits()
    rates.take(b"a", 750, 0.0, 0.0)
    rates.use(RateRules(of_tenants={b"a": Rate(tokens=4000)}), 0.0)
    assert left(rates, b"a") == 1000


def test_a_look_that_is_a_moment_late_gives_no_moment_twice() -> None:
    rates = limits()
    rates.take(b"a", 1000, 0.0, 0.0)
    assert [left(rates, b"a", now_s) for now_s in (30.0, 0.0, 30.0)] == [500, 500, 500]


def test_a_tenant_is_forgotten_only_when_that_gives_it_nothing() -> None:
    rates = limits(RateRules(others=Rate(tokens=1000), most_tenants=2))
    for tenant in (b"a", b"b"):
        rates.take(tenant, 500, 0.0, 0.0)
    assert granted(rates, b"c", 1000, now_s=10.0)  # there is no place: it shares a bucket with all that come new
    assert not granted(rates, b"d", 1000, now_s=10.0)
    assert rates.tenants == 3
    assert left(rates, b"a", 10.0) == pytest.approx(500 + 1000 / 6)
    assert granted(rates, b"d", 1000, now_s=31.0)  # a and b are full again, and make room
    assert left(rates, b"d", 31.0) == 0


def test_a_client_that_changes_its_name_each_time_takes_one_limit_more_at_most() -> None:
    most = 50
    rates = limits(RateRules(others=Rate(tokens=1000), most_tenants=most))
    took = sum(granted(rates, str(number).encode(), 500) for number in range(10_000)) * 500
    assert rates.tenants == most + 1
    assert took == most * 500 + 1000
    assert rates.folded == 2


def test_a_sidecar_without_a_store_has_its_part() -> None:
    rates = limits(RateRules(others=Rate(tokens=1000), sidecars=4))
    assert [granted(rates, b"a", 125) for _ in range(3)] == [True, True, False]
    assert granted(rates, b"a", 125, now_s=30.1)


def test_what_others_granted_is_paid_here_too() -> None:
    rates = limits()
    rates.others_took(b"a", 900, 0.0, 0.0)
    assert not granted(rates, b"a", 200)
    rates.others_took(b"a", -900, 0.0, 0.0)
    assert granted(rates, b"a", 200)


def test_when_sharing_ends_each_has_its_part_of_what_was_left() -> None:
    rates = limits()
    rates.divide(1, 0.0)
    rates.take(b"a", 400, 0.0, 0.0)
    rates.divide(3, 0.0)
    assert left(rates, b"a") == pytest.approx(200)
    rates.divide(1, 0.0)
    assert left(rates, b"a") == pytest.approx(200), "the others may have used their parts"
    assert left(rates, b"a", 60.0) == 1000


_STEP = st.tuples(
    st.sampled_from([b"a", b"b", b"c", b"d"]), st.integers(0, 3000), st.floats(0, 30), st.sampled_from(["take", "back"])
)


@settings(max_examples=150, deadline=None)
@given(st.lists(_STEP, max_size=80), st.integers(1, 4))
def test_nobody_takes_more_than_a_burst_and_what_came_in_and_one_request(
    steps: list[tuple[bytes, int, float, str]], most: int
) -> None:
    rates, now_s = limits(RateRules(others=Rate(tokens=1000), most_tenants=most)), 0.0
    took: dict[bytes, float] = {}
    charges: list[Charge] = []
    largest = 0
    for tenant, tokens, passed_s, what in steps:
        now_s += passed_s
        if what == "take":
            charge = rates.take(tenant, tokens, 0.0, now_s)
            if isinstance(charge, Charge):
                charges.append(charge)
                took[charge.bucket] = took.get(charge.bucket, 0.0) + tokens
                largest = max(largest, tokens)
            else:
                assert isinstance(charge, Denied)
                assert 0 < charge.retry_in_s < inf
        elif charges:
            charge = charges.pop()
            rates.settle(charge, 0, 0, now_s)
            took[charge.bucket] -= charge.tokens
        assert rates.tenants <= most + 1
        assert all(tokens <= 1000 * (1 + now_s / 60) + largest + 1e-6 for tokens in took.values())
