"""Objectives and rewrites of a pool, through a real API server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.core.splits import NO_REWRITES, Split
from fairlead.discovery.rules import NO_RULES
from fairlead.processes import free_ports
from fairlead.serving.sidecar import Sidecar
from tests.kubernetes.cluster import Namespace
from tests.kubernetes.test_source import READER, followed, kubeconfig
from tests.waiting import until

WITHOUT_RULES = [rule for rule in READER if "inferenceobjectives" not in rule["resources"]]


def rule(*targets: tuple[str, int | None], of: str | None = None) -> dict[str, Any]:
    matches = [] if of is None else [{"model": {"type": "Exact", "value": of}}]
    weighted = [{"modelRewrite": model} | ({} if weight is None else {"weight": weight}) for model, weight in targets]
    return {"targets": weighted} | ({"matches": matches} if matches else {})


@pytest.fixture(autouse=True)
def pool(namespace: Namespace) -> None:
    namespace.pool("pool", {"app": "vllm"}, [8000])
    namespace.pod("a", "10.0.0.1")


async def test_objectives_of_the_pool_come_change_and_go(tmp_path: Path, namespace: Namespace) -> None:
    namespace.objective("chat", 10)
    namespace.objective("usual", None)
    namespace.objective("elsewhere", 99, pool="other")
    async with followed(tmp_path, namespace, inference_pool="pool") as found:
        await found.until(lambda: found.status.rules.priorities == {"chat": 10, "usual": 0})
        namespace.objective("chat", -5)
        await found.until(lambda: found.status.rules.priorities == {"chat": -5, "usual": 0})
        namespace.delete_rule("inferenceobjectives", "usual")
        await found.until(lambda: found.status.rules.priorities == {"chat": -5})
        assert found.taking() == {"10.0.0.1:8000"}
        assert found.status.rules_error == found.status.error == ""


async def test_rewrites_of_the_pool_come_change_and_go(tmp_path: Path, namespace: Namespace) -> None:
    namespace.rewrite("canary", [rule(("v1", 90), ("v2", 10), of="llama"), rule(("v1", None))])
    namespace.rewrite("elsewhere", [rule(("v9", None), of="other")], pool="other")
    async with followed(tmp_path, namespace, inference_pool="pool") as found:
        await found.until(lambda: found.status.rules.rewrites.by_name == {"llama": Split([("v1", 90), ("v2", 10)])})
        assert found.status.rules.rewrites.of_others == Split([("v1", 1)])
        namespace.rewrite("canary", [rule(("v2", None), of="llama")])
        await found.until(lambda: found.status.rules.rewrites.by_name == {"llama": Split([("v2", 1)])})
        assert found.status.rules.rewrites.of_others is None
        namespace.delete_rule("inferencemodelrewrites", "canary")
        await found.until(lambda: found.status.rules.rewrites == NO_REWRITES)


async def test_without_the_right_to_read_them_the_last_known_stay_and_the_pool_is_well(
    tmp_path: Path, namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.discovery.kubernetes.source.LASTS_S", 1)
    namespace.objective("chat", 10)
    async with followed(tmp_path, namespace, inference_pool="pool") as found:
        await found.until(lambda: found.status.rules.priorities == {"chat": 10})
        namespace.allow("sidecar", WITHOUT_RULES)
        await found.until(lambda: found.status.rules_error)
        assert "give its Role get, list and watch of inference" in found.status.rules_error
        namespace.objective("chat", 20)
        namespace.pod("b", "10.0.0.2")
        await found.until(lambda: len(found.taking()) == 2)
        assert found.status.rules.priorities == {"chat": 10}
        assert found.status.error == ""
        namespace.allow("sidecar", READER)
        await found.until(lambda: found.status.rules.priorities == {"chat": 20})
        await found.until(lambda: not found.status.rules_error)


async def test_a_pool_whose_role_never_had_the_right_is_followed(tmp_path: Path, namespace: Namespace) -> None:
    namespace.objective("chat", 10)
    token = namespace.account("sidecar", WITHOUT_RULES)
    async with followed(tmp_path, namespace, token=token, inference_pool="pool") as found:
        await found.until(lambda: found.taking() == {"10.0.0.1:8000"} and found.status.rules_error)
        assert found.status.rules == NO_RULES
        assert found.status.error == ""


async def test_a_sidecar_puts_them_in_force_and_forgets_them(tmp_path: Path, namespace: Namespace) -> None:
    namespace.objective("gold", 7)
    namespace.rewrite("canary", [rule(("v1", 90), ("v2", 10), of="chat")])
    kubeconfig(tmp_path, namespace, namespace.account("sidecar", READER))
    grpc, admin = (f"127.0.0.1:{port}" for port in free_ports(2))
    document = {
        "listen": {"grpc": grpc, "admin": admin, "drain_s": 0},
        "discovery": {"kubernetes": {"inference_pool": "pool", "kubeconfig": "kubeconfig"}},
        "admission": {"vouched_by": "the test"},
    }
    path = tmp_path / "fairlead.yaml"
    path.write_text(yaml.safe_dump(document))
    async with Sidecar(path) as sidecar:
        services = sidecar.services
        gold = {b"x-gateway-inference-objective": b"gold"}
        await until(lambda: services.rewrites.are_any and services.waiting.naming.level(gold, "") == 7)
        assert services.router.pool.routes == {"chat": ("v1", "v2")}
        namespace.delete_rule("inferenceobjectives", "gold")
        namespace.delete_rule("inferencemodelrewrites", "canary")
        await until(lambda: not services.rewrites.are_any and services.waiting.naming.level(gold, "") == 0)
        await until(lambda: not services.router.pool.routes)
