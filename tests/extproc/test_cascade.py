"""How Envoy is answered once a held answer is settled."""

from __future__ import annotations

import time

from fairlead.cascade.counts import CascadeCounts
from fairlead.cascade.escalation import Escalation, Settled
from fairlead.cascade.route import CascadeRoute, Entry
from fairlead.extproc.cascade import Held, RequestCascades
from tests.extproc.world import as_response, set_headers

ENTRY = Entry(CascadeRoute("answer", ("small", "large"), (70.0,)), 0, "/v1/chat/completions", b"{}", False, False)


class AlwaysSettled(Escalation):
    def __init__(self, settled: Settled) -> None:
        super().__init__("http://127.0.0.1:1", CascadeCounts(), time.perf_counter)
        self._settled = settled

    async def settle(self, *_: object) -> Settled:
        return self._settled


async def test_the_model_of_a_settled_answer_is_named_as_any_other_model_is() -> None:
    name = "模型-large"
    as_aiohttp_reads_it = name.encode().decode("utf-8", "surrogateescape")
    settled = Settled(b"{}", False, as_aiohttp_reads_it, "10.0.0.1:1", "cost", 2, (10.0,), 5.0)
    reply = await RequestCascades(AlwaysSettled(settled)).settle(Held(ENTRY, {}, b"id", b"{}", 0.0))
    headers = set_headers(as_response(reply))
    assert (headers["x-fairlead-model"], headers["x-fairlead-cascade-stage"]) == (name, "2")
