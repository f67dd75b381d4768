"""The whole configuration: its sections under one root, and the line on which each key was written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from pydantic import Field, PrivateAttr, model_validator

from fairlead.cascade.settings import CascadeRouteSettings
from fairlead.config.admission import Admission
from fairlead.config.agreement import disagreements
from fairlead.config.discovery import Discovery
from fairlead.config.errors import ConfigError, InvalidInPlacesError, line_of
from fairlead.config.gateway import Gateway
from fairlead.config.listen import Listen
from fairlead.config.observation import Decisions, Observe, Tracing
from fairlead.config.policy import Migration, PolicyConfig, Tuner
from fairlead.config.pool import ModelConfig, Pool
from fairlead.config.rate_limits import RateLimits
from fairlead.config.requests import Clients, Prefixes, Sessions, Tasks, Tenants
from fairlead.config.routes import Reuse, Route, SplitRoute
from fairlead.core.splits import Split
from fairlead.errors import UserError
from fairlead.section import Section


class Config(Section):
    listen: Listen = Listen()
    gateway: Gateway = Gateway()
    pool: Pool = Pool()
    discovery: Discovery = Discovery()
    routes: dict[str, Route] = Field(default_factory=dict)
    policy: PolicyConfig = PolicyConfig()
    sessions: Sessions = Sessions()
    prefixes: Prefixes = Prefixes()
    clients: Clients | None = None
    tenants: Tenants = Tenants()
    tasks: Tasks = Tasks()
    observe: Observe = Observe()
    migration: Migration | None = None
    tuner: Tuner = Tuner()
    admission: Admission | None = None
    rate_limits: RateLimits | None = None
    decisions: Decisions | None = None
    tracing: Tracing | None = None
    reuse: dict[str, Reuse] = Field(default_factory=dict)

    _source: str = PrivateAttr("")
    _lines: Mapping[str, int] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _its_sections_agree(self) -> Self:
        places = tuple(disagreements(self))
        if places:
            raise InvalidInPlacesError(places)
        return self

    def remember(self, source: str, lines: Mapping[str, int]) -> None:
        """The file's name and the line of each dotted path in it, for `located`."""
        self._source, self._lines = source, lines

    def located(self, error: UserError) -> UserError:
        """`error`, with file and line put before a message that begins with the path of a key, as all of ours do."""
        if isinstance(error, ConfigError) or not self._source:
            return error
        path = str(error).partition(": ")[0]
        return ConfigError(f"{self._source}:{line_of(path, self._lines)}: {error}")

    def models_of_routes(self) -> dict[str, tuple[str, ...]]:
        """Of a split the heaviest first: without the sidecar Envoy tries them in this order."""
        splits = self.splits()
        return {
            name: splits[name].models
            if isinstance(route, SplitRoute)
            else route.cascade
            if isinstance(route, CascadeRouteSettings)
            else route
            for name, route in self.routes.items()
        }

    def splits(self) -> dict[str, Split]:
        return {
            name: Split(tuple(route.split.items()))
            for name, route in self.routes.items()
            if isinstance(route, SplitRoute)
        }

    @property
    def separates_caches(self) -> bool:
        """Engines are told which tenant a request is of, and share what is cached with no other."""
        return self.tenants.header is not None and self.tenants.separate_caches

    @property
    def believes_gateway(self) -> bool:
        """Somebody vouches for headers that say how a request waits and where it goes: no client can write them."""
        return self.admission is not None and self.admission.vouched_by is not None

    def tasks_known(self) -> frozenset[str]:
        """Those for which a model has a capability file."""
        return frozenset(task for model in self.pool.models.values() for task in model.tasks)

    def cascades(self) -> dict[str, CascadeRouteSettings]:
        return {name: route for name, route in self.routes.items() if isinstance(route, CascadeRouteSettings)}

    def known_models(self) -> tuple[str, ...]:
        """Models that the configuration names; engines that are discovered may serve others."""
        of_routes = [model for models in self.models_of_routes().values() for model in models]
        of_endpoints = [endpoint.model for endpoint in self.pool.endpoints]
        return tuple(dict.fromkeys([*of_endpoints, *self.pool.models, *of_routes]))

    def base_of(self, name: str) -> str:
        """The model that engines have which serve `name`: itself, unless it is named as an adapter."""
        return self.model(name).adapter_of or name

    def capability_of(self, name: str) -> str | None:
        """The file for a model, or for an adapter, which is as capable as its model where it has none of its own."""
        constants = self.model(name)
        if constants.capability is not None or constants.adapter_of is None:
            return constants.capability
        return self.model(constants.adapter_of).capability

    def model(self, name: str) -> ModelConfig:
        return self.pool.models.get(name, _DEFAULT_MODEL)


_DEFAULT_MODEL = ModelConfig()
