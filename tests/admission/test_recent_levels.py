"""A level gives way only to levels that have requests."""

from __future__ import annotations

from fairlead.admission.admission import Admission, Rules
from fairlead.admission.limits import BandRules, QueueRules
from fairlead.admission.recent_levels import RecentLevels
from fairlead.admission.waiting import Verdict, Waiting
from fairlead.core.ledger import Ticket
from fairlead.core.reported import EngineReport
from tests.core.world import World, carries


def test_a_level_is_above_another_for_a_minute_after_its_last_request() -> None:
    recent = RecentLevels()
    assert not recent.has_above("m", -1, 0.0)
    recent.came("m", 0, 0.0)
    assert recent.has_above("m", -1, 59.9)
    assert not recent.has_above("m", -1, 60.0)
    assert not recent.has_above("m", 0, 1.0)
    assert not recent.has_above("another", -1, 1.0)


def test_batch_that_waits_alone_may_fill_its_whole_share_and_beside_chat_less() -> None:
    world = World()
    endpoint = world.endpoint("a:1", "m")
    bands = {-1: BandRules("batch", share=0.8, longest_wait_s=1000.0), 0: BandRules("chat", longest_wait_s=1000.0)}
    admission = Admission(world.router, Rules(QueueRules(bands=bands)))
    lane, went = admission.lane("m"), []

    def decide(verdict: Verdict) -> float:
        went.append(verdict)
        return 0.0

    def in_use(kv_usage: float) -> None:
        endpoint.report = EngineReport(kv_usage=kv_usage, kv_capacity_tokens=100_000, stale=False)

    def waits(now_s: float) -> None:
        assert admission.enter(Waiting(lane, decide, level=-1, arrived_s=now_s, expires_s=now_s + 1000.0), now_s)

    endpoint.prefills.expect(Ticket(endpoint, 1, 1), 5000.0, -2.0)  # it computes a long prompt
    carries(endpoint, inflight_requests=5, pending_prefill_tokens=0)
    in_use(0.9)
    assert not admission.passes(lane, -1, 0.0)
    waits(0.0)
    in_use(0.6)
    admission.release(1.0)
    assert went == ["go"]

    assert admission.passes(lane, 0, 2.0), "chat comes"
    waits(2.0)
    admission.release(2.0)
    assert went == ["go"]
    in_use(0.3)
    admission.release(3.0)
    assert went == ["go", "go"]
