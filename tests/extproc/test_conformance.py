"""GIE's conformance suite names endpoints in a header: obeyed only where the configuration says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairlead.config import parse
from tests.extproc.world import (
    Conversation,
    chat,
    destination,
    make_services,
    request_body,
    request_headers,
    response_headers,
    set_headers,
    with_subset,
)

CONFIG = parse("gateway: {test_endpoint_selection: true}\npool: {endpoints: [{address: '10.0.0.1:1', model: small}]}\n")


def conversation() -> Conversation:
    return Conversation(replace(make_services(), config=CONFIG))


@pytest.mark.parametrize("named", ["10.0.0.2", "10.0.0.2:1", " 10.9.9.9 , 10.0.0.2"])
def test_the_header_chooses_by_address_or_by_address_and_port_and_beats_the_gateways_subset(named: str) -> None:
    body = with_subset(request_body(chat()), ["10.0.0.1:1"])
    headers = request_headers(extra={"test-epp-endpoint-selection": named}, subset=["10.0.0.1:1"])
    _, picked = conversation().say(headers, body)
    assert set((destination(picked) or "").split(",")) == {"10.0.0.2:1"}


def test_a_header_that_names_no_endpoint_is_a_503() -> None:
    replies = conversation().say(
        request_headers(extra={"test-epp-endpoint-selection": "10.0.0.2:2"}), request_body(chat())
    )
    assert replies[-1].immediate_response.status.code == 503


def test_the_answer_says_what_served_it() -> None:
    *_, answer = conversation().say(request_headers(), request_body(chat()), response_headers(served="10.0.0.2:1"))
    assert set_headers(answer)["x-conformance-test-served-endpoint"] == "10.0.0.2:1"


def test_by_default_the_header_of_a_client_chooses_nothing() -> None:
    plain = Conversation()
    _, picked, answer = plain.say(
        request_headers(extra={"test-epp-endpoint-selection": "10.9.9.9"}), request_body(chat()), response_headers()
    )
    assert destination(picked)
    assert "x-conformance-test-served-endpoint" not in set_headers(answer)
