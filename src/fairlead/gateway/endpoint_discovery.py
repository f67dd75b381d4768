"""Envoy's endpoint discovery service: an Envoy that asks follows the pool, without a restart, over one long stream.

xDS, state of the world: each push carries all that a stream subscribed to, with a version and a nonce. Envoy answers
with that nonce: to accept (ACK), or with an error (NACK), and then keeps what it had. There is one push under way on
each stream; what changes meanwhile goes with the next. Nothing here does I/O: an edge hands messages in and out.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import structlog
from google.protobuf.any_pb2 import Any
from google.protobuf.message import DecodeError
from google.protobuf.wrappers_pb2 import UInt32Value

import fairlead.gateway.pb.endpoint_discovery_pb2 as pb
from fairlead.access import PLAIN, Access
from fairlead.addresses import host_and_port
from fairlead.edge.grpc import Call, Method, Status, StatusError
from fairlead.gateway.guard import model_cluster
from fairlead.gateway.parts import ENGINES_CLUSTER, type_url
from fairlead.gateway.reached import metadata

SERVICE: Final = "envoy.service.endpoint.v3.EndpointDiscoveryService"
STREAM_ENDPOINTS: Final = f"/{SERVICE}/StreamEndpoints"
TYPE_URL: Final = type_url("envoy.config.endpoint.v3.ClusterLoadAssignment")
PATIENCE_S: Final = 5.0  # for an answer to a push, and for the first Envoy to come; after it requests do without
_MOST_NAMES: Final = 4096  # that one stream may subscribe to

log = structlog.get_logger("fairlead")


class Host(NamedTuple):
    """One engine as Envoy is to know it."""

    address: str  # ip:port
    model: str
    draining: bool = False
    access: Access = PLAIN
    names: tuple[str, ...] = ()  # that it answers to besides its model's: adapters


class Statistics(NamedTuple):
    """For metrics; counts are since the start."""

    streams: int
    pushes: int
    acks: int
    nacks: int
    last_nack: str


class EndpointDiscovery:
    """`publish` the pool; `changed` is called whenever `knows` may have changed."""

    def __init__(self, changed: Callable[[], None], clock_s: Callable[[], float]) -> None:
        self.clock_s = clock_s
        self._changed = changed
        self._subscribers: dict[Subscriber, None] = {}
        self._hosts: Sequence[Host] | None = None
        self._of_clusters: Mapping[str, Sequence[Host]] = {}
        self._assignments: dict[str, bytes] = {}  # by cluster, of those that were asked for
        self._boot = f"{time.time_ns() // 1_000_000:x}"
        self._number = 0
        self._pushes = self._acks = self._nacks = 0
        self._last_nack = ""
        self._first_s: float | None = None  # when the first endpoints were published
        self._followed = asyncio.Event()

    def statistics(self) -> Statistics:
        return Statistics(len(self._subscribers), self._pushes, self._acks, self._nacks, self._last_nack)

    @property
    def version(self) -> str:
        return f"{self._boot}.{self._number}"

    def publish(self, hosts: Iterable[Host]) -> None:
        """Every Envoy shall know exactly these. Never call it with less than is known because a source has failed."""
        hosts = tuple(hosts)
        if hosts == self._hosts:
            return
        self._hosts, self._of_clusters, self._assignments = hosts, _of_clusters(hosts), {}
        self._first_s = self.clock_s() if self._first_s is None else self._first_s
        self._number += 1
        for subscriber in tuple(self._subscribers):
            subscriber.push()

    def knows(self, address: str) -> bool:
        """Whether every Envoy that follows has accepted this endpoint; true while none does.

        One that has just come counts from its first answer on, and one that owes an answer for long does not count.
        """
        return all(subscriber.knows(address) for subscriber in self._subscribers)

    @property
    def is_awaited(self) -> bool:
        """Whether an Envoy that follows may not have the first endpoints yet: it knows those of the last sidecar."""
        return self._first_s is not None and not self._followed.is_set() and self._left_s() > 0

    async def followed(self) -> None:
        """Wait until an Envoy has accepted the first endpoints, or has had the time for it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._left_s()):
                await self._followed.wait()

    def subscriber(self, send: Callable[[bytes], None]) -> Subscriber:
        """One stream of an Envoy's, which gets what it shall know through `send`."""
        made = Subscriber(self, send)
        self._subscribers[made] = None
        return made

    def methods(self) -> Mapping[str, Method]:
        return {STREAM_ENDPOINTS: Method(lambda call: _StreamCall(self, call), ends_at_drain=True)}

    # ---- of each subscriber ---------------------------------------------------------------------------------------

    @property
    def hosts(self) -> Sequence[Host] | None:
        """As published last; None before."""
        return self._hosts

    def resource(self, cluster: str) -> bytes:
        """The endpoints of `cluster`; none for one that has no engine now, as Envoy must be sent that too."""
        hosts = self._of_clusters.get(cluster)
        if hosts is None:
            return _assignment(cluster, ())
        made = self._assignments.get(cluster)
        if made is None:
            made = self._assignments[cluster] = _assignment(cluster, hosts)
        return made

    def pushed(self) -> None:
        self._pushes += 1

    def accepted(self, names: Sequence[str]) -> None:
        self._acks += 1
        if ENGINES_CLUSTER in names:
            self._followed.set()
        self._changed()

    def refused(self, node: str, reason: str) -> None:
        self._nacks += 1
        self._last_nack = reason
        log.error("Envoy refuses the endpoints and keeps those that it had", envoy=node, reason=reason)

    def _left_s(self) -> float:
        return 0.0 if self._first_s is None else self._first_s + PATIENCE_S - self.clock_s()

    def ended(self, subscriber: Subscriber) -> None:
        if self._subscribers.pop(subscriber, self) is None:
            self._changed()


