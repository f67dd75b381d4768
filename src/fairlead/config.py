"""The one validated configuration, as described in `docs/configuration.md`.

`load` reads YAML and either returns a frozen `Config` or raises `ConfigError`, whose text names the file, the line, the
key's path and what to change. Nothing here opens a socket or reads a file other than the configuration itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    PositiveInt,
    Tag,
    ValidationError,
    model_validator,
)

from fairlead.addresses import Address, GrpcAddress, Store, ZmqAddress, without_password
from fairlead.cascade.serving.settings import CascadeRouteSettings
from fairlead.context.blocks import DEFAULT_FORMATS, Format
from fairlead.errors import UserError
from fairlead.policies import build_policy
from fairlead.tuning.weights import BOXES


class ConfigError(UserError):
    """The configuration cannot be used; the message is `file:line: key.path: what to change`."""


class _InvalidAtError(ValueError):
    """A value that is wrong at `path` below the model whose validator raises it."""

    def __init__(self, path: tuple[str | int, ...], message: str) -> None:
        super().__init__(message)
        self.path = path


Interval = Annotated[int, Field(ge=10)]  # milliseconds
Names = Annotated[tuple[str, ...], Field(strict=False)]  # YAML has lists, a frozen configuration tuples
Operations = Annotated[tuple[Literal["order", "dedup"], ...], Field(strict=False)]
ANY_ROUTE = "*"  # in `reuse`: all that are not named


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Listen(_Section):
    """Where the sidecar listens. The admin port answers anyone who reaches it, so it stays on loopback by default."""

    grpc: GrpcAddress = "127.0.0.1:9002"
    admin: Address = "127.0.0.1:9003"
    drain_s: Annotated[float, Field(ge=0, le=3600)] = 30.0  # how long running streams may finish after SIGTERM


class Gateway(_Section):
    """The Envoy in front, as `fairlead envoy` writes it. Behind a gateway of your own only `fallbacks` counts."""

    listen: Address = "127.0.0.1:8080"
    fallbacks: Annotated[int, Field(ge=0, le=8)] = 2  # 0 behind ORIGINAL_DST gateways: they take one address only
    max_body_bytes: PositiveInt = 32 * 1024 * 1024
    processor_timeout_ms: PositiveInt = 1000  # after this Envoy goes on without the sidecar


class KvEvents(_Section):
    """Where an engine publishes its KV events: the prefix index then evicts as the engine does."""

    events: ZmqAddress
    replay: ZmqAddress | None = None  # asked for events that were missed
    topic: str = ""


class KvTransfer(_Section):
    """How an engine's KV can go to another: by a connector of vLLM, or by a store that the engines share."""

    connector: Literal["mooncake", "nixl", "shared"]
    bootstrap: Address | None = None  # of Mooncake's bootstrap server, as the other engines reach it

    @model_validator(mode="after")
    def _mooncake_has_a_bootstrap_server(self) -> Self:
        if self.connector == "mooncake" and self.bootstrap is None:
            message = "is required with mooncake: host and VLLM_MOONCAKE_BOOTSTRAP_PORT of the engine"
            raise _InvalidAtError(("bootstrap",), message)
        return self


class EndpointConfig(_Section):
    address: Address
    model: Annotated[str, Field(min_length=1)]
    engine: Literal["vllm", "sglang"] = "vllm"
    region: str = ""
    kv_events: KvEvents | None = None
    kv_transfer: KvTransfer | None = None

    @model_validator(mode="after")
    def _sglang_shares_kv_by_a_store_only(self) -> Self:
        if self.engine == "sglang" and self.kv_transfer is not None and self.kv_transfer.connector != "shared":
            message = "SGLang servers pass KV on through a store only; write shared"
            raise _InvalidAtError(("kv_transfer", "connector"), message)
        return self


class ModelConfig(_Section):
    """Constants of a model; the milliseconds are starting values, on one endpoint without other load."""

    capability: str | None = None  # a file that `fairlead fit` wrote, relative to the configuration
    prefill_ms_per_token: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    decode_ms_per_token: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 20.0
    max_model_len: PositiveInt | None = None  # prompts estimated longer are not sent to this model
    kv_bytes_per_token: PositiveInt | None = None  # of the KV cache, over all its layers and GPUs: for counting moves


class Pool(_Section):
    endpoints: Annotated[tuple[EndpointConfig, ...], Field(min_length=1, strict=False)]
    models: dict[str, ModelConfig] = {}

    @model_validator(mode="after")
    def _each_endpoint_once(self) -> Self:
        seen: dict[str, int] = {}
        for index, endpoint in enumerate(self.endpoints):
            first = seen.setdefault(endpoint.address, index)
            if first != index:
                message = f'"{endpoint.address}" is already endpoints[{first}]; remove one of them'
                raise _InvalidAtError(("endpoints", index, "address"), message)
        return self

    def served_models(self) -> set[str]:
        return {endpoint.model for endpoint in self.endpoints}


