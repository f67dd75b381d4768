"""The pool as the router knows it: endpoints by the names that requests ask for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from fairlead.core.congestion import Congestion
from fairlead.core.division import divisions
from fairlead.core.endpoint import Endpoint
from fairlead.core.facts import RequestFacts
from fairlead.core.prefill_decode import prefilling_by_model
from fairlead.core.price_table import PriceTable
from fairlead.dialects import DIALECTS

ANY_MODEL = ""  # asked by APIs that name no model: SGLang's /generate
FEW: Final = 16  # endpoints


class Pool:
    """Made anew whenever endpoints come or go; those that stay are the same objects."""

    def __init__(
        self, endpoints: Sequence[Endpoint], routes: Mapping[str, Sequence[str]], expected: Iterable[str] = ()
    ) -> None:
        """`expected` are models that are known even while no endpoint serves them."""
        self.endpoints = tuple(endpoints)
        self.by_address = {endpoint.address: endpoint for endpoint in endpoints}
        self.routes = {route: tuple(models) for route, models in routes.items()}
        self.expected = tuple(expected)
        self.models = tuple(dict.fromkeys(endpoint.model for endpoint in endpoints))
        asked = {model: (model,) for model in (*self.expected, *self.models)} | self.routes
        answering = tuple(e for e in endpoints if e.spec.role != "prefill")
        self._identities = [endpoint.identity for endpoint in endpoints]
        # Further names that engines answer to: adapters, and second names of their model.
        own = {*self.models, *self.routes}
        self.names = frozenset(name for each in self._identities for name in each.models if name not in own)
        self.adapters = self.names.intersection(name for each in self._identities for name in each.adapters)
        listing: dict[str, list[Endpoint]] = {name: [] for name in self.names}
        for endpoint in answering:  # once through each list: an engine may have hundreds of adapters
            for name in self.names.intersection(endpoint.identity.models):
                listing[name].append(endpoint)
        of_name: dict[str | None, tuple[Endpoint, ...]] = {name: tuple(those) for name, those in listing.items()}
        # Routes of which a model is such a name: each of their models is then a choice of its own.
        self.mixed = {route: models for route, models in self.routes.items() if not self.names.isdisjoint(models)}
        self._serving: dict[str | None, tuple[Endpoint, ...]] = {
            name: tuple(e for e in answering if e.model in models) for name, models in asked.items()
        }
        for route, models in self.mixed.items():
            able = {e.address for name in models for e in of_name.get(name, ())}
            self._serving[route] = tuple(e for e in answering if e.model in models or e.address in able)
        self._serving |= of_name
        unnamed = tuple(e for e in answering if DIALECTS[e.spec.engine].serves_unnamed_models)
        self._serving[ANY_MODEL] = unnamed or answering
        self._serving[None] = answering
        self.prefilling = prefilling_by_model(self.endpoints)
        self.divisions = divisions(self.prefilling, answering)
        self.has_halves = not all(e.spec.answers_alone for e in answering)
        of_those = {serving: Congestion(serving) for serving in self._serving.values()}
        self._congestion = {name: of_those[serving] for name, serving in self._serving.items()}  # adapters share them
        self._tables = {
            name: PriceTable(serving, name if name in self.names else None)
            for name, serving in self._serving.items()
            if len(serving) > FEW and name not in self.mixed
        }

    def to_come(self, name: str | None, now_s: float) -> float:
        """How many later requests a prefill delays at those that serve `name`: see `core.congestion`."""
        return self._congestion[name].requests(now_s)

    def renewed(self) -> Pool:
        """This pool, or, where engines list other models or are of another kind since it was made, one with these."""
        now = [endpoint.identity for endpoint in self.endpoints]
        if all(
            one is other or (one.models == other.models and one.engine == other.engine)
            for one, other in zip(now, self._identities, strict=True)
        ):
            return self
        return Pool(self.endpoints, self.routes, self.expected)

    def knows(self, name: str | None) -> bool:
        """Whether `name` is a served or expected model or a route; None stands for a request that names nothing.

        Of a pool without endpoints nobody can say what it will serve: it knows every name.
        """
        return name in self._serving or not self.endpoints

    def may_be_adapter(self, name: str) -> bool:
        """Whether requests for `name` may go to an adapter: it is one, or a route that has some."""
        return name in self.adapters or name in self.mixed

    def adapter_of(self, model: str, named: str) -> str:
        """What engines call the adapter `named` of `model`; empty where none lists it.

        Without a model it must be the adapter of one model alone. An adapter has none: its own name goes first.
        """
        if model != ANY_MODEL:
            own = () if named.startswith(f"{model}:") else (named,)  # no SGLang takes its `base:adapter` here
            return self._listed(model, (f"{model}:{named}", *own))
        found = {self._listed(base, (f"{base}:{named}",)) for base in self.models} - {""}
        return found.pop() if len(found) == 1 else ""

    def _listed(self, base: str, names: Iterable[str]) -> str:
        listed = (name for name in names if name in self.adapters)
        return next((name for name in listed if any(each.model == base for each in self._serving[name])), "")

    def called(self, request: RequestFacts, name: str) -> RequestFacts:
        """`request` as one for `name`, if that is an adapter or a second name of an engine's model; else as it is."""
        return request.called(name, is_adapter=name in self.adapters) if name in self.names else request

    def serving(self, name: str | None) -> tuple[Endpoint, ...]:
        """Endpoints that serve `name`, healthy or not."""
        return self._serving.get(name, ())

    def table(self, name: str | None) -> PriceTable | None:
        """What is kept of the endpoints that serve `name`; None for so few that looking at each is faster."""
        return self._tables.get(name)

    def available(self, name: str | None, subset: Collection[str] | None = None) -> list[Endpoint]:
        """Healthy endpoints that serve `name` (None: all endpoints), out of `subset` where the gateway gave one.

        If there are none, those that only requests ejected, or that Envoy has not confirmed yet: refusing is worse.
        """
        serving: Iterable[Endpoint] = self._serving.get(name, ())
        if subset is not None:
            serving = [endpoint for endpoint in serving if endpoint.address in subset]
        healthy = [endpoint for endpoint in serving if endpoint.health.healthy]
        return healthy or [endpoint for endpoint in serving if endpoint.health.last_resort]
