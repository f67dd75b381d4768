"""What the endpoint picker gets: an Envoy with its chart's settings, and the pods of a cluster that is not there."""

from __future__ import annotations

import json

import aiohttp

from fairlead.gateway import validate
from fairlead.tools.bench.rivals.picker import envoy_settings, kubernetes

PODS = "/api/v1/namespaces/default/pods"


def test_envoy_takes_the_settings() -> None:
    validate(envoy_settings("127.0.0.1:8080", 9901, 9002))


async def test_pods_are_listed_ready_at_their_addresses() -> None:
    async with (
        kubernetes(["127.0.1.1", "127.0.1.2"], 8000) as api,
        aiohttp.ClientSession(api) as client,
        client.get(PODS, params={"limit": "500"}) as response,
    ):
        pods = (await response.json())["items"]

    assert [pod["status"]["podIP"] for pod in pods] == ["127.0.1.1", "127.0.1.2"]
    assert all({"type": "Ready", "status": "True"} in pod["status"]["conditions"] for pod in pods)


async def test_a_watch_that_asks_for_them_begins_with_all_pods_and_then_goes_on() -> None:
    watch = {"watch": "true", "sendInitialEvents": "true"}
    async with (
        kubernetes(["127.0.1.1", "127.0.1.2"], 8000) as api,
        aiohttp.ClientSession(api) as client,
        client.get(PODS, params=watch) as response,
    ):
        events = [json.loads(await response.content.readline()) for _ in range(3)]

    assert [event["type"] for event in events] == ["ADDED", "ADDED", "BOOKMARK"]
    assert events[2]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_the_pool_selects_the_pods_at_their_port() -> None:
    pools = "/apis/inference.networking.k8s.io/v1/namespaces/default/inferencepools"
    async with kubernetes(["127.0.1.1"], 8000) as api, aiohttp.ClientSession(api) as client:
        async with client.get(pools) as response:
            (pool,) = (await response.json())["items"]
        async with client.get(PODS) as response:
            (pod,) = (await response.json())["items"]

    assert pool["spec"]["targetPorts"] == [{"number": 8000}]
    assert pool["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
