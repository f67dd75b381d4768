"""What an examined server gives Fairlead and what it withholds: what is then done without, and the flag to set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from fairlead.dialects import Reading
from fairlead.engines.examine import Seen

Verdict = Literal["gives", "withholds", "mind"]
_SLOW_PROBE_MS: Final = 500.0
_LONGEST_BLOCK: Final = 256  # in tokens; a shorter prompt may fill none

# What is lost with a metric. Those that are not here follow from others.
_WITHOUT: Final[dict[Reading, str]] = {
    "running": "requests that others send to it count as none",
    "waiting": "its queue is unknown: only this router's own requests count",
    "kv_usage": "a full cache is not seen coming",
    "capacity": "the prefix index assumes a usual size of its cache",
    "queried": "its hit rate is not shown",
    "hit": "its hit rate is not shown",
    "generated": "a restart shows in fewer counters",
    "prompt": "a restart shows in fewer counters",
}
_COUNTED_AS: Final[dict[Reading, tuple[Reading, ...]]] = {
    "queried_prompt": ("queried", "prompt"),
    "cache_config": ("capacity", "block"),
}


class Finding(NamedTuple):
    topic: str
    verdict: Verdict
    saw: str
    without: str = ""  # what Fairlead then does without
    do: str = ""  # what to set


def findings(seen: Seen) -> Iterator[Finding]:
    """One for each topic, in the order in which they matter."""
    yield _server(seen)
    yield _adapters(seen)
    yield _usage(seen)
    yield _cached_tokens(seen)
    yield _streaming(seen)
    yield _metrics(seen)
    yield _kv_events(seen)
    yield _health(seen)
    yield _queue(seen)


def text(seen: Seen) -> str:
    """A page."""
    lines = [f"{seen.url}: {_title(seen)}"]
    for finding in findings(seen):
        lines.append(f"  {finding.verdict:9} {finding.topic:14} {finding.saw}")
        if finding.without:
            lines.append(f"{'':27}without it: {finding.without}")
        if finding.do:
            lines.append(f"{'':27}set: {finding.do}")
    return "\n".join(lines)


def _title(seen: Seen) -> str:
    kind = seen.dialect.title if seen.is_known else f"of an unknown kind, treated as {seen.dialect.title}"
    return f"{kind} {seen.info.version or ''}".rstrip()


def _server(seen: Seen) -> Finding:
    models = [card for card in seen.cards if card.parent is None]
    listed = ", ".join(f"{card.name} ({card.max_model_len or 'length unknown'})" for card in models)
    if seen.info.role != "plain":
        without = f"it does only the {seen.info.role} of a request: it is left out of the pool"
        return Finding("server", "withholds", listed, without, "no --disaggregation-mode")
    unknown = [card.name for card in models if card.max_model_len is None]
    if unknown:
        without = "prompts that are too long for it are sent to it, and come back as its own 400"
        return Finding(
            "server", "withholds", listed, without, f"pool.models.{unknown[0]}.max_model_len in fairlead.yaml"
        )
    if seen.info.version is None:
        return Finding(
            "server", "mind", f"{listed}; it does not say its version", "copies of KV, which need to know it"
        )
    return Finding("server", "gives", listed)


def _adapters(seen: Seen) -> Finding:
    names = [card.name for card in seen.cards if card.parent is not None]
    saw = f"requests name them {', '.join(names)}" if names else "none loaded"
    if seen.unknown_model == 404:
        return Finding("adapters", "gives", f"{saw}; an unknown model is a 404")
    known = {200: "answered by the base model", 0: "not answered"}
    status = known.get(seen.unknown_model, f"a {seen.unknown_model}")
    return Finding("adapters", "mind", f"{saw}; an unknown model is {status}; behind Fairlead it is a 404")


def _usage(seen: Seen) -> Finding:
    usage, lost = seen.first.usage, "nothing is learned of its tokens and speed: estimates stay as configured"
    if seen.first.status != 200:
        return Finding(
            "usage", "withholds", f"a chat request gets {seen.first.status or 'no answer'}: {seen.first.error}"
        )
    if usage.prompt_tokens is None or usage.completion_tokens is None:
        return Finding("usage", "withholds", "no token counts in an answer", lost)
    counts = f"{usage.prompt_tokens} tokens of prompt, {usage.completion_tokens} of answer"
    return Finding("usage", "gives", f"{counts} in {seen.first.took_ms:.0f} ms")


def _cached_tokens(seen: Seen) -> Finding:
    prompt, cached = seen.again.usage.prompt_tokens, seen.again.usage.cached_tokens
    lost = "a prefill is not told from a cache hit: prefill time is learned from what the index expected"
    flag = seen.dialect.flags.get("cached_tokens", "") if seen.is_known else ""
    if not (seen.info.caches_prefixes and (seen.report is None or seen.report.caches_prefixes)):
        saw, without = "it was started without prefix caching", "no prefix is ever reused: affinity gains nothing"
        return Finding("cached tokens", "withholds", saw, without, "prefix caching")
    if cached is None:
        return Finding("cached tokens", "withholds", "usage does not count them", lost, flag)
    saw = f"{cached} of {prompt} tokens of a prompt that was sent twice"
    if cached == 0 and (prompt or 0) < _LONGEST_BLOCK:
        without = "whether prefixes are reused cannot be told"
        return Finding("cached tokens", "mind", saw, without, "--prompt FILE, a text of some hundred tokens")
    if cached == 0:
        return Finding(
            "cached tokens", "withholds", saw, "no prefix is ever reused: affinity gains nothing", "prefix caching"
        )
    return Finding("cached tokens", "gives", saw)


def _streaming(seen: Seen) -> Finding:
    answer = seen.again
    if answer.status != 200 or not answer.content_type.startswith("text/event-stream"):
        saw = f"a stream gets {answer.status or 'no answer'}, {answer.content_type or answer.error}"
        return Finding("streaming", "withholds", saw, "time to first token is not learned")
    if answer.usage.completion_tokens is None:
        without = "what a stream generated is not known: decode time is learned from whole answers alone"
        return Finding("streaming", "withholds", "no usage in a stream that asks for it (include_usage)", without)
    parts = "one part" if answer.parts == 1 else f"{answer.parts} parts"
    return Finding("streaming", "gives", f"in {parts}, usage in the last")


def _metrics(seen: Seen) -> Finding:
    flag = seen.dialect.flags.get("metrics", "") if seen.is_known else ""
    path = seen.dialect.metrics_path
    if seen.report is None:
        status = "does not answer" if seen.metrics_status is None else f"answers {seen.metrics_status}"
        saw = f"{path} {status if seen.metrics_status != 200 else 'has none of a known engine'}"
        without = f"{_WITHOUT['waiting']}; a restart is taken for granted after each outage"
        return Finding("metrics", "withholds", saw, without, flag)
    has: set[Reading] = set()
    for name in seen.metrics:
        reading = seen.dialect.metrics[name]
        has |= {reading, *_COUNTED_AS.get(reading, ())}
    lost = sorted({text for reading, text in _WITHOUT.items() if reading not in has and _of(seen, reading)})
    saw = f"{len(seen.metrics)} of those that are read"
    if lost:
        return Finding("metrics", "withholds", saw, "; ".join(lost), flag)
    if seen.report.process_start_s is None:
        return Finding("metrics", "gives", f"{saw}; no start time: a restart shows in counters that fall")
    return Finding("metrics", "gives", saw)


def _of(seen: Seen, reading: Reading) -> bool:
    """Whether the dialect has it at all."""
    values = set(seen.dialect.metrics.values())
    return reading in values or any(reading in _COUNTED_AS.get(value, ()) for value in values)


def _kv_events(seen: Seen) -> Finding:
    events = seen.info.kv_events
    if events is not None:
        replay = f", replay {events.replay_port}" if events.replay_port else ", no replay: what is missed is lost"
        saw = f"at port {events.events_port}{replay}; `fairlead up` follows them"
        if seen.report is not None and seen.report.kv_block_tokens == 1:
            without = (
                "blocks are one token each: one in 16 is kept, and prompts that branch off between are not matched"
            )
            return Finding("KV events", "mind", saw, without, "--page-size 16")
        return Finding("KV events", "gives", saw)
    flag = seen.dialect.flags.get("kv_events", "") if seen.is_known else ""
    without = "evictions are estimated from the size of its cache, and a flush is not noticed"
    if seen.dialect.info_path == "/version":
        saw = "it cannot say whether it publishes them; if it does, write kv_events at its endpoint"
        return Finding("KV events", "mind", saw, without, flag)
    return Finding("KV events", "withholds", "not published, or not over TCP", without, flag)


def _health(seen: Seen) -> Finding:
    path = seen.dialect.health_path
    own, usual = seen.health_ms.get(path), seen.health_ms.get("/health")
    if own is None:
        return Finding("health", "mind", f"no {path}; that it answers at all counts as healthy")
    saw = f"{path} in {own:.0f} ms"
    if usual is not None and usual >= _SLOW_PROBE_MS and path != "/health":
        saw += f", which is probed; /health takes {usual:.0f} ms, so give other probes 10 s or this path"
        return Finding("health", "mind", saw)
    if own >= _SLOW_PROBE_MS:
        without = "a busy server may be ejected"
        return Finding("health", "mind", saw, without, "observe.timeout_ms in fairlead.yaml well above it")
    return Finding("health", "gives", saw)


def _queue(seen: Seen) -> Finding:
    most = seen.info.max_queued_requests
    if most is not None:
        saw = f"at most {most} wait; past that a whole request gets 503, which Envoy sends elsewhere, and a stream gets"
        without = "another try: a stream's 200 has reached the client before its error event"
        return Finding("queue", "mind", f"{saw} 200 with an error event", without, "no --max-queued-requests")
    if seen.is_known:
        return Finding("queue", "gives", "no limit: it never says that it is full, requests wait")
    return Finding("queue", "mind", "unknown; a 429, or a 503 while requests wait, counts as full and not as a failure")
