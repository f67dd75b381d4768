"""Where a request goes: to the sidecar's choice, to engines of its model, to any engine, or nowhere.

Routes are tried in order. The sidecar's choice and the guard's are headers, which a client cannot set.
"""

from __future__ import annotations

import json
from typing import Final

from fairlead.api import headers
from fairlead.config import Config
from fairlead.gateway import paths
from fairlead.gateway.clusters import has_last_resorts
from fairlead.gateway.guard import (
    CLUSTER_HEADER,
    EVENTS_HEADER,
    makes_events,
    models_of_blind_routes,
    no_guard,
)
from fairlead.gateway.parts import (
    BLIND_CLUSTER,
    DESTINATION,
    ENGINES_CLUSTER,
    Mode,
    Part,
    seconds,
    type_url,
)
from fairlead.gateway.replies import envelope

# A long answer that is not streamed sends nothing for minutes; a stream may pause while an engine is busy.
ENGINE_SILENCE_MS: Final = 3_600_000

MOST_BLIND_RETRIES: Final = 7
_FAILURES: Final = "5xx,reset,connect-failure,refused-stream"
_QUEUE_FULL: Final = 429  # of one engine; the client gets it when every engine that was tried is full
_ATTEMPTS_AT_A_MODEL: Final = 2  # for each model of a route, before the next model is tried

# What the sidecar reads: no engine reads the body of a GET, and that of an upgrade has no end.
_WITH_A_BODY: Final[tuple[Part, ...]] = (
    {"name": ":method", "string_match": {"safe_regex": {"regex": "POST|PUT|PATCH|DELETE"}}},
    {"name": "upgrade", "present_match": True, "invert_match": True},
)

BUFFER: Final = "envoy.filters.http.buffer"
PROCESSOR: Final = "envoy.filters.http.ext_proc"
PROCESSOR_OF_UPGRADES: Final = "fairlead.upgrades"  # a name of its own: what a route says of bodies is not for these


def routes(config: Config, mode: Mode) -> Part:
    return {
        "name": "pool",
        "virtual_hosts": [
            {
                "name": "pool",
                "domains": ["*"],
                "request_body_buffer_limit": config.gateway.max_body_bytes,
                # Envoy adds the first for every client that is not internal; the second is the sidecar's secret.
                "request_headers_to_remove": [
                    "x-envoy-external-address",
                    headers.INNER.decode(),
                    CLUSTER_HEADER,
                    EVENTS_HEADER,
                    *([headers.PREFILLED.decode()] if splits(config) else []),
                    *([headers.SENT_ONCE.decode()] if mode == "full_duplex" else []),
                ],
                **({"typed_per_filter_config": _by_chunks()} if mode == "full_duplex" else {}),
                "routes": _routes(config, mode),
            }
        ],
    }


def _by_chunks() -> Part:
    """Bodies chunk by chunk. A filter of that mode takes no orders of the sidecar, one that a route puts in it does."""
    processing_mode = {
        "request_header_mode": "SEND",
        "request_body_mode": "FULL_DUPLEX_STREAMED",
        "request_trailer_mode": "SEND",
        "response_header_mode": "SKIP",
        "response_body_mode": "NONE",
        "response_trailer_mode": "SEND",
    }
    per_route = "envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"
    return {PROCESSOR: {"@type": type_url(per_route), "overrides": {"processing_mode": processing_mode}}}


def _routes(config: Config, mode: Mode) -> list[Part]:
    allowed = paths.allowed(config.gateway.paths)
    chosen = {"name": DESTINATION, "present_match": True}
    to_any = BLIND_CLUSTER if has_last_resorts(config) else ENGINES_CLUSTER
    down_the_list = _retry_down_the_list(config.gateway.fallbacks)
    others = MOST_BLIND_RETRIES if config.gateway.endpoints == "eds" else len(config.pool.endpoints) - 1
    elsewhere = _retry_elsewhere(min(others, MOST_BLIND_RETRIES))
    # Never to an aggregate cluster: in Envoy 1.40 the sidecar's list is lost there, and any engine gets the request.
    read = _to_engines(
        "chosen", _match(paths.read_by_the_sidecar(), chosen, *_WITH_A_BODY), down_the_list, ENGINES_CLUSTER
    )
    read["typed_per_filter_config"] = no_guard()
    found = [_nowhere("tunnels", {"connect_matcher": {}}), _nowhere("two readings", _match(paths.TWO_READINGS))]
    if mode == "full_duplex":
        # A body with trailers is sent again in full by each retry, after what the engine already has.
        once = {"name": headers.SENT_ONCE.decode(), "present_match": True}
        of_the_read = _match(paths.read_by_the_sidecar(), chosen, once, *_WITH_A_BODY)
        found.append(_to_engines("chosen, sent once", of_the_read, None, ENGINES_CLUSTER))
        found[-1]["typed_per_filter_config"] = no_guard()
        found.append(_to_engines("chosen, unread, sent once", _match(allowed, chosen, once), None, ENGINES_CLUSTER))
    if config.cascades():
        streamed = _match(paths.read_by_the_sidecar(), {"name": EVENTS_HEADER, "present_match": True}, *_WITH_A_BODY)
        found.append(_to_engines("chosen, a cascade as a stream", streamed, down_the_list, ENGINES_CLUSTER))
        found[-1]["typed_per_filter_config"] = no_guard() | makes_events()
    if splits(config):
        name = headers.PREFILLED.decode()
        else_alone = {"name": name, "string_match": {"exact": headers.ELSE_ALONE.decode()}}
        halves = _match(paths.read_by_the_sidecar(), else_alone, *_WITH_A_BODY)
        found.append(_to_engines("chosen, both halves or else alone", halves, down_the_list, ENGINES_CLUSTER))
        found[-1]["typed_per_filter_config"] = no_guard()
        by_another = {"name": name, "present_match": True}
        prefilled = _match(paths.read_by_the_sidecar(), by_another, *_WITH_A_BODY)
        retry = _retry_unsent(config.gateway.fallbacks)
        found.append(_to_engines("chosen, prefilled elsewhere", prefilled, retry, ENGINES_CLUSTER))
        found[-1]["typed_per_filter_config"] = no_guard()
    found.append(read)
    found.append(_to_engines("chosen, unread", _match(allowed, chosen), down_the_list, ENGINES_CLUSTER))
    if models_of_blind_routes(config):
        of_a_model = {"name": CLUSTER_HEADER, "string_match": {"prefix": "model:"}}
        of_a_route = {"name": CLUSTER_HEADER, "string_match": {"prefix": "route:"}}
        found.append(_to_engines("blind, of a model", _match(allowed, of_a_model), elsewhere))
        next_model = _retry_at_the_next_model()
        found.append(_to_engines("blind, of a route", _match(allowed, of_a_route), next_model))
    found.append(_to_engines("blind", _match(allowed), elsewhere, to_any))
    found.append(_nowhere("not allowed", {"prefix": "/"}))
    return found


