"""Rows of the decision log: from what the request path leaves behind to values that may stand in a file.

No text of a prompt does, nor a session or request id, nor a name that a client made up: ids become digests under a key
that this process alone knows, and blocks of prompts become numbers in the order of their first use.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from fairlead.core.facts import RequestFacts
from fairlead.core.feedback import Outcome
from fairlead.core.lengths import BUCKETS
from fairlead.core.moves import told
from fairlead.core.router import Decision

COLUMNS: Final = {
    "at_s": "float64",  # Unix time of the decision
    "session": "string",  # digest; null: the request named none
    "request": "string",  # digest of the request id
    "prompt": "string",  # digest of the prompt; equal prompts have equal ones, a client's next try has
    "asked": "string",  # model or route
    "attempted": "strings",  # models of the pool that had answered wrongly before
    "language": "string",
    "bucket": "string",
    "estimated_tokens": "int32",  # of the prompt, as routing used them
    "prompt_tokens": "int32",  # the engine's count where it is known, else the estimate
    "blocks": "runs",  # of the prompt: [first number, how many in a row]
    "block_tokens": "float32",  # of each
    "model": "string",  # that was chosen
    "endpoint": "string",  # that served
    "decision": "string",  # cost, affinity, migration, fallback
    "migration": "string",  # how its session moves and where to, or why it stays on a hot host; null: neither
    "considered": "int32",  # endpoints
    "expected_tokens": "int32",  # of the prompt, that were taken for cached at the chosen endpoint
    "queued_tokens": "int32",  # waiting there for prefill before this request
    "rtt_ms": "float32",
    "cost_ms": "float32",  # of the chosen endpoint; null: the policy does not reckon in milliseconds
    "success_probability": "float32",  # null likewise
    "code": "int16",  # HTTP status; 499: the client left first
    "total_ms": "float64",  # from the decision to the end
    "first_token_ms": "float64",  # null, as the next two, unless the answer was observed in full
    "cached_tokens": "int32",
    "output_tokens": "int32",
}

BLOCKS_IN_ONE: Final = 4  # of the prefix chain: 2 KiB, some 512 tokens; a chain's link names all before it
MOST_BLOCK_NAMES: Final = 1 << 18  # some 30 MB; a block named longer ago than that gets another number
_DIGEST_BYTES: Final = 8


class Ended(NamedTuple):
    """One request that has ended, as the request path leaves it; nothing is made of it there."""

    request: RequestFacts
    decision: Decision
    outcome: Outcome
    endpoint: str
    request_id: bytes
    ended_s: float  # Unix time


class Anonymous:
    """Makes rows. Digests of two of these never agree."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._numbers: dict[int, int] = {}  # by link of a prefix chain, those used lately
        self._older: dict[int, int] = {}  # not used since `_numbers` was last full
        self._next_number = 0

    def row(self, ended: Ended, models: Collection[str]) -> tuple[Any, ...]:
        """Values in the order of COLUMNS; `models` are the pool's."""
        request, decision, outcome = ended.request, ended.decision, ended.outcome
        terms = decision.terms(decision.best[0]) if decision.best else None
        counted = outcome.prompt_tokens
        return (
            ended.ended_s - outcome.total_ms / 1e3,
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
            ended.endpoint,
            decision.why,
            told(decision.migration) or None,
            decision.considered,
            decision.cached_tokens,
            decision.queued_tokens,
            decision.rtt_ms,
            None if terms is None else terms.total_ms(),
            None if terms is None else terms.success_probability,
            outcome.code,
            outcome.total_ms,
            outcome.first_token_ms,
            outcome.cached_tokens,
            outcome.completion_tokens,
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
