"""Facts about one request: all that a policy may know of it, from headers and the parsed prompt."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest

from fairlead.core import language, lengths, prefix
from fairlead.core.prompt import MEDIA_TOKENS, Prompt

MAX_ATTEMPTED: Final = 32  # a longer list says nothing more, and penalty**attempts must stay a float

_ESCAPED_BYTES: Final = 6  # of JSON for one character


class RequestFacts(msgspec.Struct, frozen=True, gc=False):
    """One request, as the policies see it."""

    model: str  # a served model or a route, as the client asked
    tokens: int  # of the prompt, estimated
    max_output_tokens: int | None  # that the client allows
    language: str  # one of language.LANGUAGES
    bucket: int  # index into lengths.BUCKETS
    attempted: tuple[str, ...] = ()  # models that answered wrongly, in order, with repeats
    session: bytes | None = None  # a digest: a session id may be of any length
    prefix: tuple[int, ...] = ()  # the hash chain of the prompt
    block_tokens: float = 0.0  # of the prompt, for each block of `prefix`


def _as_estimated(_: str) -> float:
    return 1.0


def make_facts(
    prompt: Prompt,
    model: str,
    attempted: tuple[str, ...] = (),
    session_id: bytes | None = None,
    tenant: bytes = b"",
    tokens_ratio: Callable[[str], float] = _as_estimated,
) -> RequestFacts:
    """Facts of a parsed request to `model`; `attempted` is the header's list and, when given, wins over the body's.

    Prefixes and sessions of one `tenant` are not those of another. `tokens_ratio` gives, by language, the real tokens
    for each estimated one.
    """
    spoken = language.detect(_sample(prompt.user_text))
    text_tokens = lengths.estimate_tokens(prompt.text, spoken) * tokens_ratio(spoken)
    tokens = max(1, int(text_tokens)) + prompt.media * MEDIA_TOKENS
    return RequestFacts(
        model=model,
        tokens=tokens,
        max_output_tokens=prompt.max_output_tokens or None,
        language=spoken,
        bucket=lengths.bucket_of(tokens),
        attempted=(attempted or prompt.attempted_models)[:MAX_ATTEMPTED],
        session=session_key(session_id, tenant) if session_id else None,
        prefix=prefix.chain(prompt.text, xxh3_64_intdigest(tenant) if tenant else 0),
        block_tokens=text_tokens * prefix.BLOCK_BYTES / max(1, len(prompt.text)),
    )


def session_key(session_id: bytes, tenant: bytes = b"") -> bytes:
    """Sixteen bytes that stand for a tenant's session, so that a table of sessions is bounded by their number."""
    return blake2b(session_id, digest_size=16, key=blake2b(tenant).digest() if tenant else b"").digest()


def _sample(raw: bytes) -> str:
    """The start and the end of JSON-escaped UTF-8, as characters; see `language.sample`."""
    reach = language.SAMPLE_CHARACTERS * _ESCAPED_BYTES
    if len(raw) > 2 * reach:
        raw = raw[:reach] + b"\n" + raw[-reach:]
    # Beside UTF-8 no letter is escaped: there `\u` is of a path (`C:\\users`) or of a sign (Go's `\u003c` is `<`).
    # Only `raw_unicode_escape` takes any cut without a warning. Halves of a surrogate pair are of no script.
    escaped = b"\\" in raw and b"\\u" in raw and raw.isascii()
    return language.sample(raw.decode("raw_unicode_escape" if escaped else "utf-8", "ignore"))
