"""Errors that Fairlead makes itself, in OpenAI's envelope. An engine's own errors never pass through here."""

from __future__ import annotations

import msgspec

from fairlead.api.media_sources import NO_DOMAIN, ODD_DOMAIN

_SHOWN_CHARACTERS = 200  # of a name that a client chose
_NO_PLACES = {  # that an operator could allow
    NO_DOMAIN: "neither in the body nor at an http(s) URL",
    ODD_DOMAIN: "at a URL without a plain host name",
}


class HttpAnswer(msgspec.Struct, frozen=True):
    """A whole HTTP response that Fairlead gives instead of an engine."""

    status: int
    body: bytes
    details: str  # for Envoy's access log
    retry_after_s: int | None = None
    dropped: bytes = b""  # why, in the words of the Gateway API's pickers
    headers: tuple[tuple[bytes, bytes], ...] = ()  # besides


def _error(
    status: int, code: str, message: str, *, param: str | None = None, kind: str = "", retry_after_s: int | None = None
) -> HttpAnswer:
    error = {"message": message, "type": kind or "invalid_request_error", "param": param, "code": code}
    return HttpAnswer(status, msgspec.json.encode({"error": error}), f"fairlead_{code}", retry_after_s)


def malformed(message: str, param: str | None) -> HttpAnswer:
    return _error(400, "invalid_request", message, param=param)


def unknown_model(name: str) -> HttpAnswer:
    shown = name if len(name) <= _SHOWN_CHARACTERS else f"{name[:_SHOWN_CHARACTERS]}..."
    message = f"The model {shown!r} is neither served by this pool nor a route; GET /v1/models lists both"
    return _error(404, "model_not_found", message, param="model")


def media_source(domain: str) -> HttpAnswer:
    """An image or a clip that engines may not fetch. `domain`: see `api.media_sources`."""
    place = _NO_PLACES.get(domain, f"at {domain!r}")
    message = (
        f"An image or a clip is {place}, from where this gateway's engines may not fetch any: send its bytes as "
        "'data:image/png;base64,...'"
    )
    if domain not in _NO_PLACES:
        message += ", or ask the operator of this gateway for it (gateway.allowed_media_domains)"
    return _error(400, "media_source_not_allowed", message)


def unknown_client() -> HttpAnswer:
    message = "This gateway wants a key: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
    return _error(401, "invalid_api_key", message, kind="authentication_error")


def too_large(limit_bytes: int) -> HttpAnswer:
    return _error(413, "request_too_large", f"The body is larger than {limit_bytes} bytes, the limit of this gateway")


def too_many_bodies() -> HttpAnswer:
    message = "This gateway holds as many request bodies as it may; try again shortly"
    return _error(503, "too_many_bodies", message, kind="service_unavailable_error", retry_after_s=1)


def slow_body() -> HttpAnswer:
    message = "The body was still coming in after some seconds, and other requests needed its room; try again"
    return _error(503, "slow_body", message, kind="service_unavailable_error", retry_after_s=1)


def unreadable() -> HttpAnswer:
    message = "The body could not be read, and must not pass unread; try again shortly"
    return _error(503, "body_unread", message, kind="service_unavailable_error", retry_after_s=1)


def no_endpoint() -> HttpAnswer:
    message = "No healthy endpoint can take this request now; try again shortly"
    answer = _error(503, "no_endpoint", message, kind="service_unavailable_error", retry_after_s=1)
    return msgspec.structs.replace(answer, dropped=b"rejected-no-endpoints")


def kills_engines() -> HttpAnswer:
    """A 4xx, as others send a 5xx again, or to another pool; and no `retry-after`, as waiting does not mend it."""
    message = (
        "Engines that served other requests failed at this very prompt, one after another, so it is sent to none for "
        "some minutes. Do not repeat it; change it, or tell the operator of this gateway"
    )
    return _error(422, "prompt_fails_engines", message)


def one_server() -> HttpAnswer:
    """Its model has only servers that do one half, and this request is for one that does both."""
    message = (
        "This model's servers compute prompts and answers apart, which they can for a chat completion or a completion "
        "of up to 2 MiB, of one prompt without images: leave out n, best_of, echo, prompt_logprobs, use_beam_search, "
        "truncate_prompt_tokens and prompt_embeds"
    )
    return malformed(message, None)


def saturated(retry_after_s: int, dropped: bytes) -> HttpAnswer:
    """It could not begin in time, or may not wait."""
    message = f"The engines are busy and the queue for them is full; try again in {retry_after_s} s"
    if dropped == b"rejected-ttl-expired":
        message = f"The engines are busy and the request's time in the queue is over; try again in {retry_after_s} s"
    answer = _error(429, "overloaded", message, kind="rate_limit_error", retry_after_s=retry_after_s)
    return msgspec.structs.replace(answer, dropped=dropped)


def too_late(retry_after_s: int) -> HttpAnswer:
    """No endpoint should answer it as fast as it must be."""
    message = f"The engines are too busy to answer within the request's objective; try again in {retry_after_s} s"
    answer = _error(429, "overloaded", message, kind="rate_limit_error", retry_after_s=retry_after_s)
    return msgspec.structs.replace(answer, dropped=b"rejected-saturated")


def rate_limited(unit: str, limit: float, retry_after_s: int, headers: tuple[tuple[bytes, bytes], ...]) -> HttpAnswer:
    """The tenant has had its share of this minute. `unit`: `tokens` or `engine_ms`."""
    what = "tokens" if unit == "tokens" else "milliseconds of engine time"
    message = f"The rate limit of {limit:.0f} {what} a minute is reached; try again in {retry_after_s} s"
    answer = _error(429, "rate_limit_exceeded", message, kind=unit, retry_after_s=retry_after_s)
    return msgspec.structs.replace(answer, dropped=b"rejected-rate-limited", headers=headers)


def evicted() -> HttpAnswer:
    """Its answer was cut off; where its status is out already, Envoy has no use for this but to know that it ends."""
    message = "The answer was ended for a request of a higher priority; try again shortly"
    answer = _error(429, "evicted", message, kind="rate_limit_error", retry_after_s=1)
    return msgspec.structs.replace(answer, dropped=b"evicted-priority")


def shutting_down() -> HttpAnswer:
    message = "This gateway is shutting down; try again shortly"
    answer = _error(503, "shutting_down", message, kind="service_unavailable_error", retry_after_s=1)
    return msgspec.structs.replace(answer, dropped=b"rejected-shutting-down")


def json_answer(document: object) -> HttpAnswer:
    """A 200 with `document` as JSON."""
    return HttpAnswer(200, msgspec.json.encode(document), "fairlead_answer")
