"""What sections must agree on."""

from __future__ import annotations

import pytest

from fairlead.config import ConfigError, parse

POOL = """pool:
  endpoints:
    - {address: '127.0.0.1:8000', model: small}
    - {address: '127.0.0.1:8001', model: large}
"""


def reported(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, "f.yaml")
    return str(caught.value).splitlines()


def test_an_endpoint_that_only_prefills_needs_a_way_to_one_that_decodes() -> None:
    prefill = "    - {address: '127.0.0.1:8002', model: small, role: prefill%s}\n"
    [without] = reported(POOL + prefill % "")
    assert without.startswith("f.yaml:5: pool.endpoints[2].kv_transfer: is required with role prefill")
    [alone] = reported(POOL + prefill % ", kv_transfer: {connector: nixl}")
    assert alone == (
        'f.yaml:5: pool.endpoints[2].role: no endpoint of "small" decodes with kv_transfer nixl; add one, or write both'
    )


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ("listen: {admin: '127.0.0.1:9002'}", 'listen.admin: "127.0.0.1:9002" and listen.grpc "127.0.0.1:9002" are'),
        ("listen: {grpc: '127.0.0.1:9003'}", 'listen.grpc: "127.0.0.1:9003" and listen.admin "127.0.0.1:9003" are'),
        ("listen: {admin: 'localhost:9002'}", "listen.admin:"),
        ("listen: {admin: '0.0.0.0:9002'}", "listen.admin:"),
        ("listen: {admin: '[::]:9002'}", "listen.admin:"),
        ("gateway: {listen: '127.0.0.1:9003'}", 'gateway.listen: "127.0.0.1:9003" and listen.admin'),
        ("listen: {grpc: '10.0.0.1:1', admin: '10.0.0.1:1'}", "listen.admin:"),
    ],
)
def test_one_port_for_two_is_reported_at_the_key_that_was_written(sections: str, message: str) -> None:
    [line] = reported(POOL + sections + "\n")
    assert line.startswith("f.yaml:5: ")
    assert message in line
    assert line.endswith("are one port; choose another for one of them")


@pytest.mark.parametrize(
    "sections",
    [
        "listen: {grpc: '10.0.0.1:9002', admin: '127.0.0.1:9002'}",
        "listen: {grpc: 'unix:/run/f.sock', admin: '127.0.0.1:9002'}",
        "gateway: {listen: '0.0.0.0:8080'}",
    ],
)
def test_one_port_of_two_addresses_is_two(sections: str) -> None:
    parse(POOL + sections + "\n")


@pytest.mark.parametrize("listen", ["127.0.0.1:8000", "0.0.0.0:8000", "localhost:8000"])
def test_an_endpoint_that_is_our_own_listener_would_ask_itself(listen: str) -> None:
    [line] = reported(POOL + f"listen: {{admin: '{listen}'}}\n")
    assert line == (
        'f.yaml:3: pool.endpoints[0].address: "127.0.0.1:8000" is listen.admin, not an engine; '
        "write the address of the engine"
    )


def test_an_engine_elsewhere_may_have_the_port_that_we_listen_at_here() -> None:
    parse(POOL.replace("127.0.0.1:8000", "10.0.0.7:8080") + "gateway: {listen: '0.0.0.0:8080'}\n")


def test_constants_of_a_model_that_no_endpoint_serves_are_a_slip() -> None:
    assert reported(POOL + "  models:\n    smal: {max_model_len: 9}\n") == [
        'f.yaml:6: pool.models.smal: no endpoint serves "smal"; did you mean "small"? Served are: large, small'
    ]


def test_a_route_of_models_with_and_without_capability_is_refused() -> None:
    models = "  models:\n    small: {capability: kv.json}\n"
    [line] = reported(POOL + models + "routes:\n  auto: [small, large]\n")
    assert line.startswith("f.yaml:8: routes.auto: small has a capability and large has none, which counts as always")


@pytest.mark.parametrize("route", ["[small]", "[large]"])
def test_a_capability_of_one_model_is_enough_where_no_route_compares_them(route: str) -> None:
    parse(POOL + "  models:\n    small: {capability: kv.json}\n" + f"routes: {{auto: {route}}}\n")


def test_a_cascade_may_know_the_capability_of_its_small_model_only() -> None:
    cascade = "{cascade: [small, large], thresholds: [50], judge: {function: 'j:f'}}"
    parse(POOL + "  models:\n    small: {capability: kv.json}\n" + f"routes: {{auto: {cascade}}}\n")


def test_all_that_disagrees_is_reported_at_once() -> None:
    lines = reported(POOL + "routes:\n  a: [nobody]\n  b: []\nreuse: {x: {}}\nlisten: {admin: '127.0.0.1:9002'}\n")
    assert [line.split(": ")[1] for line in lines] == ["listen.admin", "routes.a[0]", "routes.b", "reuse.x"]


TASKS = "pool:\n  endpoints: [{address: '127.0.0.1:8000', model: small}]\n  models: {small: {%s}}\n"


@pytest.mark.parametrize(
    ("model", "tasks", "message"),
    [
        ("tasks: {code: c.json}", "{}", "pool.models.small.tasks: needs pool.models.<model>.capability too"),
        ("capability: a.json", "{with_tools: agent}", 'tasks.with_tools: no model has a capability file for "agent"'),
        (
            "capability: a.json",
            "{routes: {small: code}}",
            'tasks.routes.small: no model has a capability file for "code"',
        ),
        (
            "capability: a.json, tasks: {code: c.json}",
            "{routes: {auto: code}}",
            'tasks.routes.auto: "auto" is no route and no served model; write one of: small',
        ),
    ],
)
def test_a_task_needs_a_model_with_a_file_for_it(model: str, tasks: str, message: str) -> None:
    [line] = reported(TASKS % model + f"tasks: {tasks}\n")
    assert message in line


def test_tasks_may_be_of_routes_and_of_requests_with_tools() -> None:
    model = "capability: a.json, tasks: {code: c.json, agent: b.json}"
    parse(TASKS % model + "tasks: {routes: {small: code}, with_tools: agent}\n", "f.yaml")
