"""The salt by which engines keep what one tenant has cached from the others.

vLLM and SGLang share the KV of all prompts that begin alike, and an answer's `usage`, or the time to its first token,
tells whether somebody has sent such a prompt before; asked often enough, it tells the prompt. With a salt only requests
of the same salt share. Only the gateway knows the tenant, so it writes the salt, over a client's own: that one
separates further, and joins nobody's.

Sources: PromptPeek (NDSS 2025); OWASP's AISVS, 5.5.5; `cache_salt` of vLLM 0.32 (at most 128 characters, none of
`@/\\`) and of SGLang 0.5.23.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from fairlead.api.paths import GENERATION_PATHS

SALTED_PATHS: Final = GENERATION_PATHS | {
    "/v1/chat/completions/batch", "/classify", "/pooling", "/rerank", "/score", "/v1/classify", "/v1/pooling",
    "/v1/rerank", "/v1/score", "/v2/rerank",
}  # fmt: skip
LONGEST_NAME_BYTES: Final = 48  # of a tenant that is written as it is
_DIGEST_BYTES: Final = 12
_ABSENT: Final = frozenset({b"", b"null", b'""'})


def salt_of(tenant: bytes, own: bytes) -> bytes:
    """The JSON text of the salt of a tenant's request that has `own`, a JSON text, or none; empty: it needs none."""
    of_client = b"" if own in _ABSENT else b"-" + _digest(own)
    if not tenant:
        return b'"%b"' % of_client if of_client else b""
    name = tenant.hex().encode() if len(tenant) <= LONGEST_NAME_BYTES else b"h" + _digest(tenant)
    return b'"%b%b"' % (name, of_client)


def _digest(value: bytes) -> bytes:
    return blake2b(value, digest_size=_DIGEST_BYTES).hexdigest().encode()
