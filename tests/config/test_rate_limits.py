"""The `rate_limits` section, and what of it becomes rules."""

from __future__ import annotations

from math import inf

import pytest

from fairlead.admission.rates import Rate
from fairlead.config import ConfigError, parse
from fairlead.serving.admission import rate_rules_of

POOL = "pool: {endpoints: [{address: '127.0.0.1:8000', model: m}]}\n"
VOUCHED = POOL + "tenants: {header: x-tenant, vouched_by: the gateway}\n"


def test_tenants_have_their_own_limits_and_others_that_of_the_star() -> None:
    limits = "{sidecars: 3, tenants: {'*': {tokens: 1000}, acme: {tokens: 5000, engine_ms: 60000}}}"
    rules = rate_rules_of(parse(VOUCHED + f"rate_limits: {limits}", "f.yaml").rate_limits)
    assert rules is not None
    assert rules.others == Rate(1000, inf)
    assert rules.of_tenants == {b"acme": Rate(5000, 60_000)}
    assert rules.sidecars == 3


def test_without_the_section_nobody_is_limited() -> None:
    assert rate_rules_of(parse(POOL, "f.yaml").rate_limits) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (POOL + "rate_limits: {tenants: {'*': {tokens: 1}}}", "needs tenants.header and tenants.vouched_by"),
        (
            POOL + "tenants: {header: x-tenant}\nrate_limits: {tenants: {'*': {tokens: 1}}}",
            "a client that names itself would take another name",
        ),
        (VOUCHED + "rate_limits: {tenants: {'*': {}}}", "limits nothing; write tokens, engine_ms or both"),
        (VOUCHED + "rate_limits: {tenants: {}}", "rate_limits.tenants"),
        (VOUCHED + "rate_limits: {tenants: {a: {tokens: 0}}}", "rate_limits.tenants.a.tokens"),
    ],
)
def test_mistakes_are_told_in_a_sentence(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"f\.yaml:\d+: ") as refused:
        parse(text, "f.yaml")
    assert message in str(refused.value)


def test_tenants_may_be_the_gateways_fairness_ids() -> None:
    text = POOL + "admission: {vouched_by: the gateway}\nrate_limits: {tenants: {'*': {tokens: 1}}}"
    assert parse(text, "f.yaml").rate_limits is not None
