"""The engines of a Kubernetes cluster: of an InferencePool, of a label selector, or of a Service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import msgspec

from fairlead.config.kubernetes import Kubernetes
from fairlead.discovery.kubernetes import access
from fairlead.discovery.kubernetes.api import Api
from fairlead.discovery.kubernetes.endpoints import Seen, of_pods, of_slices, without_port
from fairlead.discovery.kubernetes.objects import (
    EndpointSlice,
    InferenceModelRewrite,
    InferenceObjective,
    InferencePool,
    Pod,
)
from fairlead.discovery.kubernetes.reflector import Reflector
from fairlead.discovery.kubernetes.rules import priorities_of, rewrites_of
from fairlead.discovery.rules import NO_RULES, RequestRules
from fairlead.discovery.source import DiscoveredEndpoint, EndpointSet, SourceStatus, UnusableError
from fairlead.errors import UserError

POOLS_API: Final = "/apis/inference.networking.k8s.io/v1"
RULES_APIS: Final = ("/apis/llm-d.ai/v1alpha2", "/apis/inference.networking.x-k8s.io/v1alpha2")  # now, and before
LASTS_S: Final = 60  # of one watch: so long, at most, a connection to nowhere or a change of RBAC goes unnoticed
_SETTLE_S: Final = 0.02  # changes come in bursts: one set for those that come together
_FORBIDDEN, _NOT_FOUND = 403, 404

T = TypeVar("T", bound=msgspec.Struct)


class KubernetesSource:
    """See `Source`. `settings` says which objects; `folder` is that of the configuration."""

    name = "kubernetes"

    def __init__(self, settings: Kubernetes, folder: Path) -> None:
        self._settings = settings
        self._folder = folder

    async def sets(self, status: SourceStatus) -> AsyncIterator[EndpointSet]:
        try:
            reached = access_of(self._settings, self._folder)
        except UserError as error:  # the files of a pod may come late
            raise UnusableError(str(error)) from None
        namespace = self._settings.namespace or reached.namespace
        changed = asyncio.Event()
        async with (
            Api(reached) as api,
            _Following(api, namespace, changed, status.failed, status.confirmed) as following,
            _Following(api, namespace, changed, status.rules_failed, status.rules_confirmed) as following_rules,
        ):
            rules: _Rules | None = None
            listed: Callable[[], list[tuple[DiscoveredEndpoint, bool]] | None]
            if self._settings.inference_pool is not None:
                listed = _PoolsPods(following, self._settings.inference_pool).listed
                rules = _Rules(following_rules, self._settings.inference_pool)
            elif self._settings.service is not None:
                listed = _service(following, self._settings.service, self._settings.port)
            else:
                listed = _selected(following, self._settings.selector or "", self._settings.ports)
            seen, last = Seen(), None
            while True:
                await changed.wait()
                await asyncio.sleep(_SETTLE_S)
                changed.clear()
                found, rules_before = listed(), status.found_rules
                status.found_rules = NO_RULES if rules is None else rules.after(rules_before)
                if found is None:
                    continue
                endpoints = seen.settle(found)
                if endpoints != last or status.found_rules != rules_before:
                    last = endpoints
                    yield endpoints


def access_of(settings: Kubernetes, folder: Path) -> access.Access:
    """Raises UserError where the API server's address or the credentials are not to be had."""
    if settings.kubeconfig is None:
        return access.in_cluster()
    return access.from_kubeconfig(folder / Path(settings.kubeconfig).expanduser(), settings.context)


