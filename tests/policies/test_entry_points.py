"""A policy of somebody else's package: found by its entry point, checked as ours are, and never in the way."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from random import Random
from textwrap import dedent

import pytest

from fairlead.config import ConfigError, load, parse
from fairlead.core.policy import NO_TUNER
from fairlead.policies import build_policy, policy_names
from fairlead.policies.fairlead import Fairlead
from fairlead.policies.registry import Rule
from fairlead.serving.sidecar import Sidecar
from tests.extproc.world import Conversation, chat, destination, request_body, request_headers
from tests.serving.world import ConfigFile

GOOD = """
    from fairlead.core.policy import Ranking
    from fairlead.core.ranking import least_first
    from fairlead.policies.registry import Rule

    class Highest(Rule, frozen=True):
        bias: float = 0.0

        def rank(self, request, candidates, rng):
            return Ranking(least_first(candidates, lambda c: self.bias - int(c.address.rsplit(":", 1)[1])))
"""
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """`install(name, value, code)`: a distribution with one module and one policy, as pip puts it on the path."""
    site = tmp_path / "site-packages"
    monkeypatch.syspath_prepend(site)

    def install(name: str, value: str, code: str, distribution: str = "acme") -> None:
        info = site / f"{distribution}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[fairlead.policies]\n{name} = {value}\n")
        (site / f"{distribution}.py").write_text(dedent(code))
        assert version(distribution) == "1.0"

    yield install
    for module in ("acme", "other"):
        sys.modules.pop(module, None)


def test_it_is_listed_and_not_imported_until_it_is_named(install: Install) -> None:
    install("highest", "acme:Highest", GOOD)
    assert "highest" in policy_names()
    assert "acme" not in sys.modules


def test_it_is_built_with_its_parameters_and_has_what_a_rule_has(install: Install) -> None:
    install("highest", "acme:Highest", GOOD)
    policy = build_policy("highest", {"bias": 2.5})
    assert isinstance(policy, Rule)
    assert policy.bias == 2.5  # type: ignore[attr-defined]
    assert policy.tuner(Random(0)) is NO_TUNER


@pytest.mark.parametrize(("written", "named"), [("bia: 1", "bia"), ("bias: high", "bias")])
def test_a_wrong_parameter_is_reported_as_one_of_ours(install: Install, written: str, named: str) -> None:
    install("highest", "acme:Highest", GOOD)
    with pytest.raises(ConfigError, match=rf"policy highest: .*{named}.*; its parameters are: bias=0\.0"):
        configured("highest", written)


def test_a_parameter_without_a_default_is_reported_as_required(install: Install) -> None:
    install("highest", "acme:Highest", GOOD.replace("bias: float = 0.0", "bias: float"))
    with pytest.raises(ConfigError, match=r"policy highest: .*bias.*; its parameters are: bias \(required\)"):
        configured("highest")
    assert configured("highest", "bias: 1.0") == {"bias": 1.0}


@pytest.mark.parametrize(
    ("value", "code", "reason"),
    [
        ("acme:Highest", "raise RuntimeError('no licence')", r"cannot be loaded: RuntimeError\('no licence'\)"),
        ("acme:Highest", "import no_such_library", "cannot be loaded: ModuleNotFoundError.*no_such_library"),
        ("acme:Highest", "def broken(:", "cannot be loaded: SyntaxError"),
        ("acme:Highest", "raise SystemExit(3)", r"cannot be loaded: SystemExit\(3\)"),
        ("acme:Lowest", GOOD, "cannot be loaded: AttributeError"),
        ("no_such_module:Highest", GOOD, "cannot be loaded: ModuleNotFoundError"),
        ("acme:Highest", "def Highest(): ...", "is no Rule that ranks"),
        ("acme:Highest", "class Highest:\n    def rank(self, *_): ...", "is no Rule that ranks"),
        ("acme:Highest", "from fairlead.policies.registry import Rule as Highest", "is no Rule that ranks"),
        ("acme:Highest", GOOD.replace("def rank", "def order"), "is no Rule that ranks"),
        ("acme:one", GOOD + "\n    one = Highest()\n", "is no Rule that ranks"),
    ],
    ids=[
        "raises",
        "import",
        "syntax",
        "exit",
        "attribute",
        "module",
        "function",
        "class",
        "base",
        "rankless",
        "object",
    ],
)
def test_one_that_cannot_be_used_is_the_configurations_mistake_with_its_cause(
    install: Install, value: str, code: str, reason: str
) -> None:
    install("highest", value, code)
    with pytest.raises(ConfigError, match=rf'^fairlead\.yaml:2: policy.*the policy "highest" of {value} {reason}'):
        configured("highest")


def test_a_broken_one_is_in_nobodys_way_who_does_not_name_it(install: Install) -> None:
    install("highest", "acme:Highest", "raise RuntimeError")
    assert isinstance(build_policy("fairlead", {}), Fairlead)
    with pytest.raises(ConfigError, match=r"Known names: .*highest"):
        configured("hihest")


def test_a_name_of_ours_cannot_be_taken(install: Install) -> None:
    install("fairlead", "acme:Highest", GOOD)
    assert isinstance(build_policy("fairlead", {}), Fairlead)
    assert policy_names().count("fairlead") == 1


def test_a_name_that_two_packages_give_is_refused_with_both(install: Install) -> None:
    install("highest", "acme:Highest", GOOD)
    install("highest", "other:Highest", GOOD, "other")
    with pytest.raises(ConfigError, match=r"highest.*acme.*other|highest.*other.*acme"):
        configured("highest")


def test_it_has_no_weights_that_the_online_tuner_knows(install: Install) -> None:
    install("highest", "acme:Highest", GOOD)
    with pytest.raises(ConfigError, match='policy "highest" has no weights to tune'):
        parse(f"{POOL}policy: {{name: highest}}\ntuner: {{mode: live}}\n")


async def test_serve_goes_by_it_and_a_reload_can_bring_it(install: Install, tmp_path: Path) -> None:
    file = ConfigFile(tmp_path)
    install("highest", "acme:Highest", GOOD)
    pool = {"endpoints": [{"address": f"127.0.0.1:{port}", "model": "small"} for port in (1, 3, 2)]}
    async with Sidecar(file.write(pool=pool, policy={"name": "highest", "bias": 1.5})) as sidecar:
        assert chosen(sidecar) == "127.0.0.1:3,127.0.0.1:2,127.0.0.1:1"
        file.write(pool=pool, policy={"name": "round_robin"})
        await sidecar.reloading.reload()
        assert type(sidecar.services.router.policy).__name__ != "Highest"
        file.write(pool=pool, policy={"name": "highest"})
        await sidecar.reloading.reload()
        assert chosen(sidecar) == "127.0.0.1:3,127.0.0.1:2,127.0.0.1:1"
    assert load(file.path).policy.name == "highest"


POOL = "pool: {endpoints: [{address: '10.0.0.1:1', model: m}]}\n"


def configured(name: str, parameters: str = "") -> dict[str, object]:
    return parse(f"{POOL}policy: {{name: {name}{', ' if parameters else ''}{parameters}}}\n").policy.parameters()


def chosen(sidecar: Sidecar) -> str | None:
    *_, picked = Conversation(sidecar.services).say(request_headers(), request_body(chat("small")))
    return destination(picked)
