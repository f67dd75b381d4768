"""The sections on what requests share: `sessions`, `prefixes`, `tenants` and `tasks`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, PlainSerializer, model_validator

from fairlead.addresses import HeaderName, Store, without_password
from fairlead.api.headers import SESSION_ID
from fairlead.config.errors import InvalidAtError
from fairlead.config.values import TaskName
from fairlead.section import Section

_HeaderNames = Annotated[tuple[HeaderName, ...], Field(strict=False)]


class Sessions(Section):
    """The first of `headers` that a request carries names its session.

    With a Redis store, the sidecars that share it agree on session bindings and see each other's load.
    """

    store: Annotated[Store, PlainSerializer(without_password), Field(repr=False)] = "memory"
    store_password_file: Annotated[str, Field(min_length=1)] | None = None  # one line; relative to the configuration
    ttl: Annotated[int, Field(ge=1, le=30 * 86400)] = 3600  # seconds without a request
    max_entries: Annotated[int, Field(ge=1, le=20_000_000)] = 1_000_000  # about 220 bytes each
    headers: _HeaderNames = (SESSION_ID.decode(), "x-claude-code-session-id", "session-id")

    @model_validator(mode="after")
    def _one_password(self) -> Self:
        if self.store_password_file is not None:
            if self.store == "memory":
                raise InvalidAtError(("store_password_file",), "store: memory needs no password; remove one of them")
            if ":" in self.store.partition("://")[2].rpartition("@")[0]:
                raise InvalidAtError(("store_password_file",), "store has a password too; remove one of them")
        return self

    def store_password_path(self, folder: Path) -> Path | None:
        return None if self.store_password_file is None else folder / self.store_password_file


class Clients(Section):
    """Who may ask. Without this section everybody who reaches the gateway may; see docs/clients.md."""

    keys: Annotated[str, Field(min_length=1)]  # a file of lines `NAME SHA256-OF-THE-KEY`, relative to the configuration


class Prefixes(Section):
    """The router's own index of what is cached where."""

    max_bytes: Annotated[int, Field(ge=1 << 20)] = 256 * 1024 * 1024
    ttl: Annotated[float, Field(gt=0)] = 1200.0  # seconds without a request; engines evict sooner when they are full


class Tenants(Section):
    """With a header, each of its values has separate prefixes and sessions, here and in the engines' caches: neither
    the time of an answer nor its count of cached tokens reveals anything about others.

    The bootstrap removes the header from clients' requests, unless something before Envoy sets it and so vouches for
    it.
    """

    header: HeaderName | None = None
    vouched_by: Annotated[str, Field(min_length=1)] | None = (
        None  # who sets the header: documents it, and tells the bootstrap
    )
    separate_caches: bool = True  # by a cache_salt in each request; false: engines share what all have cached


class Tasks(Section):
    """Which task a request is of, unless its header `x-fairlead-task` names one."""

    routes: dict[str, TaskName] = Field(default_factory=dict)  # by route or model
    with_tools: TaskName | None = None  # of requests that bring tools
