"""Where prefill and decoding are apart, room at an endpoint that cannot answer a request is worth nothing to it."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from fairlead.admission.admission import Admission, Rules
from fairlead.core.endpoint import Endpoint
from fairlead.core.in_flight import InFlight
from fairlead.core.load import Load
from fairlead.core.pool import Pool
from fairlead.core.router import Router
from fairlead.policies import build_policy
from tests.core.world import make_endpoint, request

PREFILL, FULL, ROOMY, PLAIN = "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1", "10.0.0.4:1"
PAIR: dict[str, Any] = {"engine": "sglang", "kv_connector": "sglang"}


def admitted(*endpoints: Endpoint, full: Endpoint, may_split: bool) -> InFlight:
    """Of a pool in which the cheapest endpoint is full, and others are idle."""
    full.take(Load(4, 40, 0, 4))
    full.running_limit.requests = 1
    router = Router(Pool(endpoints, {}), build_policy("fairlead", {}), fallbacks=2, rng=Random(0))
    admission = Admission(router, Rules())
    in_flight = admission.admit(router, msgspec.structs.replace(request("m"), may_split=may_split), None, 0.0)
    assert isinstance(in_flight, InFlight)
    return in_flight


def test_a_pair_is_found_for_a_decode_server_with_room() -> None:
    prefill = make_endpoint(PREFILL, role="prefill", **PAIR)
    full = make_endpoint(FULL, role="decode", **PAIR)
    roomy = make_endpoint(ROOMY, role="decode", rtt_ms=60_000.0, **PAIR)
    in_flight = admitted(prefill, full, roomy, full=full, may_split=True)
    assert (in_flight.address, in_flight.hop is not None) == (ROOMY, True)


def test_what_one_server_must_do_alone_goes_there_though_a_decode_server_has_room() -> None:
    prefill, decode = make_endpoint(PREFILL, role="prefill", **PAIR), make_endpoint(ROOMY, role="decode", **PAIR)
    plain = make_endpoint(PLAIN, engine="sglang")
    assert admitted(prefill, decode, plain, full=plain, may_split=False).address == PLAIN
