"""Facts about one request: all that a policy may know of it, from headers and the parsed prompt."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest

from fairlead.api.body_limits import MOST_ATTEMPTED
from fairlead.api.media import PADDING
from fairlead.api.prompt import Prompt
from fairlead.core import language, lengths, prefix
from fairlead.core.objective import Slo
from fairlead.core.spread import Spread, make_spread
from fairlead.core.text_kinds import Slice, slices
from fairlead.core.token_model import RATES_BEFORE, Features, Rates, count

_ESCAPED_BYTES: Final = 6  # of JSON for one character

_MOST_QUESTION_BYTES: Final = 128


class Turn(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A prompt, or the first part of one that an engine has already answered: all of it, to the last byte."""

    key: int  # equal for equal texts with the same cache key and tenant
    blocks: int  # whole ones that it has
    text_bytes: int
    end: int  # in bytes of the text, of the answer to it if that is in the text

    def seeded(self, seed: bytes) -> Turn:
        return msgspec.structs.replace(self, key=prefix.seeded((self.key,), seed)[0])


class RequestFacts(msgspec.Struct, frozen=True, gc=False):
    """One request, as the policies see it."""

    model: str | None  # a served model or a route, as the client asked; None: nothing names one, any endpoint will do
    tokens: int  # of the prompt, estimated
    max_output_tokens: int | None  # that the client allows
    language: str  # one of language.LANGUAGES
    bucket: int  # index into lengths.BUCKETS
    attempted: tuple[str, ...] = ()  # models that answered wrongly, in order, with repeats
    session: bytes | None = None  # a digest: a session id may be of any length
    prefix: tuple[int, ...] = ()  # the hash chain of the prompt
    block_tokens: float = 0.0  # of the prompt, for each block of `prefix`
    question: bytes = b""  # as a client that checks its answers names it: the same for all attempts; for the log
    unread: bool = False  # its body was not read, so nothing but its model is known
    media: int = 0  # images and the like in the prompt
    features: Features = ()  # what its tokens are counted by; none where they are not those of its text alone
    spread: Spread | None = None  # of its tokens over its text; None: as of `block_tokens` everywhere
    turn: Turn | None = None  # the whole prompt, which its engine will have answered
    last_turn: Turn | None = None  # the conversation before its last answer, and that answer
    task: str = ""  # see `core.task_rules`
    slo: Slo | None = None
    may_split: bool = False  # one endpoint can compute its prompt and another decode: see `core.prefill_decode`
    adapter: str = ""  # the model is one, and this is its name; its base model's slots are few
    answers: int = 1  # that it asks for, decoded alongside each other
    several: bool = False  # texts are made at the same time, and counted together
    answer_length: float = 1.0  # of its tenant's answers, over the usual one: for what it is charged
    cause: int = 0  # stands for all that its client sent, should engines fail at it; its tenant's alone; 0: not known
    name: str = ""  # what engines call the model, where it is an adapter or a second name; empty: by their own

    def tokens_in(self, blocks: int) -> int:
        """Tokens of the prompt in its first `blocks` of the chain, with the head that stands before them."""
        if not blocks:
            return 0
        return int(
            blocks * self.block_tokens if self.spread is None else self.spread.before(blocks * prefix.BLOCK_BYTES)
        )

    def called(self, name: str, *, is_adapter: bool) -> RequestFacts:
        """The same for a name that engines have besides their model's; an adapter's KV is its own."""
        if not is_adapter:
            return msgspec.structs.replace(self, model=name, name=name)
        return msgspec.structs.replace(self.seeded(name.encode()), model=name, name=name, adapter=name, may_split=False)

    def seeded(self, seed: bytes) -> RequestFacts:
        """The same, with another cache."""
        return msgspec.structs.replace(
            self,
            prefix=prefix.seeded(self.prefix, seed),
            turn=self.turn and self.turn.seeded(seed),
            last_turn=self.last_turn and self.last_turn.seeded(seed),
        )

    def tokens_around(self, turn: Turn) -> tuple[int, int]:
        """Tokens of the prompt up to the end of the part that `turn` is, and to the end of the answer to it."""
        if self.spread is None:
            return 0, 0
        return int(self.spread.before(turn.text_bytes)), int(self.spread.before(turn.end))


def unread_facts(model: str | None) -> RequestFacts:
    """Facts of a request whose body is not read; `model` where its path names one."""
    return RequestFacts(model, 0, None, "other", 0, unread=True)