class PolicyConfig(BaseModel):
    """The policy's name; every other key is a parameter of that policy."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str = "fairlead"

    @model_validator(mode="after")
    def _known_with_these_parameters(self) -> Self:
        build_policy(self.name, self.parameters())
        return self

    def parameters(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Sessions(_Section):
    """The first of `headers` that a request carries names its session.

    With a Redis store, sidecars that share it keep a session on its host together and see each other's load.
    """

    store: Annotated[Store, PlainSerializer(without_password), Field(repr=False)] = "memory"
    ttl: Annotated[int, Field(ge=1, le=30 * 86400)] = 3600  # seconds without a request
    max_entries: Annotated[int, Field(ge=1, le=20_000_000)] = 1_000_000  # about 220 bytes each
    headers: Names = ("x-session-id", "x-claude-code-session-id", "session-id")


class Prefixes(_Section):
    """The router's own index of what is cached where."""

    max_bytes: Annotated[int, Field(ge=1 << 20)] = 256 * 1024 * 1024
    ttl: Annotated[float, Field(gt=0)] = 1200.0  # seconds without a request; engines evict sooner when they are full


class Tenants(_Section):
    """With a header, each of its values has prefixes and sessions of its own, so none can be learned by timing."""

    header: str | None = None


class Observe(_Section):
    """How the sidecar watches its engines, beside the request path. Intervals are jittered by a fifth."""

    interval_ms: Interval = 250  # between reads of /metrics; and of /health while something speaks against an engine
    health_interval_ms: Interval = 1000  # longer: SGLang generates a token for each /health
    rtt_interval_ms: Interval = 5000  # between measurements of the round trip
    rtt_alpha: Annotated[float, Field(gt=0, le=1)] = 0.3  # weight of the newest round trip in the smoothed one
    timeout_ms: PositiveInt = 2000  # of each of these requests
    failures_to_eject: PositiveInt = 3  # in a row: refused, no answer in time, or a 5xx of /health
    messages_per_second: Annotated[float, Field(ge=0)] = 20.0  # of answers observed in full, to learn constants
    stale_ms: PositiveInt = 3000  # after this, numbers that could not be read or do not move are not believed


class Migration(_Section):
    """When sessions leave a hot host. The section, even if empty, turns moving on; see docs/migrate.md."""

    hot_tokens: Annotated[int, Field(ge=0)] = 16_384  # waiting for prefill; a host with more than that is hot
    hot_ratio: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2.0  # and more than this times the others' median
    cool_down_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 60.0  # in which a session does not move again
    least_tokens: PositiveInt = 2048  # of context, that the host holds and the target does not
    most_copies: PositiveInt = 4  # at once
    most_copies_per_endpoint: PositiveInt = 1
    export_s: Annotated[float, Field(gt=0, le=600)] = 30.0  # deadline of the source's part, its queue included
    import_s: Annotated[float, Field(gt=0, le=600)] = 30.0  # deadline of the target's part


class Decisions(_Section):
    """Decisions and how they ended, as Parquet files without prompt text; see docs/decision-log.md."""

    path: Annotated[str, Field(min_length=1)]  # a folder, relative to the configuration
    sample: Annotated[float, Field(gt=0, le=1)] = 1.0  # share of sessions
    rotate_mb: PositiveInt = 1024  # of all files together; the oldest go


def _off(value: object) -> object:
    """YAML reads a bare `off` as false."""
    return "off" if value is False else value


class Tuner(_Section):
    """Whether the policy's weights are learned from how requests go; see docs/tune.md."""

    mode: Annotated[Literal["off", "shadow", "live"], BeforeValidator(_off)] = "off"  # shadow: changes nothing
    window: Annotated[int, Field(ge=20, le=100_000)] = 64  # requests that one measurement takes
    wash_out: Annotated[int, Field(ge=0, le=100_000)] = 16  # requests that are not counted after a change
    warm_up: Annotated[int, Field(ge=0, le=1_000_000)] = 256  # requests before the first measurement
    guard: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.5  # times the usual p95: beyond it weights give way


class Reuse(_Section):
    """Context reuse of one route: what is done to each request, and to those that ask; see docs/reuse.md."""

    always: Operations = ()
    on_request: Operations = ()
    formats: Annotated[tuple[Format, ...], Field(strict=False, min_length=1)] = DEFAULT_FORMATS


_MODELS, _CASCADE = "<models>", "<cascade>"
Route = Annotated[
    Annotated[Names, Tag(_MODELS)] | Annotated[CascadeRouteSettings, Tag(_CASCADE)],
    Discriminator(lambda value: _CASCADE if isinstance(value, dict | CascadeRouteSettings) else _MODELS),
]


