"""The `gateway` section: the Envoy in front."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, PositiveInt, model_validator

from fairlead.addresses import Address, GrpcAddress, HeaderName
from fairlead.api.media_sources import ANY_DOMAIN, domain_of
from fairlead.config.errors import InvalidAtError
from fairlead.config.values import AbsolutePath
from fairlead.section import Section

_OF_ONE_REQUEST = re.compile(
    r"host|content-.*|transfer-encoding|connection|keep-alive|upgrade|te|trailer|expect|accept-encoding|x-fairlead-.*"
    r"|x-envoy-.*|x-gateway-destination-.*|x-request-id",
    re.IGNORECASE,
)

_MEMORY_BYTES, _BODIES_IN_MEMORY = 2 << 30, 64
# At rest it takes 75 MiB; a body is there twice while it goes to the sidecar or to an engine.
_LEAST_MEMORY_BYTES, _LEAST_BODIES_IN_MEMORY = 128 << 20, 4


def _passed_header(name: str) -> str:
    """Raises ValueError for a header that belongs to one request or one connection."""
    if _OF_ONE_REQUEST.fullmatch(name):
        raise ValueError(f'"{name}" belongs to one request, not to its client; remove it')
    return name


PassedHeaders = Annotated[tuple[Annotated[HeaderName, AfterValidator(_passed_header)], ...], Field(strict=False)]


def _open_path(value: str) -> str:
    """Raises ValueError if it cannot be a request path, or has `*` anywhere but as its last part."""
    plain = value.removesuffix("/*")
    if not re.fullmatch(r"(/[^\s?#*]*)?", plain) or value in ("", "/") or "//" in value:
        raise ValueError(f'"{value}" is not a path; write one like /v1/files, or /v1/files/* for all below it')
    return value


OpenPath = Annotated[str, AfterValidator(_open_path)]


def _media_domain(value: str) -> str:
    """Raises ValueError for anything but a name, an IP address or `*`."""
    domain = value.lower().rstrip(".")
    if value != ANY_DOMAIN and domain_of(f"http://{domain}/") != domain:
        raise ValueError(f'"{value}" is not a domain; write one like images.example.com, without scheme and port, or *')
    return domain


MediaDomain = Annotated[str, AfterValidator(_media_domain)]


class Gateway(Section):
    """The Envoy in front, as `fairlead envoy` writes it. Behind a gateway of your own only `fallbacks` and
    `allowed_media_domains` count.
    """

    listen: Address = "127.0.0.1:8080"
    fallbacks: Annotated[int, Field(ge=0, le=8)] = 2  # 0 behind ORIGINAL_DST gateways: they take one address only
    max_body_bytes: PositiveInt = 32 * 1024 * 1024
    # Of Envoy, as much as its container or machine has for it. Absent: 2 GiB, or 64 of the largest bodies.
    memory_bytes: PositiveInt | None = None
    processor_timeout_ms: PositiveInt = 1000  # after this Envoy goes on without the sidecar
    # The sidecars, in order of preference: Envoy asks the first healthy one. Empty: the one at listen.grpc.
    processors: Annotated[tuple[GrpcAddress, ...], Field(strict=False)] = ()
    paths: Annotated[
        tuple[OpenPath, ...], Field(strict=False)
    ] = ()  # open in addition to the inference APIs, models and health
    trust_clients: bool = (
        False  # with parameters that steer KV transfer between engines (kv_transfer_params and the like)
    )
    allowed_media_domains: Annotated[
        tuple[MediaDomain, ...], Field(strict=False)
    ] = ()  # from which engines may fetch a request's images and clips; *: from any, inside your network too
    test_endpoint_selection: bool = False  # any client may name endpoints: for the Gateway API's conformance suite only
    # Of a client's request, for those that a cascade makes: besides authorization, tracing, sessions and the tenant.
    inner_headers: PassedHeaders = ("x-api-key", "api-key")
    # How Envoy knows the engines: from the sidecar, as they come and go, or as a list in its bootstrap.
    endpoints: Literal["eds", "static"] = "eds"
    # A folder that the sidecar and Envoy share, for the pool as it was last: for an Envoy that starts before a sidecar.
    remember: AbsolutePath | None = None
    # The `model` of an answer: the engine's, or as the client asked; Envoy then shows us each part of a stream.
    answer_model: Literal["engine", "asked"] = "engine"
    show_endpoint: bool = True  # answers carry x-fairlead-endpoint, an address inside the network

    @property
    def most_memory_bytes(self) -> int:
        return self.memory_bytes or max(_MEMORY_BYTES, _BODIES_IN_MEMORY * self.max_body_bytes)

    @model_validator(mode="after")
    def _has_memory_for_bodies(self) -> Self:
        least_bytes = max(_LEAST_MEMORY_BYTES, _LEAST_BODIES_IN_MEMORY * self.max_body_bytes)
        if self.memory_bytes is not None and self.memory_bytes < least_bytes:
            bodies = f"{_LEAST_BODIES_IN_MEMORY} bodies of max_body_bytes"
            message = f"is too little for Envoy and {bodies}; write {least_bytes} or more, or lower max_body_bytes"
            raise InvalidAtError(("memory_bytes",), message)
        return self

    @model_validator(mode="after")
    def _remembers_what_it_follows(self) -> Self:
        if self.remember is not None and self.endpoints == "static":
            message = "has no use with endpoints: static, as Envoy then has its engines from the bootstrap; remove one"
            raise InvalidAtError(("remember",), message)
        return self

    @model_validator(mode="after")
    def _each_processor_once(self) -> Self:
        for index, address in enumerate(self.processors):
            first = self.processors.index(address)
            if first != index:
                message = f'"{address}" is already processors[{first}]; remove one of them'
                raise InvalidAtError(("processors", index), message)
        return self
