"""Mistakes that only several sections together show. All of them are reported at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from fairlead.addresses import are_one, reaches
from fairlead.config.errors import InvalidAtError, dotted
from fairlead.config.routes import ANY_ROUTE
from fairlead.errors import UserError
from fairlead.policies import build_policy
from fairlead.tuning.weights import BOXES

if TYPE_CHECKING:
    from fairlead.config.document import Config

_OF_ADAPTERS: Final = frozenset({"adapter_of", "capability", "tasks"})  # keys that an adapter may have of its own

_Check = Callable[["Config"], Iterator[InvalidAtError]]


def disagreements(config: Config) -> Iterator[InvalidAtError]:
    for check in _CHECKS:
        yield from check(config)


def _there_are_endpoints(config: Config) -> Iterator[InvalidAtError]:
    if not config.pool.endpoints and not config.discovery.is_used:
        message = "needs 1 or more entries; list the engines here, or say under discovery where they are found"
        yield InvalidAtError(("pool", "endpoints"), message)


def _envoy_can_know_the_endpoints(config: Config) -> Iterator[InvalidAtError]:
    if config.discovery.is_used and config.gateway.endpoints == "static":
        message = "a static list knows nothing of endpoints that are discovered; write eds, or remove discovery"
        yield InvalidAtError(("gateway", "endpoints"), message)


def listens_apart(key: str, address: str, config: Config) -> None:
    """Raises UserError if one of the configuration's own listeners has the port of `address`, which is not in it."""
    for path, listener in _listeners(config).items():
        if are_one(address, listener):
            raise UserError(f"{key}: {_one_port(address, path, listener)}")


def _listeners(config: Config) -> dict[tuple[str, str], str]:
    addresses = {
        ("listen", "grpc"): config.listen.grpc,
        ("listen", "admin"): config.listen.admin,
        ("gateway", "listen"): config.gateway.listen,
    }
    return {path: address for path, address in addresses.items() if not address.startswith("unix:")}


def _one_port(address: str, path: tuple[str, str], listener: str) -> str:
    return f'"{address}" and {dotted(path)} "{listener}" are one port; choose another for one of them'


def _each_listens_at_a_port_of_its_own(config: Config) -> Iterator[InvalidAtError]:
    listeners = _listeners(config)
    written = sorted(listeners, key=lambda path: path[1] in getattr(config, path[0]).model_fields_set)
    for index, path in enumerate(written):  # a conflict with a default is reported at the key that was written
        for earlier in written[:index]:
            if are_one(listeners[path], listeners[earlier]):
                yield InvalidAtError(path, _one_port(listeners[path], earlier, listeners[earlier]))
    for index, endpoint in enumerate(config.pool.endpoints):
        for path, listener in listeners.items():
            if reaches(endpoint.address, listener):
                message = f'"{endpoint.address}" is {dotted(path)}, not an engine; write the address of the engine'
                yield InvalidAtError(("pool", "endpoints", index, "address"), message)


def _what_is_prefilled_is_decoded(config: Config) -> Iterator[InvalidAtError]:
    """Endpoints that are discovered may be the other half."""
    if config.discovery.is_used:
        return
    for index, endpoint in enumerate(config.pool.endpoints):
        if endpoint.role == "prefill" and endpoint.kv_transfer is not None:
            connector = endpoint.kv_transfer.connector
            if not any(
                other.role != "prefill"
                and other.model == endpoint.model
                and other.kv_transfer is not None
                and other.kv_transfer.connector == connector
                for other in config.pool.endpoints
            ):
                message = (
                    f'no endpoint of "{endpoint.model}" decodes with kv_transfer {connector}; add one, or write both'
                )
                yield InvalidAtError(("pool", "endpoints", index, "role"), message)


def _adapters_are_of_models(config: Config) -> Iterator[InvalidAtError]:
    adapters = config.pool.adapters()
    for name, model in adapters.items():
        constants = config.pool.models[name]
        if model == name or model in adapters:
            message = f'"{model}" is no model but an adapter; name the model that its engines serve'
            yield InvalidAtError(("pool", "models", name, "adapter_of"), message)
        elif not config.discovery.is_used and model not in config.pool.served_models():
            yield InvalidAtError(("pool", "models", name, "adapter_of"), _not_served(model, config))
        if any(endpoint.model == name for endpoint in config.pool.endpoints):
            message = f'"{name}" is an adapter, so no endpoint has it as its model; write {model} at its endpoints'
            yield InvalidAtError(("pool", "models", name, "adapter_of"), message)
        for key in sorted(constants.model_fields_set - _OF_ADAPTERS):
            message = f"an adapter has this of its model; write it at pool.models.{model}"
            yield InvalidAtError(("pool", "models", name, key), message)


def _constants_are_of_served_models(config: Config) -> Iterator[InvalidAtError]:
    if config.discovery.is_used:  # what its engines will serve is not known yet, here and below
        return
    for name, constants in config.pool.models.items():
        if constants.adapter_of is None and name not in config.pool.served_models():
            yield InvalidAtError(("pool", "models", name), _not_served(name, config))


def _routes_lead_to_served_models(config: Config) -> Iterator[InvalidAtError]:
    served = config.pool.served_models()
    known_in_advance, splits = not config.discovery.is_used, config.splits()
    for route, models in config.models_of_routes().items():
        if route in served:
            message = f'"{route}" is also a served model; give the route another name'
            yield InvalidAtError(("routes", route), message)
        if not models:
            message = "the route has no model; list at least one served model"
            yield InvalidAtError(("routes", route), message)
        listed = ("cascade",) if route in config.cascades() else ()
        for index, model in enumerate(models):
            if model not in served and known_in_advance:
                place = ("split", model) if route in splits else (*listed, index)
                yield InvalidAtError(("routes", route, *place), _not_served(model, config))