class Config(_Section):
    listen: Listen = Listen()
    gateway: Gateway = Gateway()
    pool: Pool
    routes: dict[str, Route] = {}
    policy: PolicyConfig = PolicyConfig()
    sessions: Sessions = Sessions()
    prefixes: Prefixes = Prefixes()
    tenants: Tenants = Tenants()
    observe: Observe = Observe()
    migration: Migration | None = None
    tuner: Tuner = Tuner()
    decisions: Decisions | None = None
    reuse: dict[str, Reuse] = {}

    @model_validator(mode="after")
    def _reuse_is_of_routes(self) -> Self:
        known = {ANY_ROUTE, *self.routes, *self.pool.served_models()}
        for name in self.reuse:
            if name not in known:
                message = f'"{name}" is no route and no served model; write one of: {", ".join(sorted(known))}'
                raise _InvalidAtError(("reuse", name), message)
        return self

    @model_validator(mode="after")
    def _the_tuned_policy_has_weights(self) -> Self:
        if self.tuner.mode == "off":
            return self
        box = BOXES.get(self.policy.name)
        if box is None:
            message = f'policy "{self.policy.name}" has no weights to tune; tunable are: {", ".join(BOXES)}'
            raise _InvalidAtError(("tuner", "mode"), message)
        policy = build_policy(self.policy.name, self.policy.parameters())
        for name, (low, high) in box.items():
            if not low <= getattr(policy, name) <= high:
                message = f"{name} is outside {low:g} to {high:g}, the bounds of the tuner; change it or tuner.mode"
                raise _InvalidAtError(("policy", name), message)
        return self

    @model_validator(mode="after")
    def _routes_lead_to_served_models(self) -> Self:
        served = self.pool.served_models()
        for route, models in self.models_of_routes().items():
            if route in served:
                raise _InvalidAtError(
                    ("routes", route), f'"{route}" is also a served model; give the route another name'
                )
            if not models:
                raise _InvalidAtError(("routes", route), "the route has no model; list at least one served model")
            listed = ("cascade",) if route in self.cascades() else ()
            for index, model in enumerate(models):
                if model not in served:
                    known = ", ".join(sorted(served))
                    raise _InvalidAtError(
                        ("routes", route, *listed, index), f'no endpoint serves "{model}"; served are: {known}'
                    )
        return self

    def models_of_routes(self) -> dict[str, tuple[str, ...]]:
        return {
            name: route.cascade if isinstance(route, CascadeRouteSettings) else route
            for name, route in self.routes.items()
        }

    def cascades(self) -> dict[str, CascadeRouteSettings]:
        return {name: route for name, route in self.routes.items() if isinstance(route, CascadeRouteSettings)}

    def model(self, name: str) -> ModelConfig:
        return self.pool.models.get(name, _DEFAULT_MODEL)


_DEFAULT_MODEL = ModelConfig()


def load(path: Path) -> Config:
    """Read and validate `path`. Raises ConfigError for anything that is wrong with it."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); pass --config with the path of a file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start})") from None
    return parse(text, str(path))


def parse(text: str, source: str = "fairlead.yaml") -> Config:
    """Validate YAML `text`; `source` is the file name in errors. Raises ConfigError."""
    return parse_as(Config, text, source, "pool", "docs/configuration.md")


_Document = TypeVar("_Document", bound=BaseModel)


def parse_as(kind: type[_Document], text: str, source: str, key: str, page: str) -> _Document:
    """Validate YAML `text` as a `kind`, a mapping with at least `key`; `page` explains it. Raises ConfigError."""
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        lines = dict(_lines(tree)) if tree is not None else {}
        document = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{source}:{line}: not YAML: {error.problem}") from None
    except (yaml.YAMLError, _InvalidAtError, RecursionError) as error:
        raise ConfigError(f"{source}: not usable YAML: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{source}:1: the file must be a mapping with the key {key}; see {page}")
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(error, lines, source, page))) from None


_Path = tuple[str | int, ...]


def _lines(node: yaml.Node, path: _Path = ()) -> Iterator[tuple[_Path, int]]:
    """Every key's path and its line. Raises _InvalidAtError for a key written twice: YAML would drop the first."""
    yield path, node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if key.value in seen:
                raise _InvalidAtError(path, f'line {key.start_mark.line + 1}: the key "{key.value}" is written twice')
            seen.add(key.value)
            yield from _lines(value, (*path, key.value))
            yield (*path, key.value), key.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _lines(item, (*path, index))


def _explain(error: ValidationError, lines: dict[_Path, int], source: str, page: str) -> Iterator[str]:
    for problem in error.errors():
        path: _Path = tuple(part for part in problem["loc"] if part not in (_MODELS, _CASCADE))
        message = problem["msg"].removeprefix("Value error, ").replace("tuple", "list")
        cause = problem.get("ctx", {}).get("error")
        if isinstance(cause, _InvalidAtError):
            path = (*path, *cause.path)
        if problem["type"] == "extra_forbidden":
            message = f"unknown key; see {page} for the keys that are known"
        elif problem["type"] == "missing":
            message = "is required"
        known = path
        while known and known not in lines:
            known = known[:-1]
        yield f"{source}:{lines.get(known, 1)}: {_dotted(path)}: {message}"


def _dotted(path: _Path) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")