class Measured(msgspec.Struct, frozen=True, gc=False):
    """All that routing needs of a prompt's text, in few bytes however long the text is."""

    language: str
    text_bytes: int  # without what pads media
    slices: tuple[Slice, ...]
    prefix: tuple[int, ...]
    turn: Turn | None
    last_turn: Turn | None
    cause: int = 0  # see `RequestFacts`


def measure(prompt: Prompt, tenant: bytes) -> Measured:
    """Linear in the text. Prefixes of one `tenant` are not those of another."""
    text, reply = prompt.text, prompt.reply
    seed = prefix_seed(prompt, tenant)
    chain = prefix.chain(text, seed)
    last = None
    if reply is not None and (before := reply[0]) > 0:
        blocks = min(before // prefix.BLOCK_BYTES, len(chain))
        last = Turn(prefix.key_of(text, before, chain, seed), blocks, before, reply[1])
    turn = Turn(prefix.key_of(text, len(text), chain, seed), len(chain), len(text), len(text)) if text else None
    read = text.replace(PADDING, b"") if prompt.placed else text
    cause = xxh3_64_intdigest(tenant, prompt.digest) if prompt.digest else 0
    return Measured(_language(prompt.user_text), len(read), slices(read), chain, turn, last, cause)


def prefix_seed(prompt: Prompt, tenant: bytes) -> int:
    """Of a prompt's hash chain: another for each tenant, and for each `Prompt.cache_key`."""
    if not tenant and not prompt.cache_key:
        return 0
    return xxh3_64_intdigest(prompt.cache_key, xxh3_64_intdigest(tenant))


def make_facts(
    prompt: Prompt,
    model: str,
    attempted: tuple[str, ...] = (),
    session_id: bytes | None = None,
    tenant: bytes = b"",
    rates: Rates = RATES_BEFORE,
    measured: Measured | None = None,
    question: bytes = b"",
    task: str = "",
) -> RequestFacts:
    """Facts of a parsed request to `model`; `attempted` is the header's list and, when given, wins over the body's.

    Prefixes and sessions of one `tenant` are not those of another. `rates` count the tokens as the model does.
    `measured` is what `measure` gave where the prompt was read elsewhere.
    """
    if measured is None:
        measured = measure(prompt, tenant)
    features, spread = make_spread(measured.slices, measured.text_bytes, prompt, rates)
    tokens = max(1, int(count(features, rates)))
    facts = RequestFacts(  # by position: a microsecond less than by name
        model,
        tokens,
        prompt.max_output_tokens,
        measured.language,
        lengths.bucket_of(tokens),
        (attempted or prompt.attempted_models)[:MOST_ATTEMPTED],
        session_key(session_id, tenant) if session_id else None,
        measured.prefix,
        tokens * prefix.BLOCK_BYTES / max(1, measured.text_bytes + len(PADDING) * len(prompt.placed)),
        question[:_MOST_QUESTION_BYTES],
        False,
        prompt.media,
        features if prompt.is_all else (),
        spread,
        measured.turn,
        measured.last_turn,
        task,
        answers=prompt.answers,
        several=prompt.several,
        cause=measured.cause,
    )
    if prompt.is_told:
        facts = msgspec.structs.replace(facts, prefix=(), turn=None, last_turn=None)
    return facts.seeded(prompt.adapter.encode()) if prompt.adapter else facts


def session_key(session_id: bytes, tenant: bytes = b"") -> bytes:
    """Sixteen bytes that stand for a tenant's session, so that a table of sessions is bounded by their number."""
    return blake2b(session_id, digest_size=16, key=blake2b(tenant).digest() if tenant else b"").digest()


def _language(raw: bytes) -> str:
    """Of JSON-escaped UTF-8, by its start and its end; see `language.of_prompt`."""
    reach = language.SAMPLE_CHARACTERS * _ESCAPED_BYTES
    if len(raw) > 2 * reach:
        raw = raw[:reach] + b"\n" + raw[-reach:]
    if raw.isascii() and b"\\u" not in raw:  # the result of `detect`, in a fifth of the time
        return "en"
    # A text with raw UTF-8 escapes no letter: `\u` is then of a path (`C:\\users`) or of a sign (Go's `\u003c` is `<`).
    # Only `raw_unicode_escape` takes any cut without a warning. Halves of a surrogate pair are of no script.
    escaped = raw.isascii()
    return language.of_prompt(raw.decode("raw_unicode_escape" if escaped else "utf-8", "ignore"))
