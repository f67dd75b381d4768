"""The names that clients give to their images and clips: `uuid` in vLLM's content parts.

vLLM takes such a name for the key of all that it caches of an image, and compares nothing else. Whoever knows or
guesses another tenant's asks about that one's image; whoever comes first with a name gives everybody his; and two
images of different sizes under one name are told to end the engine. So names are made `null`: then vLLM hashes what it
gets. Read there, and not tried with a model that sees.

Sources: `get_mm_hashes` in `multimodal/processing/inputs.py` of vLLM 0.32, and its issue 55547.
"""

from __future__ import annotations

import re
from typing import Final

from fairlead.api.spans import MOST_SPANS, Span

_KEY: Final = re.compile(rb'"(?:u|\\u0075){2}(?:i|\\u0069)(?:d|\\u0064)"\s*:\s*(?![\s{\[n])')
_VALUE: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[^\s,\]}]+', re.DOTALL)
_MEDIA: Final = re.compile(rb"image|video|audio|\\u00")
_BACKSLASH: Final = ord("\\")


def may_have_media(body: bytes) -> bool:
    """Of a body whose parts were not read."""
    return _MEDIA.search(body) is not None


def names_in(body: bytes) -> tuple[Span, ...] | None:
    """Where names stand in a JSON body, in order; None for more than MOST_SPANS.

    Every text or number under such a key counts, wherever it is: only lists and objects do not, as a tool's schema has.
    """
    if b'uuid"' not in body and b"\\u00" not in body:  # most bodies: a tenth of the time
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
