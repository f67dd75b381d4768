"""Context reuse on the request path: who gets it, in which order, and what comes back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fairlead.context.blocks import DEFAULT_FORMATS
from fairlead.context.reuse import ContextReuse
from fairlead.extproc.pb import ext_proc_pb2 as pb
from fairlead.extproc.reuse import RequestReuse, ReuseRule
from tests.context.world import ANSWER, Message, ask, chat, order_of, texts
from tests.core.world import carries
from tests.extproc.world import (
    Conversation,
    destination,
    make_services,
    request_body,
    request_headers,
    response_headers,
    set_headers,
)

ALWAYS = ReuseRule(frozenset({"order", "dedup"}), frozenset(), DEFAULT_FORMATS)
ON_REQUEST = ReuseRule(frozenset(), frozenset({"order", "dedup"}), DEFAULT_FORMATS)


class Sidecar:
    """Requests one after another, each ended before the next."""

    def __init__(self, rule: ReuseRule | None = ALWAYS) -> None:
        self.now_s = 0.0
        self.reuse = RequestReuse(ContextReuse(clock_s=lambda: self.now_s))
        self.reuse.use({} if rule is None else {"small": rule, "auto": rule}, None)
        self.services = replace(make_services(), reuse=self.reuse, tenant_header=b"x-tenant")

    def send(
        self, *messages: Message, model: str = "small", path: str = "/v1/chat/completions", **headers: str
    ) -> Sent:
        body = chat(*messages).replace(b'"model": "m"', b'"model": "%s"' % model.encode())
        conversation = Conversation(self.services)
        extra = {name.replace("_", "-"): value for name, value in headers.items()}
        conversation.say(request_headers(path=path, extra=extra))
        (reply,) = conversation.say(request_body(body))
        (answer,) = conversation.say(response_headers(end=True))
        return Sent(body, reply, answer)


class Sent:
    """What went to the engine, where to, and what the client was told."""

    def __init__(self, received: bytes, reply: pb.ProcessingResponse, answer: pb.ProcessingResponse) -> None:
        common = reply.request_body.response
        self.changed = common.HasField("body_mutation")
        self.body = common.body_mutation.body if self.changed else received
        self.endpoint = (destination(reply) or "").split(",")[0]
        self.length = set_headers(reply).get("content-length")
        self.told = set_headers(answer).get("x-fairlead-context-reuse")

    @property
    def order(self) -> list[str]:
        return order_of(texts(self.body)[-1])


LONG = range(20, 30)  # documents enough to fill some blocks of the prefix index


def test_without_a_rule_nothing_changes() -> None:
    sidecar = Sidecar(None)
    sidecar.send(ask([2, 1, *LONG]))
    assert not sidecar.send(ask([1, 2, *LONG])).changed


def test_documents_are_sent_in_the_order_that_an_endpoint_holds_and_the_client_is_told() -> None:
    sidecar = Sidecar()
    first = sidecar.send(ask([2, 1, *LONG]))
    assert (first.changed, first.told) == (False, None)
    second = sidecar.send(ask([*LONG, 1, 2]))
    assert second.order == ["2", "1", *map(str, LONG)]
    assert second.endpoint == first.endpoint
    assert second.length == str(len(second.body))
    assert second.told is not None
    tokens = int(second.told.split(",")[0].removeprefix("reordered_tokens="))
    assert tokens == sidecar.reuse.reuse.counts.reordered_tokens > 500
    assert second.told.endswith("dropped_tokens=0, order=12-11-1-2-3-4-5-6-7-8-9-10")


def test_a_prompt_that_the_answer_tells_of_is_sent_as_it_came() -> None:
    """Its client gets the probability of each of its tokens, or the prompt itself; and no cache is read for it."""
    sidecar = Sidecar()
    sidecar.send(ask([2, 1, *LONG]))
    body = chat(ask([*LONG, 1, 2])).replace(b'"model": "m"', b'"model": "small", "prompt_logprobs": 1')
    conversation = Conversation(sidecar.services)
    (_, reply) = conversation.say(request_headers(), request_body(body))
    assert not reply.request_body.response.HasField("body_mutation")


def test_routing_sees_what_the_engine_sees() -> None:
    """The prefix index is asked for the changed prompt, so the second request counts as cached."""
    sidecar = Sidecar()
    sidecar.send(ask([2, 1, *LONG]))
    sidecar.send(ask([*LONG, 1, 2]))
    sidecar.services.recorder.settle()
    decisions = sidecar.services.recorder.decisions
    assert decisions[-1].cached_tokens > 0.8 * decisions[-1].tokens


def test_an_order_that_no_endpoint_holds_any_more_is_not_followed_and_is_forgotten() -> None:
    sidecar = Sidecar()
    sidecar.send(ask([2, 1, *LONG]))
    for address in sidecar.services.router.pool.by_address:
        sidecar.services.router.index.forget(address)  # a restart, or KV events that say so
    before = len(sidecar.reuse.reuse.index)
    assert not sidecar.send(ask([*LONG, 1, 2])).changed
    assert len(sidecar.reuse.reuse.index) == before  # one order went, another came


@pytest.mark.parametrize("busy", [0, 1])
def test_the_order_is_that_of_the_endpoint_that_is_chosen(busy: int) -> None:
    """Two endpoints hold the same documents in two orders; the load decides, and the order goes with it."""
    sidecar = Sidecar()
    endpoints = [e for e in sidecar.services.router.pool.endpoints if e.model == "small"]
    orders = [2, 1, *LONG], [*LONG, 1, 2]
    for endpoint, order in zip(endpoints, orders, strict=True):
        for each in endpoints:
            each.health.healthy = each is endpoint
        sent = sidecar.send(ask(order))
        assert (sent.endpoint, sent.changed) == (endpoint.address, False)
        endpoint.health.healthy = True
    endpoints[0].health.healthy = True
    carries(endpoints[busy], inflight_requests=10**6, pending_prefill_tokens=10**6)
    sent = sidecar.send(ask([1, *LONG, 2]))
    assert sent.endpoint == endpoints[1 - busy].address
    assert sent.order == list(map(str, orders[1 - busy]))


def test_a_document_that_was_read_before_is_dropped_and_counted() -> None:
    sidecar = Sidecar()
    sidecar.send(ask([1, 2]))
    sent = sidecar.send(ask([1, 2]), ANSWER, ask([2, 3]))
    assert "Please refer to [Doc_2] in the previous conversation" in texts(sent.body)[-1]
    dropped = sidecar.reuse.reuse.counts.dropped_tokens
    assert sent.told == f"reordered_tokens=0, dropped_tokens={dropped}"
    assert dropped > 50


def test_a_route_gets_the_models_name_and_the_changed_prompt() -> None:
    sidecar = Sidecar()
    sent = sidecar.send(ask([1]), ANSWER, ask([1]), model="auto")
    assert json.loads(sent.body)["model"] in ("small", "large")
    assert "Please refer to" in texts(sent.body)[-1]


@pytest.mark.parametrize(
    ("rule", "header", "dedups"),
    [
        (ALWAYS, None, True),
        (ALWAYS, "off", False),
        (ALWAYS, "order", False),
        (ALWAYS, "Order, DEDUP", True),
        (ON_REQUEST, None, False),
        (ON_REQUEST, "dedup", True),
        (ReuseRule(frozenset(), frozenset({"order"}), DEFAULT_FORMATS), "dedup,order", False),
    ],
)
def test_a_client_chooses_among_what_the_configuration_allows(
    rule: ReuseRule, header: str | None, dedups: bool
) -> None:
    headers = {} if header is None else {"x_fairlead_context_reuse": header}
    assert Sidecar(rule).send(ask([1]), ANSWER, ask([1]), **headers).changed == dedups


def test_embeddings_are_left_alone() -> None:
    assert not Sidecar().send(ask([1]), ANSWER, ask([1]), path="/v1/embeddings").changed


def test_nothing_of_a_tenant_reaches_another() -> None:
    sidecar = Sidecar()
    sidecar.send(ask([2, 1, *LONG]), x_tenant="a")
    assert not sidecar.send(ask([*LONG, 1, 2]), x_tenant="b").changed


def test_a_conversation_keeps_its_prefix_from_turn_to_turn() -> None:
    sidecar = Sidecar()
    sidecar.send(ask([2, 1, *LONG]), x_session_id="other")
    first = sidecar.send(ask([*LONG, 1, 2]), x_session_id="mine")
    sidecar.send(ask([9, 8, *LONG]), x_session_id="other")
    second = sidecar.send(ask([*LONG, 1, 2]), ANSWER, ask([7]), x_session_id="mine")
    assert first.changed
    assert second.body.startswith(first.body.removesuffix(b"]}"))
    assert second.endpoint == first.endpoint


def test_a_fault_of_reuse_costs_the_request_nothing_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    sidecar = Sidecar()

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(sidecar.reuse.reuse, "plan", fails)
    assert not sidecar.send(ask([1]), ANSWER, ask([1])).changed
    assert sidecar.reuse.reuse.counts.failures == 1
    assert "a fault" in sidecar.reuse.reuse.counts.last_failure