def _a_route_knows_the_capability_of_all_its_models_or_of_none(config: Config) -> Iterator[InvalidAtError]:
    """A model without a file counts as always right: next to a measured one it would win every request."""
    for route, models in config.models_of_routes().items():
        if route in config.cascades() or route in config.splits():  # nothing compares their models
            continue
        known = [model for model in models if config.capability_of(model) is not None]
        unknown = [model for model in models if model not in known]
        if known and unknown:
            yield InvalidAtError(
                ("routes", route),
                f"{', '.join(known)} {_has(known)} a capability and {', '.join(unknown)} {_has(unknown)} none, which "
                "counts as always right; add pool.models.<model>.capability to all of them or to none",
            )


def _tasks_are_known(config: Config) -> Iterator[InvalidAtError]:
    for model, constants in config.pool.models.items():
        if constants.tasks and constants.capability is None:
            message = "needs pool.models.<model>.capability too, for requests of no task or of another one"
            yield InvalidAtError(("pool", "models", model, "tasks"), message)
    known = config.tasks_known()
    named: list[tuple[tuple[str, ...], str]] = []
    named += [(("tasks", "routes", route), task) for route, task in config.tasks.routes.items()]
    if config.tasks.with_tools is not None:
        named.append((("tasks", "with_tools"), config.tasks.with_tools))
    for place, task in named:
        if task not in known:
            message = f'no model has a capability file for "{task}"; add it to pool.models.<model>.tasks'
            yield InvalidAtError(place, message)
    names = {*config.routes, *config.pool.served_models()}
    for route in config.tasks.routes:
        if route not in names:
            message = f'"{route}" is no route and no served model; write one of: {", ".join(sorted(names))}'
            yield InvalidAtError(("tasks", "routes", route), message)


def _reuse_is_of_routes(config: Config) -> Iterator[InvalidAtError]:
    if config.discovery.is_used:
        return
    known = {ANY_ROUTE, *config.routes, *config.pool.served_models()}
    for name in config.reuse:
        if name not in known:
            message = f'"{name}" is no route and no served model; write one of: {", ".join(sorted(known))}'
            yield InvalidAtError(("reuse", name), message)


def _priorities_are_of_routes(config: Config) -> Iterator[InvalidAtError]:
    if config.admission is None:
        return
    known = {*config.routes, *config.pool.served_models()}
    for name in config.admission.routes:
        if name not in known:
            message = f'"{name}" is no route and no served model; write one of: {", ".join(sorted(known))}'
            yield InvalidAtError(("admission", "routes", name), message)
    known.add(ANY_ROUTE)
    for name in config.admission.slo:
        if name not in known and not config.discovery.is_used:
            message = f'"{name}" is no route and no served model; write one of: {", ".join(sorted(known))}'
            yield InvalidAtError(("admission", "slo", name), message)


def _the_tuned_policy_has_weights(config: Config) -> Iterator[InvalidAtError]:
    if config.tuner.mode == "off":
        return
    box = BOXES.get(config.policy.name)
    if box is None:
        message = f'policy "{config.policy.name}" has no weights to tune; tunable are: {", ".join(BOXES)}'
        yield InvalidAtError(("tuner", "mode"), message)
        return
    policy = build_policy(config.policy.name, config.policy.parameters())
    for name, (low, high) in box.items():
        if not low <= getattr(policy, name) <= high:
            message = f"{name} is outside {low:g} to {high:g}, the bounds of the tuner; change it or tuner.mode"
            yield InvalidAtError(("policy", name), message)


def _not_served(model: str, config: Config) -> str:
    served = sorted(config.pool.served_models())
    near = get_close_matches(model, served, n=1)
    hint = f'did you mean "{near[0]}"? Served are' if near else "served are"
    return f'no endpoint serves "{model}"; {hint}: {", ".join(served)}'


def _has(models: list[str]) -> str:
    return "has" if len(models) == 1 else "have"


def _rate_limits_are_of_tenants_somebody_vouches_for(config: Config) -> Iterator[InvalidAtError]:
    """A client that may choose its name takes another one, and has its whole limit again."""
    if config.rate_limits is None or config.tenants.vouched_by is not None:
        return
    if config.admission is not None and config.admission.vouched_by is not None and config.tenants.header is None:
        return
    message = (
        "needs tenants.header and tenants.vouched_by: who says of which tenant a request is; a client that names "
        "itself would take another name; see docs/admission.md"
    )
    yield InvalidAtError(("rate_limits",), message)


def _the_server_can_evict(config: Config) -> Iterator[InvalidAtError]:
    if config.admission is not None and config.admission.evict is not None and config.listen.server == "grpcio":
        message = "only the native server can end an answer that runs; remove this, or listen.server: grpcio"
        yield InvalidAtError(("admission", "evict"), message)


_CHECKS: Final[tuple[_Check, ...]] = (
    _there_are_endpoints,
    _envoy_can_know_the_endpoints,
    _each_listens_at_a_port_of_its_own,
    _what_is_prefilled_is_decoded,
    _adapters_are_of_models,
    _constants_are_of_served_models,
    _routes_lead_to_served_models,
    _a_route_knows_the_capability_of_all_its_models_or_of_none,
    _tasks_are_known,
    _reuse_is_of_routes,
    _priorities_are_of_routes,
    _rate_limits_are_of_tenants_somebody_vouches_for,
    _the_server_can_evict,
    _the_tuned_policy_has_weights,
)
