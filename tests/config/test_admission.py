"""The `admission` section, and what of it becomes rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.config import Admission, ConfigError, parse
from fairlead.config.admission import Priority
from fairlead.core.objective import Slo
from fairlead.gateway import bootstrap, render
from fairlead.serving.admission import MOST_LEVELS, bounded, longest_wait_s, naming_of, rules_of

POOL = "pool: {endpoints: [{address: '127.0.0.1:8000', model: m}]}\n"
PRIORITIES = "{chat: {level: 10}, batch: {level: -1, max_wait_s: 200, max_requests: 5}}"


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("{routes: {m: chat}}", 'admission.routes.m: no priority is called "chat"; known names: none'),
        ("{default: chat, priorities: {batch: {level: 1}}}", 'admission.default: no priority is called "chat"'),
        ("{priorities: {a: {level: 1}, b: {level: 1}}}", 'admission.priorities.b.level: is also the level of "a"'),
        ("{priorities: {a: {level: 1, share: 0.5}, b: {level: 0}}}", "admission.priorities.a.share: is less than 1"),
        ("{header: x-priority}", "admission.vouched_by: is required with header"),
        ("{max_wait_s: 600}", "admission.max_wait_s: must be 240 or less"),
        ("{priorities: {a: {level: 1}}, routes: {n: a}}", 'admission.routes.n: "n" is no route and no served model'),
        ("{slo: {n: {ttft_ms: 5}}}", 'admission.slo.n: "n" is no route and no served model'),
        ("{evict: lower}\nlisten: {server: grpcio}", "admission.evict: only the native server can end an answer"),
        ("{slo: {m: {}}}", "admission.slo.m: wants nothing; write ttft_ms, tpot_ms or both"),
        ("{header: 'x y', vouched_by: us}", "admission.header: "),
    ],
)
def test_a_mistake_is_told_at_its_key(section: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(POOL + f"admission: {section}\n")
    assert message in str(error.value)


def test_without_the_section_nothing_waits() -> None:
    config = parse(POOL)
    assert rules_of(config.admission) is None
    assert longest_wait_s(None) == 0
    assert naming_of(config).priority_headers == ()


def test_priorities_become_bands() -> None:
    rules = rules_of(parse(POOL + f"admission: {{priorities: {PRIORITIES}, max_wait_s: 10}}\n").admission)
    assert rules is not None
    batch, chat, other = (rules.queue.band(level) for level in (-1, 10, 3))
    assert (batch.name, batch.share, batch.longest_wait_s, batch.limits.requests) == ("batch", 0.8, 200, 5)
    assert (chat.name, chat.share, chat.longest_wait_s) == ("chat", 1.0, 10)
    assert other.name == "default"
    assert longest_wait_s(rules) == 200


def test_the_level_is_named_by_a_vouched_header_then_by_the_route_then_by_the_default() -> None:
    section = f"{{priorities: {PRIORITIES}, routes: {{m: batch}}, header: X-Priority, vouched_by: us, default: chat}}"
    naming = naming_of(parse(POOL + f"admission: {section}\n"))
    assert naming.level({b"x-priority": b"chat"}, "m") == 10
    assert naming.level({b"x-llm-d-inference-objective": b"batch"}, "other") == -1
    assert naming.level({b"x-priority": b"no such"}, "m") == 10
    assert naming.level({}, "m") == -1
    assert naming.level({}, "other") == 10


@pytest.mark.parametrize("vouched_by", ["", ", vouched_by: us"])
def test_headers_that_nobody_vouches_for_are_not_read_and_are_removed_by_envoy(vouched_by: str) -> None:
    config = parse(POOL + f"admission: {{priorities: {PRIORITIES}{vouched_by}}}\n")
    naming = naming_of(config)
    believed = bool(vouched_by)
    assert (naming.level({b"x-gateway-inference-objective": b"batch"}, "m") == -1) is believed
    assert (naming.tenant({b"x-llm-d-inference-fairness-id": b"t"}) == b"t") is believed
    removed = render(bootstrap(config))
    assert ("remove: x-gateway-inference-objective" in removed) is not believed
    assert ("remove: x-llm-d-model-name-rewrite" in removed) is not believed


def test_the_configured_header_names_the_tenant_whatever_a_fairness_id_says() -> None:
    config = parse(POOL + "tenants: {header: X-Tenant, vouched_by: us}\nadmission: {vouched_by: us}\n")
    naming = naming_of(config)
    assert naming.tenant({b"x-tenant": b"acme", b"x-llm-d-inference-fairness-id": b"another"}) == b"acme"
    assert naming.tenant({b"x-gateway-inference-fairness-id": b"t"}) == b"t"


def test_an_objective_names_a_level_of_its_own_or_a_configured_one() -> None:
    config = parse(POOL + f"admission: {{priorities: {PRIORITIES}, vouched_by: us}}\n")
    objectives = {"gold": 20, "also-chat": 10, "spare": -7}
    naming = naming_of(config, objectives)
    named = {name: naming.level({b"x-gateway-inference-objective": name.encode()}, "m") for name in objectives}
    assert named == objectives
    assert naming.level({b"x-llm-d-inference-objective": b"gone"}, "m") == 0
    rules = rules_of(config.admission, objectives)
    assert rules is not None
    bands = {level: (rules.queue.band(level).name, rules.queue.band(level).share) for level in (20, 10, 0, -7)}
    assert bands == {20: ("20", 1.0), 10: ("chat", 1.0), 0: ("default", 1.0), -7: ("-7", 0.8)}


def test_a_configured_name_wins_over_an_objective() -> None:
    """Who may write objects into a namespace must not move what the sidecar's operator has named."""
    config = parse(POOL + f"admission: {{priorities: {PRIORITIES}, vouched_by: us, routes: {{m: batch}}}}\n")
    naming = naming_of(config, {"batch": 1000})
    assert naming.level({b"x-gateway-inference-objective": b"batch"}, "m") == naming.level({}, "m") == -1


