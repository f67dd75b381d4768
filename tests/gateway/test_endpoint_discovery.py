"""The endpoint discovery service as Envoy would use it: what is pushed when, and what an answer means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from envoy_data_plane.envoy.config.endpoint import v3 as endpoint
from envoy_data_plane.envoy.service.discovery import v3 as discovery
from structlog.testing import capture_logs

from fairlead.edge.grpc import StatusError
from fairlead.gateway import endpoint_discovery
from fairlead.gateway.endpoint_discovery import PATIENCE_S, TYPE_URL, EndpointDiscovery, Host, Subscriber

A, B = Host("10.0.0.1:8000", "small"), Host("10.0.0.2:8000", "large")


class Envoy:
    """One stream of an Envoy's; messages are Envoy's own definitions."""

    def __init__(self, world: World, *names: str) -> None:
        self.pushes: list[Any] = []
        self.stream: Subscriber = world.discovery.subscriber(
            lambda sent: self.pushes.append(discovery.DiscoveryResponse.parse(sent))
        )
        self.names = list(names)

    def ask(self, **fields: Any) -> None:
        request = discovery.DiscoveryRequest(resource_names=self.names, type_url=TYPE_URL, **fields)
        self.stream.message(bytes(request))

    def acks(self) -> None:
        last = self.pushes[-1]
        self.ask(version_info=last.version_info, response_nonce=last.nonce)

    def nacks(self, why: str) -> None:
        self.stream.message(
            bytes(
                discovery.DiscoveryRequest(
                    resource_names=self.names,
                    type_url=TYPE_URL,
                    response_nonce=self.pushes[-1].nonce,
                    error_detail=_status(why),
                )
            )
        )

    def hosts(self) -> dict[str, list[str]]:
        """Of the last push, by cluster."""
        found = {}
        for resource in self.pushes[-1].resources:
            assert resource.type_url == TYPE_URL
            assignment = endpoint.ClusterLoadAssignment.parse(resource.value)
            found[assignment.cluster_name] = [
                _address(host) for locality in assignment.endpoints for host in locality.lb_endpoints
            ]
        return found


def _address(host: Any) -> str:
    at = host.endpoint.address.socket_address
    return f"{at.address}:{at.port_value}"


def _status(why: str) -> Any:
    from envoy_data_plane.google.rpc import Status

    return Status(code=3, message=why)


class World:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.changes = 0
        self.discovery = EndpointDiscovery(self._changed, lambda: self.now_s)

    def _changed(self) -> None:
        self.changes += 1


@pytest.fixture
def world() -> World:
    return World()


def test_a_stream_gets_what_it_asks_for_and_an_ack_is_not_answered(world: World) -> None:
    world.discovery.publish([A, B])
    envoy = Envoy(world, "engines", "model:small", "model:gone")
    envoy.ask()
    assert envoy.hosts() == {"engines": [A.address, B.address], "model:small": [A.address], "model:gone": []}
    envoy.acks()
    assert len(envoy.pushes) == 1


def test_an_envoy_that_follows_is_awaited_until_it_has_accepted_the_first_of_all_engines(world: World) -> None:
    assert not world.discovery.is_awaited, "nothing is known yet"
    world.discovery.publish([A, B])
    of_a_model, of_all = Envoy(world, "model:small"), Envoy(world, "engines")
    for envoy in (of_a_model, of_all):
        assert world.discovery.is_awaited
        envoy.ask()
        envoy.acks()
    assert not world.discovery.is_awaited
    of_all.stream.closed()
    world.discovery.publish([A])
    assert not world.discovery.is_awaited, "it has been there"


def test_an_envoy_that_does_not_come_or_refuses_the_endpoints_is_awaited_for_a_while(world: World) -> None:
    world.discovery.publish([A])
    envoy = Envoy(world, "engines")
    envoy.ask()
    envoy.nacks("no")
    world.now_s += PATIENCE_S - 0.1
    assert world.discovery.is_awaited
    world.now_s += 0.2
    assert not world.discovery.is_awaited


def test_nothing_is_pushed_before_the_pool_is_known(world: World) -> None:
    envoy = Envoy(world, "engines")
    envoy.ask()
    assert envoy.pushes == []
    world.discovery.publish([A])
    assert envoy.hosts() == {"engines": [A.address]}


def test_a_change_is_pushed_once_and_only_to_those_whom_it_concerns(world: World) -> None:
    world.discovery.publish([A])
    all_engines, small = Envoy(world, "engines"), Envoy(world, "model:small")
    for envoy in (all_engines, small):
        envoy.ask()
        envoy.acks()
    world.discovery.publish([A, B])
    world.discovery.publish([A, B])
    assert all_engines.hosts() == {"engines": [A.address, B.address]}
    assert (len(all_engines.pushes), len(small.pushes)) == (2, 1)
    versions = [push.version_info for push in all_engines.pushes]
    assert len(set(versions)) == 2


def test_of_many_adapters_only_the_clusters_that_are_asked_for_are_made(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    real = endpoint_discovery._assignment

    def assignment(cluster: str, hosts: Sequence[Host]) -> bytes:
        made.append(cluster)
        return real(cluster, hosts)

    monkeypatch.setattr(endpoint_discovery, "_assignment", assignment)
    envoys = [Envoy(world, "engines", "model:small", "model:sql"), Envoy(world, "engines", "model:small")]
    for envoy in envoys:
        envoy.ask()
    world.discovery.publish([A._replace(names=("sql", *map(str, range(300))))])
    assert sorted(made) == ["engines", "model:small", "model:sql"]
    assert envoys[0].hosts() == {"engines": [A.address], "model:small": [A.address], "model:sql": [A.address]}


def test_an_empty_pool_is_pushed(world: World) -> None:
    world.discovery.publish([A])
    envoy = Envoy(world, "engines")
    envoy.ask()
    envoy.acks()
    world.discovery.publish([])
    assert envoy.hosts() == {"engines": []}


def test_what_changes_while_a_push_is_under_way_goes_with_the_next(world: World) -> None:
    world.discovery.publish([A])
    envoy = Envoy(world, "engines")
    envoy.ask()
    world.discovery.publish([B])
    world.discovery.publish([A, B])
    assert len(envoy.pushes) == 1
    envoy.acks()
    assert len(envoy.pushes) == 2
    assert envoy.hosts() == {"engines": [A.address, B.address]}


def test_a_refusal_is_counted_logged_and_not_answered_with_the_same_again(world: World) -> None:
    world.discovery.publish([A])
    envoy = Envoy(world, "engines")
    envoy.ask()
    with capture_logs() as logs:
        envoy.nacks("malformed IP address")
    assert [(each["log_level"], each["reason"]) for each in logs] == [("error", "malformed IP address")]
    assert len(envoy.pushes) == 1
    statistics = world.discovery.statistics()
    assert (statistics.nacks, statistics.acks, statistics.last_nack) == (1, 0, "malformed IP address")
    world.discovery.publish([B])
    assert envoy.hosts() == {"engines": [B.address]}


def test_an_answer_about_an_earlier_push_changes_nothing(world: World) -> None:
    world.discovery.publish([A])
    envoy = Envoy(world, "engines")
    envoy.ask()
    envoy.ask(response_nonce="17")
    assert len(envoy.pushes) == 1
    assert world.discovery.statistics().acks == 0


def test_a_stream_may_ask_for_more_later(world: World) -> None:
    world.discovery.publish([A, B])
    envoy = Envoy(world, "model:small")
    envoy.ask()
    envoy.acks()
    envoy.names.append("model:large")
    envoy.ask(response_nonce=envoy.pushes[-1].nonce)
    assert envoy.hosts() == {"model:small": [A.address], "model:large": [B.address]}


def test_a_new_stream_gets_everything_whatever_version_it_brings(world: World) -> None:
    world.discovery.publish([A])
    former = Envoy(world, "engines")
    former.ask()
    envoy = Envoy(world, "engines")
    envoy.ask(version_info=former.pushes[0].version_info)
    assert envoy.hosts() == {"engines": [A.address]}


def test_an_endpoint_is_known_when_every_envoy_that_follows_has_accepted_it(world: World) -> None:
    world.discovery.publish([A])
    assert world.discovery.knows(A.address), "nobody follows: whatever Envoy there is knows its own list"
    one, other = Envoy(world, "engines"), Envoy(world, "engines")
    for envoy in (one, other):
        envoy.ask()
        assert world.discovery.knows(A.address), "an Envoy that has just come takes nothing from the others"
        envoy.acks()
    world.discovery.publish([A, B])
    one.acks()
    assert not world.discovery.knows(B.address)
    changes = world.changes
    other.acks()
    assert world.discovery.knows(B.address)
    assert world.changes == changes + 1


def test_one_that_was_refused_is_not_known_until_the_stream_ends(world: World) -> None:
    world.discovery.publish([A])
    envoy = Envoy(world, "engines")
    envoy.ask()
    envoy.acks()
    world.discovery.publish([A, B])
    envoy.nacks("no")
    world.now_s += 2 * PATIENCE_S
    assert not world.discovery.knows(B.address)
    envoy.stream.closed()
    envoy.stream.closed()
    assert world.discovery.knows(B.address)
    assert world.discovery.statistics().streams == 0


def test_an_envoy_that_does_not_answer_is_not_waited_for_for_long(world: World) -> None:
    world.discovery.publish([A])
    envoy = Envoy(world, "engines")
    envoy.ask()
    envoy.acks()
    world.discovery.publish([A, B])
    assert not world.discovery.knows(B.address)
    world.now_s += PATIENCE_S + 1
    assert world.discovery.knows(B.address)


def test_engines_that_drain_are_marked(world: World) -> None:
    world.discovery.publish([A._replace(draining=True), B])
    envoy = Envoy(world, "engines")
    envoy.ask()
    (resource,) = envoy.pushes[0].resources
    (locality,) = endpoint.ClusterLoadAssignment.parse(resource.value).endpoints
    states = [host.health_status.name for host in locality.lb_endpoints]
    assert states == ["DRAINING", "UNKNOWN"]
    metadata: Any = locality.lb_endpoints[0].metadata
    assert metadata.filter_metadata["envoy.lb"].to_dict() == {"model": "small", "listed": ["small"]}


@pytest.mark.parametrize(
    "message",
    [b"\xff", bytes(discovery.DiscoveryRequest(type_url="type.googleapis.com/a.Cluster"))],
)
def test_what_is_no_request_for_endpoints_is_refused(world: World, message: bytes) -> None:
    with pytest.raises(StatusError):
        Envoy(world).stream.message(message)
