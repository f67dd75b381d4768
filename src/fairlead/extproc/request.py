"""One HTTP request as the picker gets it, and what it asks for."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from fairlead.api.prompt import Prompt
from fairlead.api.spans import Span
from fairlead.core.trace import Trace
from fairlead.extproc.body import Body
from fairlead.extproc.headers import Headers
from fairlead.extproc.reuse import Shaped


class HttpRequest(msgspec.Struct, frozen=True, gc=False):
    """A whole request of a client, and what the gateway allows for it."""

    path: str  # plain (`api.paths.plain_path`)
    headers: Headers
    id: bytes
    body: Body
    subset: Collection[str] | None = None  # of endpoints; None: all
    can_hold: bool = True  # the gateway can hold the answer back for a judge
    trace: Trace | None = None


class Asked(msgspec.Struct, frozen=True, gc=False):
    """What a request asks for, and what is needed to send it in another form."""

    name: str  # of a model or route; empty where the API names none
    route: str  # as the client named it, where that is known to the pool; `name` where it is not, or nothing split it
    prompt: Prompt
    spans: Mapping[str, Span] | None  # of the body's keys; None: not looked for
    shaped: Shaped | None = None  # by context reuse
    written: str = ""  # what an engine takes the body to name: its model, or the adapter of it that `lora_path` names
    salt: bytes = b""  # to be written into the body, see `api.cache_salt`