class Subscriber:
    """What one stream asked for, has been sent and has accepted."""

    def __init__(self, owner: EndpointDiscovery, send: Callable[[bytes], None]) -> None:
        self._owner = owner
        self._send = send
        self._names: tuple[str, ...] | None = None  # None: it has asked for nothing yet
        self._node = ""
        self._nonce = 0
        self._pushed_s: float | None = None  # when the push was sent that it has not answered
        self._sent: tuple[bytes, ...] = ()  # resources, as of the last push
        self._sent_addresses: frozenset[str] = frozenset()
        self._accepted: frozenset[str] | None = None

    def message(self, message: bytes) -> None:
        """A DiscoveryRequest. Raises StatusError for what is none."""
        try:
            request = pb.DiscoveryRequest.FromString(message)
        except DecodeError:
            raise StatusError(Status.INTERNAL, "the message is not a DiscoveryRequest") from None
        if request.type_url not in ("", TYPE_URL):
            raise StatusError(Status.INVALID_ARGUMENT, f"only {TYPE_URL} is served here")
        if len(request.resource_names) > _MOST_NAMES:
            raise StatusError(Status.RESOURCE_EXHAUSTED, f"a stream may ask for {_MOST_NAMES} clusters at most")
        if request.response_nonce and request.response_nonce != str(self._nonce):
            return  # about a push before the last one
        if request.node.id:
            self._node = request.node.id
        if request.response_nonce and self._pushed_s is not None:
            self._answered(request)
        names = tuple(request.resource_names)
        is_new, self._names = names != self._names, names
        self.push(anew=is_new)

    def push(self, *, anew: bool = False) -> None:
        """Send what it subscribed to, if that has changed since the last push, or `anew`, and none is under way."""
        owner, names = self._owner, self._names
        if names is None or owner.hosts is None or (self._pushed_s is not None and not anew):
            return
        resources = tuple(owner.resource(name) for name in names)
        if resources == self._sent and not anew:
            return
        self._nonce += 1
        self._pushed_s, self._sent = owner.clock_s(), resources
        self._sent_addresses = frozenset(host.address for host in owner.hosts)
        response = pb.DiscoveryResponse(version_info=owner.version, type_url=TYPE_URL, nonce=str(self._nonce))
        for resource in resources:
            response.resources.append(Any(type_url=TYPE_URL, value=resource))
        owner.pushed()
        self._send(response.SerializeToString())

    def knows(self, address: str) -> bool:
        if self._accepted is None or self._names is None or ENGINES_CLUSTER not in self._names:
            return True
        if address in self._accepted:
            return True
        return self._pushed_s is not None and self._owner.clock_s() - self._pushed_s > PATIENCE_S

    def closed(self) -> None:
        """The stream is over."""
        self._owner.ended(self)

    def _answered(self, request: pb.DiscoveryRequest) -> None:
        self._pushed_s = None
        if request.HasField("error_detail"):
            self._owner.refused(self._node, request.error_detail.message)
        else:
            self._accepted = self._sent_addresses
            self._owner.accepted(self._names or ())


class _StreamCall:
    """A stream on Fairlead's own edge."""

    def __init__(self, owner: EndpointDiscovery, call: Call) -> None:
        self._call = call
        self._subscriber = owner.subscriber(call.send)

    def message(self, message: bytes) -> None:
        self._subscriber.message(message)

    def half_closed(self) -> None:
        self._call.finish()

    def closed(self) -> None:
        self._subscriber.closed()


def _of_clusters(hosts: Sequence[Host]) -> dict[str, Sequence[Host]]:
    """All engines, and those of each model. Each host lists all its names in each of them, so an assignment for each
    of hundreds of adapters, of which few are asked for, would take seconds."""
    by_model: dict[str, list[Host]] = {}
    for host in hosts:
        for name in dict.fromkeys((host.model, *host.names)):
            by_model.setdefault(name, []).append(host._replace(model=name))
    return {model_cluster(model): of_it for model, of_it in by_model.items()} | {ENGINES_CLUSTER: hosts}


def _assignment(cluster: str, hosts: Sequence[Host]) -> bytes:
    assignment = pb.ClusterLoadAssignment(cluster_name=cluster)
    locality = assignment.endpoints.add()
    for host in hosts:
        ip, port = host_and_port(host.address)
        added = locality.lb_endpoints.add()
        added.endpoint.address.socket_address.address = ip
        added.endpoint.address.socket_address.port_value = port
        if host.draining:
            added.health_status = pb.DRAINING  # it gets no blind request either
        for namespace, values in metadata(host.model, host.access, host.names).items():
            added.metadata.filter_metadata[namespace].update(values)
    if hosts:  # by default, a model with only half of its engines healthy loses some of its requests to the next model
        assignment.policy.overprovisioning_factor.CopyFrom(UInt32Value(value=100 * len(hosts)))
    return assignment.SerializeToString(deterministic=True)
