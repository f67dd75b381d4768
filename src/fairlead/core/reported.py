"""What an engine last reported of itself. None is unknown, which is not 0.

Our own counts of what was sent to it are in `core.ledger`. Times are of the clock that the reader passes in.
"""

from __future__ import annotations

import msgspec


class AnswerSums(msgspec.Struct, frozen=True, gc=False):
    """Of the answers that an engine has ended since it started, on all of its data-parallel ranks; as it timed them."""

    answers: int
    prefill_s: float | None = None  # from the start of a prompt to its first token, without its wait in the queue
    computed_tokens: int | None = None  # of prompts
    decode_s: float | None = None  # from the first token to the last
    steps: int | None = None  # tokens after the first
    ranks: int = 1


class EngineReport(msgspec.Struct, frozen=True, gc=False):
    """The numbers of an engine's metrics page, summed over its data-parallel ranks; counters are since its start.

    `stale` is true when the page could not be read lately, or when an engine that reports work shows no movement: vLLM
    writes its gauges only when it steps, so an idle one shows its last step forever.
    """

    running_requests: int | None = None
    waiting_requests: int | None = None
    kv_usage: float | None = None  # 0 to 1, of requests that run; cached blocks that none uses count as free
    kv_capacity_tokens: int | None = None
    kv_block_tokens: int | None = None
    caches_prefixes: bool = True  # False: it says that it was started without
    kv_dtype: str | None = None
    prefix_queried_tokens: int | None = None
    prefix_hit_tokens: int | None = None
    prompt_tokens: int | None = None
    generated_tokens: int | None = None
    adapter_slots: int | None = None  # of one rank: adapters that it can have loaded at a time
    running_adapters: tuple[str, ...] = ()  # of requests that run; one that is loaded and idle is not named
    waiting_adapters: tuple[str, ...] = ()
    sums: AnswerSums | None = None
    process_start_s: float | None = None  # Unix time
    read_s: float | None = None
    changed_s: float | None = None  # when any number was last seen to move
    stale: bool = True

    @property
    def works(self) -> bool:
        """Whether it reports any requests."""
        return bool(self.running_requests) or bool(self.waiting_requests)


UNKNOWN = EngineReport()


class EngineIdentity(msgspec.Struct, frozen=True, gc=False):
    """What an engine reports that it is; asked after each start, and of its models now and then."""

    version: str | None = None
    models: tuple[str, ...] = ()  # its own names and its adapters, as requests say them
    max_model_len: int | None = None
    adapters: tuple[str, ...] = ()  # of its models, those that name a parent
    serves_alone: bool = True  # False: it does one half of a request, and a plain one fails there
    max_queued_requests: int | None = None  # past which it refuses; None: unknown, or no limit
    caches_prefixes: bool = True  # False: it says that it was started without
    engine: str = ""  # its dialect, by what it lists; empty: it lists nothing


UNIDENTIFIED = EngineIdentity()


def following(before: EngineReport, after: EngineReport, stale_s: float) -> EngineReport:
    """`after`, a page read just now, with what only a comparison shows: whether its numbers move."""
    same = msgspec.structs.replace(after, read_s=before.read_s, changed_s=before.changed_s, stale=before.stale)
    if same != before or before.changed_s is None or after.read_s is None:
        return after
    stale = after.works and after.read_s - before.changed_s > stale_s
    return msgspec.structs.replace(after, changed_s=before.changed_s, stale=stale)


def aged(report: EngineReport, now_s: float, stale_s: float) -> EngineReport:
    """`report` when no newer one could be read by `now_s`."""
    if report.stale or report.read_s is None or now_s - report.read_s <= stale_s:
        return report
    return msgspec.structs.replace(report, stale=True)


def restarted(before: EngineReport, after: EngineReport, *, was_gone: bool = False) -> bool:
    """Whether another process wrote `after`: another start time or, where there is none, a counter that fell.

    An engine that `was_gone` in between, not answering, may also have been busy or cut off: counters that went on say
    so. Where no counter can tell, it restarted, for believing in a cache that is gone costs more than forgetting one.
    """
    if before.process_start_s is not None and after.process_start_s is not None:
        return before.process_start_s != after.process_start_s
    counters = (
        (before.prompt_tokens, after.prompt_tokens),
        (before.generated_tokens, after.generated_tokens),
        (before.prefix_queried_tokens, after.prefix_queried_tokens),
    )
    known = [(was, is_now) for was, is_now in counters if was]
    if any(is_now is not None and is_now < was for was, is_now in known):
        return True
    return was_gone and (not known or any(is_now is None for _, is_now in known))
