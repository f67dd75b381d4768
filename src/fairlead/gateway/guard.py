"""What Envoy does by itself with requests that the sidecar has not read or cannot finish: three Lua scripts in `lua/`.

`guard.lua` stands before the router. It blanks the parameters that only Fairlead may set, refuses what it cannot read,
and finds the model. `name_model.lua` runs before each engine and writes the name of the model that it serves.
`events.lua` turns an answer into the events of a stream, as the sidecar would have done.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Final
from urllib.parse import quote

from fairlead.api import headers
from fairlead.api.cache_salt import LONGEST_NAME_BYTES, SALTED_PATHS
from fairlead.api.media_names import MEDIA_NAMES
from fairlead.api.media_sources import BEGINNINGS, FREE_KEYS, LOCATORS, MEDIA_KEYS
from fairlead.api.reserved import RESERVED_KEYS
from fairlead.config import Config
from fairlead.gateway.parts import DESTINATION, Part, type_url
from fairlead.gateway.reached import LISTED

LUA: Final = "envoy.filters.http.lua"
EVENTS: Final = "fairlead.events"
EVENTS_HEADER: Final = headers.EVENTS.decode()
CLUSTER_HEADER: Final = headers.CLUSTER.decode()
BLIND_MODEL_HEADER: Final = headers.BLIND_MODEL.decode()

# vLLM's can also be nested (vllm_xargs, sampling_params.extra_args, features); the others are too common as names.
_NESTED: Final = frozenset({"kv_transfer_params", "ec_transfer_params", "mm_hashes"})
_PARAMETERS: Final = {
    **{key: "anywhere" if key in _NESTED else "top" for key in sorted(RESERVED_KEYS)},
    **dict.fromkeys(MEDIA_NAMES, "of media"),
}


def model_cluster(model: str) -> str:
    return f"model:{quote(model)}"


def route_cluster(route: str) -> str:
    return f"route:{quote(route)}"


def models_of_blind_routes(config: Config) -> dict[str, list[str]]:
    """The models of each cluster to which a request without advice may go; empty if all engines serve any request."""
    models = config.known_models()
    routes = config.models_of_routes()
    if len(models) <= 1 and not routes:
        return {}
    clusters = {model_cluster(model): [model] for model in models}
    return clusters | {route_cluster(route): list(dict.fromkeys(listed)) for route, listed in routes.items()}


def guard(config: Config, *, upgrades: bool = False) -> Part:
    """`upgrades`: for WebSockets, which name their model in the path's query and have no body to read first."""
    blind = models_of_blind_routes(config)
    clusters = {model: model_cluster(model) for model in config.known_models()} if blind else {}
    routes = {route: route_cluster(route) for route in config.models_of_routes()}
    settings = {
        "trusts_clients": config.gateway.trust_clients,
        "destination": DESTINATION,
        "parameters": {} if config.gateway.trust_clients else _PARAMETERS,
        "media": _set_of(MEDIA_KEYS),
        "locators": _set_of(LOCATORS),
        "free": _set_of(FREE_KEYS),
        "beginnings": _set_of(BEGINNINGS),
        "domains": _set_of(config.gateway.allowed_media_domains),
        "tenant": (config.tenants.header or "").lower() if config.separates_caches else False,
        "salted": _set_of(SALTED_PATHS if config.separates_caches else ()),
        "longest_tenant": LONGEST_NAME_BYTES,
        "clusters": clusters | routes,
        "listed": LISTED,
        "rewrites": dict.fromkeys(routes.values(), True),
        "upgrades": upgrades,
    }
    return _filter(f"local CONFIG = {_literal(settings)}\n\n{_script('guard')}")


def name_the_model() -> list[Part]:
    """Filters of a cluster whose engines serve several models, before the codec: each attempt names the engine's."""
    name = "envoy.extensions.filters.http.header_mutation.v3.HeaderMutation"
    header = {"key": BLIND_MODEL_HEADER, "value": "%UPSTREAM_METADATA(envoy.lb:model)%"}
    mutation = {"append": {"header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}}
    config = {"@type": type_url(name), "mutations": {"request_mutations": [mutation]}}
    return [
        {"name": "envoy.filters.http.header_mutation", "typed_config": config},
        _filter(_script("name_model")),
    ]


def events() -> Part:
    """The filter, active only on the route that has `makes_events`."""
    return {"name": EVENTS, "typed_config": {"@type": type_url("envoy.extensions.filters.http.lua.v3.Lua")}}


def makes_events() -> Part:
    """Per-route configuration of a route whose answers in one piece were asked for as a stream."""
    per_route = "envoy.extensions.filters.http.lua.v3.LuaPerRoute"
    return {EVENTS: {"@type": type_url(per_route), "source_code": {"inline_string": _script("events")}}}


def no_guard() -> Part:
    """Per-route configuration of a route whose requests the sidecar has read."""
    return {LUA: {"@type": type_url("envoy.extensions.filters.http.lua.v3.LuaPerRoute"), "disabled": True}}


def _filter(script: str) -> Part:
    config = {
        "@type": type_url("envoy.extensions.filters.http.lua.v3.Lua"),
        "default_source_code": {"inline_string": script},
    }
    return {"name": LUA, "typed_config": config}


@cache
def _script(name: str) -> str:
    return resources.files("fairlead.gateway").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


def _set_of(names: Iterable[str]) -> dict[str, bool]:
    return dict.fromkeys(sorted(names), True)


def _literal(value: object) -> str:
    """A value as Lua source."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"[{_literal(key)}] = {_literal(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, str):
        return '"' + "".join(_character(character) for character in value) + '"'
    return str(value).lower()  # a boolean


def _character(character: str) -> str:
    if character.isascii() and character.isprintable() and character not in '"\\':
        return character
    return "".join(f"\\{byte:03d}" for byte in character.encode("utf-8", "surrogatepass"))