def test_objectives_are_not_believed_from_a_client() -> None:
    config = parse(POOL + f"admission: {{priorities: {PRIORITIES}}}\n")
    assert naming_of(config, {"gold": 20}).level({b"x-gateway-inference-objective": b"gold"}, "m") == 0


@given(
    st.dictionaries(st.integers(-9, 9), st.floats(0.1, 1), max_size=4),
    st.dictionaries(st.text(max_size=3), st.integers(-(2**31), 2**31 - 1), max_size=20),
)
def test_no_priority_has_a_smaller_share_than_a_lower_one(
    configured: dict[int, float], objectives: dict[str, int]
) -> None:
    shares = dict(zip(sorted(configured), sorted(configured.values()), strict=True))
    priorities = {f"p{level}": Priority(level=level, share=share) for level, share in shares.items() if level}
    rules = rules_of(Admission(priorities=priorities), objectives)
    assert rules is not None
    levels = sorted({*objectives.values(), *(each.level for each in priorities.values())} - {0})
    of_levels = [rules.queue.band(level).share for level in levels]
    assert of_levels == sorted(of_levels)


def test_so_many_levels_of_objectives_are_kept_apart_and_no_more() -> None:
    objectives = {f"o{level}": level for level in range(-100, 100)}
    kept = bounded(objectives)
    assert len(set(kept.values())) == MOST_LEVELS
    assert (kept["o99"], kept["o-100"]) == (99, 100 - MOST_LEVELS)
    few = {"a": 1, "b": -1}
    assert bounded(few) == few


def test_objectives_become_those_of_routes() -> None:
    section = "{slo: {m: {ttft_ms: 500, otherwise: refuse}, '*': {tpot_ms: 40}}}"
    naming = naming_of(parse(POOL + f"admission: {section}\n"))
    assert naming.slos == {"m": Slo(500.0, refuses=True), "*": Slo(tpot_ms=40.0)}
    assert not naming.believes_slos
    assert naming_of(parse(POOL + "admission: {vouched_by: us}\n")).believes_slos
