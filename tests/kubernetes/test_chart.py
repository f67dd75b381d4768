"""The chart: linted and rendered by helm, its manifests validated by an API server, its configuration by Fairlead."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
import yaml
from aiohttp import web

from fairlead.addresses import host_and_port
from fairlead.config import Config, parse
from fairlead.gateway import EnvoyProcess, bootstrap, remembered, validate
from fairlead.gateway.outdated import MADE_OF
from fairlead.processes import free_ports
from fairlead.serving.reload import FIXED_SECTIONS
from tests.kubernetes.cluster import Namespace
from tests.kubernetes.manifests import CHART, MANIFESTS, READY, manifest
from tests.kubernetes.parts import KUBERNETES, part

EVERYTHING: Final = (
    "replicas=3", "redis.enabled=true", "networkPolicy.enabled=true", "serviceMonitor.enabled=true",
    "autoscaling.enabled=true", "tls.mode=secret", "tls.secretName=certificate", "priorityClassName=high",
)  # fmt: skip
PROMETHEUS: Final = CHART.parents[1] / "prometheus"
WITHIN_S: Final = 60.0
Json = dict[str, Any]


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(part("helm")), *arguments, "--kube-version", KUBERNETES]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def rendered(*arguments: str) -> list[Json]:
    done = helm("template", "release", str(CHART), "--namespace", "llm", *arguments)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def one(documents: list[Json], kind: str) -> Json:
    (found,) = (document for document in documents if document["kind"] == kind)
    return found


def configuration(documents: list[Json]) -> Config:
    return parse(one(documents, "ConfigMap")["data"]["fairlead.yaml"])


def with_everything(values: Path) -> list[str]:
    return ["--values", str(values), *(part for each in EVERYTHING for part in ("--set", each))]


@pytest.mark.parametrize("values", READY, ids=lambda path: path.stem)
def test_ready_values_are_linted_and_their_manifests_valid(values: Path, namespace: Namespace) -> None:
    linted = helm("lint", "--strict", str(CHART), "--values", str(values))
    assert linted.returncode == 0, linted.stdout
    for arguments in (["--values", str(values)], with_everything(values)):
        documents = rendered(*arguments)
        for document in documents:
            document["metadata"].pop("namespace", None)
            namespace.cluster.dry_run(document, namespace.name)
        assert configuration(documents).discovery.is_used


@pytest.mark.parametrize("values", READY, ids=lambda path: path.stem)
def test_the_plain_manifests_are_what_helm_renders(values: Path) -> None:
    written = (MANIFESTS / values.name).read_text(encoding="utf-8")
    assert written == manifest(values), "write it again: python -m tests.kubernetes.manifests"
    assert {path.name for path in MANIFESTS.iterdir()} == {path.name for path in READY}


def test_behind_a_gateway_it_follows_the_pool_that_it_makes_and_speaks_tls() -> None:
    documents = rendered()
    config, pool = configuration(documents), one(documents, "InferencePool")
    assert config.discovery.kubernetes is not None
    assert config.discovery.kubernetes.inference_pool == pool["metadata"]["name"]
    assert pool["spec"]["endpointPickerRef"]["name"] in {
        document["metadata"]["name"] for document in documents if document["kind"] == "Service"
    }
    assert config.listen.tls is not None
    assert (config.listen.tls.self_signed, config.gateway.fallbacks) == (True, 0)


def test_the_envoy_in_the_pod_accepts_its_bootstrap_and_follows_the_pool_by_the_socket(tmp_path: Path) -> None:
    config = configuration(rendered("--values", str(CHART / "values" / "own-envoy.yaml")))
    assert config.listen.grpc == "unix:/run/fairlead/fairlead.sock"
    assert (config.gateway.endpoints, config.gateway.remember) == ("eds", "/run/fairlead/pool")
    here = config.model_copy(update={"gateway": config.gateway.model_copy(update={"remember": str(tmp_path / "pool")})})
    remembered.prepare(here)  # as the command of the pod's first container does
    validate(bootstrap(here, admin_address="127.0.0.1:9901"))


@pytest.mark.parametrize(("limit", "known"), [("1.5Gi", 3 << 29), ("2G", 2 * 10**9), ("null", None)])
def test_envoy_knows_the_memory_limit_of_its_container(limit: str, known: int | None) -> None:
    values = ["--values", str(CHART / "values" / "own-envoy.yaml"), "--set", f"envoy.resources.limits.memory={limit}"]
    assert configuration(rendered(*values)).gateway.memory_bytes == known


async def test_envoy_drains_before_it_ends(tmp_path: Path) -> None:
    """By the hook of the chart, which Envoy's image can run: bash, and no curl."""
    admin, listen, grpc = (f"127.0.0.1:{port}" for port in free_ports(3))
    slow = web.Application()
    reached, finish = asyncio.Event(), asyncio.Event()

    async def answer(_: web.Request) -> web.Response:
        reached.set()
        await finish.wait()
        return web.Response(text="whole")

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    slow.router.add_post("/v1/completions", answer)
    slow.router.add_get("/health", health)
    runner = web.AppRunner(slow)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    config = Config.model_validate(
        {
            "listen": {"grpc": grpc},
            "gateway": {"listen": listen, "endpoints": "static"},
            "pool": {"endpoints": [{"address": f"127.0.0.1:{runner.addresses[0][1]}", "model": "m"}]},
        }
    )
    hook = tmp_path / "drain.sh"
    hook.write_text((CHART / "files" / "drain.sh").read_text().replace("9901", admin.rpartition(":")[2]))
    async with EnvoyProcess(bootstrap(config, admin_address=admin)), aiohttp.ClientSession() as client:
        url = f"http://{listen}/v1/completions"
        asked = asyncio.create_task(client.post(url, json={"model": "m"}))
        await asyncio.wait_for(reached.wait(), WITHIN_S)
        draining = await asyncio.create_subprocess_exec("bash", str(hook), "0", "60")
        async with asyncio.timeout(WITHIN_S):
            while True:  # until new connections are refused
                try:
                    (await asyncio.open_connection(*host_and_port(listen)))[1].close()
                except OSError:
                    break
                await asyncio.sleep(0.05)
        assert draining.returncode is None
        finish.set()
        assert await (await asked).text() == "whole"
        assert await asyncio.wait_for(draining.wait(), WITHIN_S) == 0
    await runner.cleanup()