def splits(config: Config) -> bool:
    """Whether one engine may compute a prompt that another decodes; what is discovered may have roles."""
    return config.discovery.is_used or any(each.role != "both" for each in config.pool.endpoints)


def _match(path: str, *of_headers: Part) -> Part:
    match: Part = {"safe_regex": {"regex": path}}
    return match | {"headers": list(of_headers)} if of_headers else match


def _to_engines(name: str, match: Part, retry_policy: Part | None, cluster: str | None = None) -> Part:
    """`cluster`: None for the one that a header names."""
    action: Part = {"cluster_header": CLUSTER_HEADER} if cluster is None else {"cluster": cluster}
    action["timeout"] = "0s"  # the default of 15 s would end most long answers
    action["idle_timeout"] = seconds(ENGINE_SILENCE_MS)
    if retry_policy is not None:
        action["retry_policy"] = retry_policy
    return {"name": name, "match": match, "route": action}


def _nowhere(name: str, match: Part) -> Part:
    """A 404 at once: no filter waits for the body or asks the sidecar."""
    message = "This path is not open to clients of this gateway; to open it, add it to gateway.paths"
    body = json.dumps(envelope(message, "invalid_request_error", "unknown_path"), separators=(",", ":"))
    processor = "envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"
    buffer = "envoy.extensions.filters.http.buffer.v3.BufferPerRoute"
    return {
        "name": name,
        "match": match,
        "direct_response": {"status": 404, "body": {"inline_string": body}},
        "response_headers_to_add": [
            {
                "header": {"key": "content-type", "value": "application/json"},
                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
            }
        ],
        "typed_per_filter_config": {
            PROCESSOR: {"@type": type_url(processor), "disabled": True},
            PROCESSOR_OF_UPGRADES: {"@type": type_url(processor), "disabled": True},
            BUFFER: {"@type": type_url(buffer), "disabled": True},
            **no_guard(),
        },
    }


def _retry_down_the_list(fallbacks: int) -> Part | None:
    """The sidecar's list names the next address, so no host has to be excluded here."""
    if fallbacks == 0:
        return None
    return {
        "retry_on": f"{_FAILURES},retriable-status-codes",
        "retriable_status_codes": [_QUEUE_FULL],
        "num_retries": fallbacks,
        "retry_back_off": _back_off(base_ms=25),
    }


def _retry_unsent(fallbacks: int) -> Part | None:
    """An engine fetches KV once: a second that fetches it later may read what is in its place by then."""
    if fallbacks == 0:
        return None
    return {"retry_on": "connect-failure", "num_retries": fallbacks, "retry_back_off": _back_off(base_ms=25)}


def _retry_elsewhere(retries: int) -> Part | None:
    """A blind choice may hit an engine that does not serve the asked model: its 404 moves on, like a failure."""
    if retries == 0:
        return None
    previous_hosts = "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
    return {
        "retry_on": f"{_FAILURES},retriable-status-codes",
        "retriable_status_codes": [404, _QUEUE_FULL],
        "num_retries": retries,
        "retry_back_off": _back_off(base_ms=5),  # short, since each attempt goes to another engine
        "retry_host_predicate": [
            {"name": "envoy.retry_host_predicates.previous_hosts", "typed_config": {"@type": type_url(previous_hosts)}}
        ],
        # Draws until an untried host comes up. With 7 of 8 tried, 64 draws would miss the last once in 5,000 times.
        "host_selection_retry_max_attempts": 256,
    }


def _retry_at_the_next_model() -> Part:
    """The models of a route are priorities of its cluster; after the last comes the first again."""
    name = "envoy.extensions.retry.priority.previous_priorities.v3.PreviousPrioritiesConfig"
    config = {"@type": type_url(name), "update_frequency": _ATTEMPTS_AT_A_MODEL}
    retry = _retry_elsewhere(MOST_BLIND_RETRIES)
    assert retry is not None
    return retry | {"retry_priority": {"name": "envoy.retry_priorities.previous_priorities", "typed_config": config}}


def _back_off(base_ms: float) -> Part:
    return {"base_interval": seconds(base_ms), "max_interval": seconds(10 * base_ms)}
