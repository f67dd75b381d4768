"""Context reuse on the request path: which requests it applies to, the forms they may take, and what was saved.

It may cost a request a few milliseconds, never its answer: whatever fails here, the request goes on as it came.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from fairlead.api import headers as names
from fairlead.api.paths import REUSE_PATHS
from fairlead.api.prompt import Malformed, Prompt, parse
from fairlead.context.blocks import Format
from fairlead.context.draft import Settings
from fairlead.context.reuse import ContextReuse, Plan
from fairlead.core.facts import RequestFacts, prefix_seed
from fairlead.core.policy import Decision
from fairlead.core.prefix import BLOCK_BYTES, chain
from fairlead.core.prefix_index import PrefixIndex

_MOST_SHOWN: Final = 64  # blocks of a permutation in the response header


class ReuseRule(msgspec.Struct, frozen=True):
    """What may be done to the requests of one route: `order` and `dedup`, for all or for those that ask for it."""

    always: frozenset[str]
    on_request: frozenset[str]
    formats: tuple[Format, ...]


class Shaped(msgspec.Struct, frozen=True):
    """A request that may take several forms: the prompt in the first, and the prefix chains of the others."""

    plan: Plan
    prompt: Prompt
    others: tuple[tuple[int, ...], ...]


class Settled(NamedTuple):
    """What reuse did to one request. `facts` and `body` are of the form that is sent."""

    facts: RequestFacts
    body: bytes
    header: bytes  # for the response; empty where nothing changed


class RequestReuse:
    """Its rules may be replaced between two requests."""

    def __init__(self, reuse: ContextReuse) -> None:
        self.reuse = reuse
        self._rules: Mapping[str, ReuseRule] = {}
        self._other_routes: ReuseRule | None = None
        self.has_rules = False

    def use(self, rules: Mapping[str, ReuseRule], other_routes: ReuseRule | None) -> None:
        """`rules` by model or route; `other_routes` for those that have none."""
        self._rules, self._other_routes = rules, other_routes
        self.has_rules = bool(rules) or other_routes is not None

    def shape(
        self,
        asked: str,
        path: str,
        headers: Mapping[bytes, bytes],
        body: bytes,
        prompt: Prompt,
        session: bytes,
        tenant: bytes,
    ) -> Shaped | None:
        """The forms that a request may take; None if it goes as it is."""
        settings = self._settings(asked, headers.get(names.CONTEXT_REUSE))
        if settings is None or path not in REUSE_PATHS:
            return None
        try:
            plan = self.reuse.plan(body, settings, tenant=tenant, session=session)
            return None if plan is None else _shaped(plan, path, prompt, tenant)
        except Exception:  # an internal error must not fail the request: it goes on, the cause goes to the log
            self._failed()
            return None

    def settle(
        self, shaped: Shaped, decision: Decision, facts: RequestFacts, body: bytes, index: PrefixIndex, now_s: float
    ) -> Settled:
        """The decision is made: remember what is sent, and forget permutations that no endpoint holds any more."""
        plan, number = shaped.plan, decision.form
        form = plan.forms[number]
        try:
            if not number and shaped.others:
                own = max(index.match(facts.prefix, now_s).values(), default=0)
                for other, prefixes in enumerate(shaped.others, 1):
                    if max(index.match(prefixes, now_s).values(), default=0) <= own:
                        self.reuse.drop(plan, other)
            self.reuse.commit(plan, number)
        except Exception:
            self._failed()
        if number:
            facts = msgspec.structs.replace(facts, prefix=shaped.others[number - 1])
        if form.body is None:
            return Settled(facts, body, b"")
        counts = self.reuse.counts
        dropped_tokens = int(form.dropped_bytes * facts.block_tokens / BLOCK_BYTES)
        counts.changed += 1
        counts.reordered_tokens += decision.form_tokens
        counts.dropped_tokens += dropped_tokens
        return Settled(facts, form.body, _header(plan, number, decision.form_tokens, dropped_tokens))

    def _settings(self, asked: str, header: bytes | None) -> Settings | None:
        rule = self._rules.get(asked) or self._other_routes
        if rule is None:
            return None
        does = rule.always
        if header is not None:
            wanted = {name.strip() for name in header.decode("latin-1").lower().split(",")}
            does = (rule.always | rule.on_request) & wanted
        return Settings("order" in does, "dedup" in does, rule.formats) if does else None

    def _failed(self) -> None:
        self.reuse.counts.failures += 1
        self.reuse.counts.last_failure = traceback.format_exc(limit=-8)


def _shaped(plan: Plan, path: str, prompt: Prompt, tenant: bytes) -> Shaped | None:
    first, *others = plan.forms
    if first.body is not None:
        read = parse(first.body, path)
        if isinstance(read, Malformed):
            return None
        prompt = msgspec.structs.replace(read, digest=prompt.digest)
    chains = []
    for form in others:
        other = prompt if form.body is None else parse(form.body, path)
        chains.append(() if isinstance(other, Malformed) else chain(other.text, prefix_seed(other, tenant)))
    return Shaped(plan, prompt, tuple(chains))


def _header(plan: Plan, number: int, reordered_tokens: int, dropped_tokens: int) -> bytes:
    """Tokens saved, and the last permutation of blocks, so that a client can map citations back."""
    header = f"reordered_tokens={reordered_tokens}, dropped_tokens={dropped_tokens}"
    permutations: Sequence[tuple[int, ...]] = [
        change.order for change in plan.forms[number].changes if change.is_reordered
    ]
    if permutations and len(permutations[-1]) <= _MOST_SHOWN:
        header += ", order=" + "-".join([str(block + 1) for block in permutations[-1]])
    return header.encode()