def test_a_pod_ends_after_its_requests() -> None:
    documents = rendered("--set", "drainSeconds=300")
    pod = one(documents, "Deployment")["spec"]["template"]["spec"]
    assert configuration(documents).listen.drain_s == 300
    assert pod["terminationGracePeriodSeconds"] > 300


def test_containers_are_restricted() -> None:
    for document in rendered(*with_everything(CHART / "values" / "own-envoy.yaml")):
        if document["kind"] != "Deployment":
            continue
        pod = document["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["requests"]


# One change of each section, written as values of the chart.
CHANGES: Final = {
    "listen": "listen.drain_s=7",
    "sessions": "sessions.ttl=9",
    "prefixes": "prefixes.ttl=9",
    "tenants": "tenants.header=x-tenant",
    "decisions": "decisions.path=decisions",
    "tracing": "tracing.endpoint=http://collector:4318",
    "gateway.max_body_bytes": "gateway.max_body_bytes=4096",
    "gateway": "gateway.paths={/v1/files}",
    "pool": "pool.models.large.max_model_len=8192",  # another model
    "routes": "routes.auto={large}",
    "clients": "clients.keys=keys.txt",
    "admission": "admission.max_wait_s=9",
    "policy": "policy.name=lmetric",
    "observe": "observe.interval_ms=500",
}


def restarts_pods(section: str, mode: str) -> bool:
    """Whether the chart gives the pods another template for a change of this section."""

    def template(*arguments: str) -> Json:
        found: Json = one(rendered("--set", f"mode={mode}", *arguments), "Deployment")["spec"]["template"]
        return found

    return template() != template("--set", f"config.{CHANGES[section]}")


@pytest.mark.parametrize("mode", ["gateway", "standalone"])
@pytest.mark.parametrize("section", [*FIXED_SECTIONS, "gateway.max_body_bytes"])
def test_a_section_that_needs_a_restart_restarts_the_pods(section: str, mode: str) -> None:
    assert restarts_pods(section, mode)


@pytest.mark.parametrize("section", sorted({*MADE_OF} - {"discovery"}))  # of that Envoy knows only that there is any
def test_a_change_of_what_envoys_bootstrap_is_made_of_restarts_its_pods(section: str) -> None:
    assert restarts_pods(section, "standalone")


@pytest.mark.parametrize("section", ["policy", "observe"])
def test_a_section_that_is_read_again_restarts_nothing(section: str) -> None:
    assert not restarts_pods(section, "standalone")


def pods(engines: Sequence[tuple[str, str]], decode_ms: float = 1.0, endpoints: str = "eds") -> Json:
    """The template of a pool of these engines, by address and model."""
    listed = [{"address": address, "model": model} for address, model in engines]
    config = {
        "gateway": {"endpoints": endpoints},
        "pool": {"endpoints": listed, "models": {"m": {"decode_ms_per_token": decode_ms}}},
    }
    documents = rendered("--set", "mode=standalone", "--set-json", f"config={json.dumps(config)}")
    found: Json = one(documents, "Deployment")["spec"]["template"]
    return found


def test_an_engine_that_comes_or_a_constant_that_changes_restarts_nothing() -> None:
    """Envoy hears of addresses from the sidecar, and of constants it knows nothing."""
    one_engine = pods([("10.0.0.1:8000", "m")])
    assert pods([("10.0.0.1:8000", "m"), ("10.0.0.2:8000", "m")]) == one_engine
    assert pods([("10.0.0.1:8000", "m")], decode_ms=2.0) == one_engine
    assert pods([("10.0.0.1:8000", "other")]) != one_engine


def test_where_envoy_has_a_static_list_another_engine_restarts_the_pods() -> None:
    engines = [("10.0.0.1:8000", "m"), ("10.0.0.2:8000", "m")]
    assert pods(engines, endpoints="static") != pods(engines[:1], endpoints="static")


@pytest.mark.parametrize("section", ["pool", "routes"])
def test_behind_a_gateway_no_bootstrap_restarts_a_pod(section: str) -> None:
    assert not restarts_pods(section, "gateway")


def test_what_prometheus_scrapes_is_the_job_that_the_alerts_ask_for() -> None:
    """Without a jobLabel the operator takes the Service's name, and no alert ever fires."""
    documents = rendered("--set", "serviceMonitor.enabled=true")
    monitor = one(documents, "ServiceMonitor")["spec"]
    selected = monitor["selector"]["matchLabels"].items()
    services = [each["metadata"]["labels"] for each in documents if each["kind"] == "Service"]
    (admin,) = (labels for labels in services if selected <= labels.items())
    rules = [path.read_text(encoding="utf-8") for path in (PROMETHEUS / "alerts.yaml", PROMETHEUS / "recording.yaml")]
    assert {admin[monitor["jobLabel"]]} == set(re.findall(r'\bjob="([^"]+)"', "".join(rules)))


@pytest.mark.parametrize(
    ("arguments", "resources"),
    [
        ((), {"inferencepools", "inferenceobjectives", "inferencemodelrewrites", "pods"}),
        (("--set", "mode=standalone"), {"pods"}),
        (("--set", "mode=standalone", "--set", "modelServers.service=vllm"), {"endpointslices"}),
    ],
)
def test_it_may_only_read_what_it_follows(arguments: tuple[str, ...], resources: set[str]) -> None:
    rules = one(rendered(*arguments), "Role")["rules"]
    assert {resource for rule in rules for resource in rule["resources"]} == resources
    assert all(rule["verbs"] == ["get", "list", "watch"] for rule in rules)


def test_the_users_configuration_is_put_over_the_charts() -> None:
    config = configuration(rendered("--set", "config.policy.name=lmetric", "--set", "config.gateway.fallbacks=1"))
    assert (config.policy.name, config.gateway.fallbacks, config.listen.admin) == ("lmetric", 1, "0.0.0.0:9003")


def test_replicas_that_share_nothing_are_refused() -> None:
    done = helm("template", "release", str(CHART), "--set", "replicas=2")
    assert done.returncode != 0
    assert "set redis.url or redis.enabled" in done.stderr
    assert configuration(rendered("--set", "replicas=2", "--set", "redis.url=redis://r:6379/0")).sessions.store


@pytest.mark.parametrize("wrong", ["mode=sidecar", "tls.mode=on", "modelServers.targetPorts={70000}", "mdoe=gateway"])
def test_a_value_that_is_none_is_refused(wrong: str) -> None:
    assert helm("template", "release", str(CHART), "--set", wrong).returncode != 0


CLOSED: Final = (
    "image", "redis", "envoy", "service", "serviceAccount", "pdb", "autoscaling", "serviceMonitor", "networkPolicy",
)  # fmt: skip


@pytest.mark.parametrize("section", CLOSED)
def test_a_key_that_no_template_reads_is_refused(section: str) -> None:
    """It would be left out without a word: a monitor with `labels` is one that no Prometheus selects."""
    assert helm("template", "release", str(CHART), "--set", f"{section}.labels=x").returncode != 0


def test_the_schema_takes_the_keys_of_the_values_and_all_that_the_templates_read() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))["properties"]
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    templates = "".join(path.read_text(encoding="utf-8") for path in (CHART / "templates").iterdir())
    for section in CLOSED:
        known = set(schema[section]["properties"])
        assert set(re.findall(rf"\.Values\.{section}\.(\w+)", templates)) <= known == set(values[section])
