"""`discovery.kubernetes`: which pods of a cluster are engines."""

from __future__ import annotations

import re
from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field, PositiveInt, model_validator

from fairlead.config.errors import InvalidAtError
from fairlead.section import Section

_ONE_OF: Final = ("inference_pool", "selector", "service")


def _name(value: str) -> str:
    """Raises ValueError if it cannot be the name of an object: it becomes part of a URL."""
    if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", value):
        raise ValueError(f'"{value}" is not the name of an object; write lower-case letters, digits, - and .')
    return value


Name = Annotated[str, AfterValidator(_name)]
Port = Annotated[PositiveInt, Field(le=65535)]


class Kubernetes(Section):
    """One of `inference_pool`, `selector` and `service`. Without `kubeconfig`: as the service account of the pod."""

    inference_pool: Name | None = None  # its selector and targetPorts count, and follow it
    selector: Annotated[str, Field(min_length=1)] | None = None  # of labels, as `kubectl get pods -l` takes it
    ports: Annotated[tuple[Port, ...], Field(strict=False, max_length=8)] = ()  # of these pods: each is an endpoint
    service: Name | None = None  # its EndpointSlices
    port: Annotated[str, Field(min_length=1)] | None = None  # of the service, by name or number; needed if it has more
    namespace: Name | None = None  # default: that of the pod, or of the kubeconfig's context
    kubeconfig: Annotated[str, Field(min_length=1)] | None = None  # a path, relative to the configuration; ~ is home
    context: Annotated[str, Field(min_length=1)] | None = None  # of the kubeconfig; default: its current one

    @model_validator(mode="after")
    def _names_one_kind(self) -> Self:
        named = [name for name in _ONE_OF if getattr(self, name) is not None]
        if len(named) != 1:
            found = f"it has {' and '.join(named)}" if named else "it has none"
            raise InvalidAtError((), f"needs one of {', '.join(_ONE_OF)}; {found}")
        for key, owner in (("ports", "selector"), ("port", "service"), ("context", "kubeconfig")):
            if getattr(self, key) and getattr(self, owner) is None:
                raise InvalidAtError((key,), f"only counts with {owner}; remove it, or write {owner}")
        if self.selector is not None and not self.ports:
            raise InvalidAtError(("ports",), "is required with a selector: the ports of each pod, for example [8000]")
        return self
