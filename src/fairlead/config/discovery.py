"""`discovery`: where endpoints come from in addition to `pool.endpoints`. Sources are used together."""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from fairlead.addresses import host_and_port, is_ip
from fairlead.config.errors import InvalidAtError
from fairlead.config.kubernetes import Kubernetes
from fairlead.config.pool import Engine
from fairlead.config.values import Names
from fairlead.section import Section


def _ip_address(value: str) -> str:
    host, _ = host_and_port(value)
    if not is_ip(host):
        raise ValueError(f'"{host}" is a name; write the IP address of the DNS server, for example 10.0.0.10:53')
    return value


IpAddress = Annotated[str, AfterValidator(_ip_address)]


class DnsName(Section):
    """A name whose records are engines."""

    name: Annotated[str, Field(min_length=1)]
    port: Annotated[int, Field(ge=1, le=65535)] | None = None  # of every engine; without it SRV records name it
    models: Names = ()  # that each serves; empty: each is asked
    engine: Engine | None = None  # empty: as each says of itself
    region: str = ""

    @model_validator(mode="after")
    def _is_a_name_with_a_port(self) -> Self:
        if not re.fullmatch(
            r"(?=.{1,253}$)([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.)*[A-Za-z0-9_-]{1,63}\.?", self.name
        ):
            raise InvalidAtError(
                ("name",), f'"{self.name}" is no DNS name; write one as vllm.default.svc.cluster.local'
            )
        if self.port is None and not self.name.startswith("_"):
            message = (
                "is required for addresses; or write the name of SRV records, for example _http._tcp.vllm.default.svc"
            )
            raise InvalidAtError(("port",), message)
        return self


class Discovery(Section):
    """Each key is a source; see docs/discovery.md."""

    file: Annotated[str, Field(min_length=1)] | None = None  # YAML or JSON, relative to the configuration
    kubernetes: Kubernetes | None = None
    dns: Annotated[tuple[DnsName, ...], Field(strict=False)] = ()
    dns_servers: Annotated[tuple[IpAddress, ...], Field(strict=False)] = ()  # empty: the system's

    @model_validator(mode="after")
    def _each_name_once(self) -> Self:
        for index, each in enumerate(self.dns):
            first = next(i for i, other in enumerate(self.dns) if other.name == each.name)
            if first != index:
                message = f'"{each.name}" is already dns[{first}]; remove one of them'
                raise InvalidAtError(("dns", index, "name"), message)
        return self

    @property
    def is_used(self) -> bool:
        """Whether any source is named: the pool is then not known from the configuration alone."""
        return any(getattr(self, name) for name in type(self).model_fields if name != "dns_servers")
