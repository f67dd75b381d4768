"""The names that clients give to their images and clips: `uuid` in vLLM's content parts, `content_hash` in SGLang's.

vLLM takes such a name for the key of all that it caches of an image, and compares nothing else. Whoever knows or
guesses another tenant's asks about that one's image; whoever comes first with a name gives everybody his; and two
images of different sizes under one name are told to end the engine. So names are made `null`: then vLLM hashes what it
gets, as seen on a real server (`tests/lab/test_images.py`). SGLang believes a hash only with
`--trust-mm-content-hashes`, and then it is a router's to say it.

Sources: `get_mm_hashes` in `multimodal/processing/inputs.py` of vLLM 0.32, and its issue 55547; of SGLang 0.5.23
`multimodal/media_artifacts/base.py`.
"""

from __future__ import annotations

import re
from typing import Final

from fairlead.api.spans import MOST_SPANS, Span

MEDIA_NAMES: Final = ("uuid", "content_hash")


def _escaped_or_not(name: str) -> str:
    return "".join(f"(?:{letter}|\\\\u00{ord(letter):02x}|\\\\u00{ord(letter):02X})" for letter in name)


_KEY: Final = re.compile(rf'"(?:{"|".join(map(_escaped_or_not, MEDIA_NAMES))})"\s*:\s*(?![\s{{\[n])'.encode())
_VALUE: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[^\s,\]}]+', re.DOTALL)
_BACKSLASH: Final = ord("\\")


def may_have_media(body: bytes) -> bool:
    """Of a body whose parts were not read."""
    return b"image" in body or b"video" in body or b"audio" in body or b"\\u00" in body


def names_in(body: bytes) -> tuple[Span, ...] | None:
    """Where names stand in a JSON body, in order; None for more than MOST_SPANS.

    Every text or number under such a key counts, wherever it is: only lists and objects do not, as a tool's schema has.
    """
    if b'uuid"' not in body and b'content_hash"' not in body and b"\\u00" not in body:  # most: a tenth of the time
        return ()
    spans: list[Span] = []
    for key in _KEY.finditer(body):
        if key.start() and body[key.start() - 1] == _BACKSLASH:  # the end of a longer key
            continue
        value = _VALUE.match(body, key.end())
        if value is not None:
            if len(spans) == MOST_SPANS:
                return None
            spans.append(value.span())
    return tuple(spans)