class _Following:
    """The reflectors of one stream. `failed` is called with the trouble of each, `confirmed` while none has any."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        changed: asyncio.Event,
        failed: Callable[[str], None],
        confirmed: Callable[[], None],
    ) -> None:
        self.namespace = namespace
        self._changed = changed
        self._api = api
        self._failed = failed
        self._confirmed = confirmed
        self._running: dict[Reflector[Any], asyncio.Task[None]] = {}
        self._unusable = ""  # why what was read cannot be used

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def follow(
        self,
        resource: str,
        kind: type[T],
        selected: Mapping[str, str],
        api: str = "/api/v1",
        *,
        optional: bool = False,
    ) -> Reflector[T]:
        path = f"{api}/namespaces/{self.namespace}/{resource}"
        reflector = Reflector(
            self._api,
            path,
            kind,
            selected,
            changed=self._changed.set,
            reported=self._report,
            lasts_s=LASTS_S,
            optional=optional,
        )
        self._running[reflector] = asyncio.create_task(reflector.run(), name=f"follow {resource}")
        return reflector

    def leave(self, reflector: Reflector[Any]) -> None:
        self._running.pop(reflector).cancel()

    def is_usable(self, mistake: str) -> bool:
        """Whether there is none; one is reported until it is gone."""
        if mistake and mistake != self._unusable:
            self._failed(mistake)
        elif self._unusable and not mistake:
            self._confirmed()
        self._unusable = mistake
        return not mistake

    def _report(self, reporting: Reflector[Any]) -> None:
        if reporting.trouble is not None:
            self._failed(_explained(reporting))
            self._changed.set()  # others may have waited for it
        elif not self._unusable and all(each.trouble is None for each in self._running):
            self._confirmed()


class _PoolsPods:
    """The pods of an InferencePool. Another selector is another list; until it is known, the pods of the last count."""

    def __init__(self, following: _Following, name: str) -> None:
        self._following = following
        self._pools = following.follow(
            "inferencepools", InferencePool, {"fieldSelector": f"metadata.name={name}"}, POOLS_API
        )
        self._name = name
        self._selector = ""
        self._pods: Reflector[Pod] | None = None
        self._last: list[tuple[DiscoveredEndpoint, bool]] | None = None

    def listed(self) -> list[tuple[DiscoveredEndpoint, bool]] | None:
        """None where nothing is known yet; without the pool there are no endpoints."""
        if not self._pools.is_synced:
            return None
        pool = self._pools.objects.get((self._following.namespace, self._name))
        if pool is None or not pool.spec.selector.match_labels:  # an empty labelSelector would select everything
            self._leave()
            self._last = []
            return self._last
        selector = ",".join(f"{key}={value}" for key, value in sorted(pool.spec.selector.match_labels.items()))
        if self._pods is None or selector != self._selector:
            self._leave()
            self._selector = selector
            self._pods = self._following.follow("pods", Pod, {"labelSelector": selector})
        if self._pods.is_synced:
            ports = [each.number for each in pool.spec.target_ports]
            self._last = list(of_pods(self._pods.objects.values(), ports))
        return self._last

    def _leave(self) -> None:
        if self._pods is not None:
            self._following.leave(self._pods)
            self._pods = None


class _Rules:
    """The objectives and rewrites that refer to an InferencePool, in its namespace."""

    def __init__(self, source: _Following, pool: str) -> None:
        self._pool = pool
        self._objectives = [
            source.follow("inferenceobjectives", InferenceObjective, {}, api, optional=True) for api in RULES_APIS
        ]
        self._rewrites = [
            source.follow("inferencemodelrewrites", InferenceModelRewrite, {}, api, optional=True) for api in RULES_APIS
        ]

    def after(self, last: RequestRules) -> RequestRules:
        """Those of now; of a kind that is not known yet the last."""
        priorities, rewrites = last.priorities, last.rewrites
        if _is_known(self._objectives):
            objectives = [one for each in self._objectives for one in each.objects.values()]
            priorities = priorities_of(objectives, self._pool)
        if _is_known(self._rewrites):
            objects = [one for each in self._rewrites for one in each.objects.values()]
            rewrites = rewrites_of(objects, self._pool)
        return RequestRules(priorities, rewrites)


def _is_known(kinds: Sequence[Reflector[Any]]) -> bool:
    """A kind of one API group may be refused for good, where the Role grants only the other group's."""
    return any(each.is_synced for each in kinds) and all(each.is_synced or each.trouble for each in kinds)


def _selected(
    following: _Following, selector: str, ports: tuple[int, ...]
) -> Callable[[], list[tuple[DiscoveredEndpoint, bool]] | None]:
    pods = following.follow("pods", Pod, {"labelSelector": selector})
    return lambda: list(of_pods(pods.objects.values(), ports)) if pods.is_synced else None


def _service(
    following: _Following, service: str, port: str | None
) -> Callable[[], list[tuple[DiscoveredEndpoint, bool]] | None]:
    selected = {"labelSelector": f"kubernetes.io/service-name={service}"}
    slices = following.follow("endpointslices", EndpointSlice, selected, "/apis/discovery.k8s.io/v1")

    def listed() -> list[tuple[DiscoveredEndpoint, bool]] | None:
        found = slices.objects.values()
        mistake = without_port(found, port)
        if not slices.is_synced or not following.is_usable(f"service {service}: {mistake}" if mistake else ""):
            return None
        return list(of_slices(found, port))

    return listed


def _explained(reporting: Reflector[Any]) -> str:
    """A sentence with what to change, where that can be known."""
    trouble = reporting.trouble
    assert trouble is not None
    if trouble.code == _FORBIDDEN:
        return f"{trouble}; give its Role get, list and watch of {reporting.path.rpartition('/')[2]}"
    if trouble.code == _NOT_FOUND:
        return f"{reporting.path} is unknown to the cluster; install the CRDs of the Gateway API Inference Extension"
    return str(trouble)
