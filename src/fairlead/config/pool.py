"""The `pool` section: the engines that are known in advance, and the constants of their models."""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import AfterValidator, Field, PositiveInt, WithJsonSchema, model_validator

from fairlead import dialects
from fairlead.access import PLAIN, Access
from fairlead.addresses import Address, ZmqAddress
from fairlead.config.errors import InvalidAtError
from fairlead.config.values import AbsolutePath, TaskName
from fairlead.core.endpoint import Role
from fairlead.section import Section

_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST_NAME = rf"^{_LABEL}(\.{_LABEL})*$"


def _host_name(name: str) -> str:
    if not re.fullmatch(_HOST_NAME, name) or len(name) > 253:
        raise ValueError(f'"{name}" is not a host name; write one like engines.example.com')
    return name


HostName = Annotated[str, AfterValidator(_host_name), WithJsonSchema({"type": "string", "pattern": _HOST_NAME})]


class KvEvents(Section):
    """Where an engine publishes its KV events: the prefix index then evicts as the engine does."""

    events: ZmqAddress
    replay: ZmqAddress | None = None  # address for replaying missed events
    topic: str = ""


class KvTransfer(Section):
    """How an engine's KV reaches another: by a connector of the engine, or by a store that the engines share."""

    connector: dialects.KvConnector
    bootstrap: Address | None = None  # of the bootstrap server, of Mooncake or SGLang, as the other engines reach it
    megabytes_per_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1250.0  # to here, until requests teach it

    @model_validator(mode="after")
    def _mooncake_has_a_bootstrap_server(self) -> Self:
        if self.connector == "mooncake" and self.bootstrap is None:
            message = "is required with mooncake: host and VLLM_MOONCAKE_BOOTSTRAP_PORT of the engine"
            raise InvalidAtError(("bootstrap",), message)
        return self


class EngineTls(Section):
    """TLS to engines: both Envoy and the sidecar refuse one whose certificate is not signed by `ca` for this name."""

    ca: AbsolutePath  # PEM: who signs the engines' certificates
    server_name: HostName  # that they have


Milliseconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _engine(name: str) -> str:
    return dialects.dialect_called(name).name


Engine = Annotated[str, AfterValidator(_engine), WithJsonSchema({"type": "string", "enum": list(dialects.DIALECTS)})]


class EndpointConfig(Section):
    address: Address
    model: Annotated[str, Field(min_length=1)]
    engine: Engine = dialects.DEFAULT
    region: str = ""
    role: Role = "both"  # prefill: it only computes prompts for others; decode: it computes none for others
    prefill_ms_per_token: Milliseconds | None = None  # where its accelerator is another one; default: its model's
    decode_ms_per_token: Milliseconds | None = None
    kv_events: KvEvents | None = None
    kv_transfer: KvTransfer | None = None
    tls: EngineTls | None = None  # default: that of its model, or of the pool
    api_key_file: AbsolutePath | None = None  # one line: its API key; default: that of its model, or of the pool

    @model_validator(mode="after")
    def _the_engine_has_the_connector(self) -> Self:
        dialect = dialects.dialect_called(self.engine)
        if self.kv_transfer is not None and self.kv_transfer.connector not in dialect.kv_connectors:
            known = ", ".join(sorted(dialect.kv_connectors)) or "no kv_transfer"
            message = f'{dialect.title} servers do not pass KV on by "{self.kv_transfer.connector}"; write {known}'
            raise InvalidAtError(("kv_transfer", "connector"), message)
        return self

    @model_validator(mode="after")
    def _a_prefill_endpoint_can_pass_its_kv_on(self) -> Self:
        if self.role == "prefill" and (self.kv_transfer is None or self.kv_transfer.connector == "shared"):
            message = "is required with role prefill: {connector: nixl}, mooncake, or proxy where engines have llm-d's"
            raise InvalidAtError(("kv_transfer",), message)
        return self

    @model_validator(mode="after")
    def _an_sglang_does_one_half(self) -> Self:
        if self.kv_transfer is None or self.kv_transfer.connector != "sglang":
            return self
        if self.role == "both":
            message = "is required with kv_transfer sglang: write that of --disaggregation-mode, prefill or decode"
            raise InvalidAtError(("role",), message)
        if self.role == "prefill" and self.kv_transfer.bootstrap is None:
            message = "is required with sglang: host and --disaggregation-bootstrap-port of the prefill server"
            raise InvalidAtError(("kv_transfer", "bootstrap"), message)
        return self


class ModelConfig(Section):
    """Constants of a model; the milliseconds are initial values, for one endpoint without other load."""

    adapter_of: Annotated[str, Field(min_length=1)] | None = None  # it is an adapter (LoRA) of this model
    capability: str | None = None  # a file that `fairlead fit` wrote, relative to the configuration
    tasks: dict[TaskName, str] = Field(default_factory=dict)  # further such files, for requests of one task
    prefill_ms_per_token: Milliseconds = 0.1
    decode_ms_per_token: Milliseconds = 20.0
    max_model_len: PositiveInt | None = None  # prompts estimated longer are not sent to this model
    kv_bytes_per_token: PositiveInt | None = None  # in the KV cache, over all layers and GPUs
    tls: EngineTls | None = None  # of its engines; default: that of the pool
    api_key_file: AbsolutePath | None = None  # one line: the API key of its engines; default: that of the pool


class Pool(Section):
    """The engines that are known in advance; others may be discovered."""

    endpoints: Annotated[tuple[EndpointConfig, ...], Field(strict=False)] = ()
    models: dict[str, ModelConfig] = Field(default_factory=dict)
    tls: EngineTls | None = None  # of all engines; without it they are reached in plain HTTP
    api_key_file: AbsolutePath | None = None  # one line: the API key of all engines, sent as a bearer token

    @model_validator(mode="after")
    def _each_endpoint_once(self) -> Self:
        seen: dict[str, int] = {}
        for index, endpoint in enumerate(self.endpoints):
            first = seen.setdefault(endpoint.address, index)
            if first != index:
                message = f'"{endpoint.address}" is already endpoints[{first}]; remove one of them'
                raise InvalidAtError(("endpoints", index, "address"), message)
        return self

    def adapters(self) -> dict[str, str]:
        """The model of each adapter that is named here; engines may list others."""
        return {name: model.adapter_of for name, model in self.models.items() if model.adapter_of is not None}

    def access(self, model: str | None, endpoint: EndpointConfig | None = None) -> Access:
        """How engines of a model are reached, or one of them; None: one that has not said what it serves."""
        places: tuple[EndpointConfig | ModelConfig | Pool | None, ...] = (endpoint, self.models.get(model or ""), self)
        tls = next((place.tls for place in places if place is not None and place.tls is not None), None)
        key = next((place.api_key_file for place in places if place is not None and place.api_key_file), None)
        return Access(tls.ca if tls else "", tls.server_name if tls else "", key or "")

    def accesses(self) -> dict[str, Access]:
        """Every access that is configured, by the path of the key where it begins."""
        found = {"pool": self.access(None)}
        found |= {f"pool.models.{name}": self.access(name) for name in self.models}
        found |= {f"pool.endpoints[{i}]": self.access(each.model, each) for i, each in enumerate(self.endpoints)}
        return {path: access for path, access in found.items() if access != PLAIN}

    def served_models(self) -> set[str]:
        """Of the endpoints that are listed, and the adapters of these."""
        served = {endpoint.model for endpoint in self.endpoints}
        return served | {adapter for adapter, model in self.adapters().items() if model in served}
