"""Rows of the decision log: what the request path recorded, turned into values that may be stored in a file.

Prompt text, session and request ids and names that clients made up are not stored: ids become digests under a key that
only this process knows, and blocks of prompts become numbers in the order of their first use.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable
from hashlib import blake2b
from typing import Any, Final

from fairlead.core.lengths import BUCKETS
from fairlead.core.moves import describe_move
from fairlead.core.policy import Ended

COLUMNS: Final = {
    "at_s": "float64",  # Unix time of the decision
    "session": "string",  # digest; null: the request named none
    "request": "string",  # digest of the request id
    "prompt": "string",  # digest of the prompt; equal for equal prompts, so also for a client's next try
    "asked": "string",  # model or route
    "attempted": "strings",  # models of the pool that had answered this wrongly before
    "language": "string",
    "bucket": "string",
    "estimated_tokens": "int32",  # estimate of the prompt's tokens used for routing
    "prompt_tokens": "int32",  # the engine's count where it is known, else the estimate
    "blocks": "runs",  # the prompt's blocks as runs: [first number, length]
    "block_tokens": "float32",  # tokens of each block
    "model": "string",  # chosen model
    "endpoint": "string",  # endpoint that served
    "decision": "string",  # cost, affinity, migration, fallback
    "migration": "string",  # how its session moves and where to, or why it stays on a hot endpoint; null: neither
    "considered": "int32",  # number of candidate endpoints
    "expected_tokens": "int32",  # prompt tokens expected in the cache of the chosen endpoint
    "queued_tokens": "int32",  # waiting there for prefill before this request
    "rtt_ms": "float32",
    "cost_ms": "float32",  # cost of the chosen endpoint; null: the policy's score is not in milliseconds
    "success_probability": "float32",  # null in the same case
    "code": "int16",  # HTTP status; 499: the client left first
    "evicted": "boolean",  # ended for a request of a higher priority; its code is 429, the client had 200
    "total_ms": "float64",  # from the decision to the end
    "waited_ms": "float64",  # before the decision, in the admission queue; 0: it began at once
    "first_token_ms": "float64",  # this and the next two: null unless the answer was observed in full
    "cached_tokens": "int32",
    "output_tokens": "int32",
    "question": "string",  # digest of the question's id, equal for its attempts; null: the client named none
    "last": "boolean",  # the client's last attempt, whatever the answer; null in the same case
}

BLOCKS_IN_ONE: Final = 4  # links of the prefix chain: 2 KiB, some 512 tokens; a link identifies all before it
MOST_BLOCK_NAMES: Final = 1 << 18  # some 30 MB; a block not used for longer gets a new number
_DIGEST_BYTES: Final = 8


class Anonymous:
    """Makes anonymous rows. Digests of different instances are unrelated."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._numbers: dict[int, int] = {}  # by link of a prefix chain: recently used ones
        self._older: dict[int, int] = {}  # older ones, not used since `_numbers` was last full
        self._next_number = 0

    def row(self, ended: Ended, ended_s: float, models: Collection[str]) -> tuple[Any, ...]:
        """Values in the order of COLUMNS. It ended at the Unix time `ended_s`; `models` are the pool's."""
        request, decision, outcome = ended.request, ended.decision, ended.outcome
        terms = decision.terms(decision.best[0]) if decision.best else None
        counted = outcome.prompt_tokens
        question, _, marks = request.question.partition(b";")
        return (
            ended_s - outcome.total_ms / 1e3,
            None if request.session is None else self._digest(request.session, b"session"),
            self._digest(ended.request_id, b"request"),
            self._digest(b"%x %d" % (request.prefix[-1] if request.prefix else 0, request.tokens), b"prompt"),
            request.model,
            [model for model in request.attempted if model in models],
            request.language,
            BUCKETS[request.bucket],
            request.tokens,
            request.tokens if counted is None else counted,
            self._runs(request.prefix[BLOCKS_IN_ONE - 1 :: BLOCKS_IN_ONE]),
            request.block_tokens * BLOCKS_IN_ONE,
            decision.model,
            ended.address,
            decision.why,
            describe_move(decision.migration) or None,
            decision.considered,
            decision.cached_tokens,
            decision.queued_tokens,
            decision.rtt_ms,
            None if terms is None else terms.total_ms(),
            None if terms is None else terms.success_probability,
            outcome.code,
            outcome.evicted,
            outcome.total_ms,
            ended.waited_ms,
            outcome.first_token_ms,
            outcome.cached_tokens,
            outcome.completion_tokens,
            self._digest(question, b"question") if question else None,
            marks.strip() == b"last" if question else None,
        )

    def _digest(self, value: bytes, of: bytes) -> str:
        return blake2b(value, digest_size=_DIGEST_BYTES, key=self._key, person=of).hexdigest()

    def _runs(self, links: Iterable[int]) -> list[list[int]]:
        numbers, older = self._numbers, self._older
        runs: list[list[int]] = []
        following = -1
        for link in links:
            number = numbers.get(link)
            if number is None:
                number = older.get(link, self._next_number)
                if number == self._next_number:
                    self._next_number += 1
                numbers[link] = number
            if number == following:
                runs[-1][1] += 1
            else:
                runs.append([number, 1])
            following = number + 1
        if len(numbers) >= MOST_BLOCK_NAMES // 2:
            self._numbers, self._older = {}, numbers
        return runs
