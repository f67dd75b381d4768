"""`fairlead envoy`, run as a user runs it, and the examples in deploy/envoy that it wrote."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from fairlead.commands import envoy
from fairlead.config import load
from fairlead.errors import UserError
from fairlead.gateway import bootstrap, validate

DEPLOY = Path(__file__).parents[2] / "deploy" / "envoy"
EXAMPLES = sorted(DEPLOY.glob("*.fairlead.yaml"))
SMALL = 'pool: {endpoints: [{address: "127.0.0.1:8001", model: m}]}'


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer(pretty_exceptions_enable=False)
    made.callback()(lambda: None)  # a second command, so that typer keeps the name `envoy`
    envoy.register(made)
    return made


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "fairlead.yaml"
    path.write_text(SMALL)
    return path


def test_the_bootstrap_goes_to_standard_output(app: typer.Typer, config: Path) -> None:
    result = CliRunner().invoke(app, ["envoy", "--config", str(config)])

    assert result.exit_code == 0
    assert yaml.safe_load(result.stdout) == bootstrap(load(config))


def test_the_bootstrap_goes_to_a_file_with_mode_and_admin_address_as_asked(app: typer.Typer, config: Path) -> None:
    output = config.parent / "envoy.yaml"
    arguments = ["--mode", "full_duplex", "--admin", "127.0.0.1:9999", "--output", str(output), "--validate"]

    result = CliRunner().invoke(app, ["envoy", "--config", str(config), *arguments])

    assert (result.exit_code, result.stdout) == (0, "")
    expected = bootstrap(load(config), admin_address="127.0.0.1:9999", mode="full_duplex")
    assert yaml.safe_load(output.read_text()) == expected


def test_the_files_that_envoy_needs_to_start_are_made(app: typer.Typer, tmp_path: Path) -> None:
    config, folder = tmp_path / "fairlead.yaml", tmp_path / "kept"
    config.write_text(f"{SMALL}\ngateway: {{remember: {folder}}}\n")
    result = CliRunner().invoke(app, ["envoy", "--config", str(config), "--validate"])
    assert (result.exit_code, result.stderr) == (0, "")
    assert [path.name for path in folder.iterdir()] == ["engines.json"]


def test_a_bootstrap_for_another_machine_says_that_its_files_are_missing(app: typer.Typer, tmp_path: Path) -> None:
    config, folder = tmp_path / "fairlead.yaml", tmp_path / "kept"
    folder.write_text("in the way")
    config.write_text(f"{SMALL}\ngateway: {{remember: {folder}}}\n")
    result = CliRunner().invoke(app, ["envoy", "--config", str(config)])
    assert result.exit_code == 0
    assert result.stderr == (
        f"gateway.remember: {folder} cannot be written here (File exists); where Envoy runs, run this command or the "
        "sidecar before it\n"
    )


def test_an_unknown_mode_is_wrong_use(app: typer.Typer, config: Path) -> None:
    result = CliRunner().invoke(app, ["envoy", "--config", str(config), "--mode", "quick"])

    assert result.exit_code == 2
    assert "full_duplex" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--admin", "9901"], "admin: .*has no host"),
        (["--admin", "localhost:9901"], "^--admin: .*write 127.0.0.1:9901"),
        (["--admin", "127.0.0.1:8080"], '--admin: "127.0.0.1:8080" and gateway.listen "127.0.0.1:8080" are one port'),
        (["--admin", "0.0.0.0:9003"], '--admin: "0.0.0.0:9003" and listen.admin "127.0.0.1:9003" are one port'),
        (["--output", "/nonexistent/envoy.yaml"], "--output /nonexistent/envoy.yaml: cannot be written"),
        (["--config", "/nonexistent/fairlead.yaml"], "cannot be read"),
    ],
)
def test_a_mistake_is_reported_in_a_sentence(
    app: typer.Typer, config: Path, arguments: list[str], sentence: str
) -> None:
    result = CliRunner().invoke(app, ["envoy", "--config", str(config), *arguments])

    assert isinstance(result.exception, UserError)
    assert re.search(sentence, str(result.exception))


@pytest.mark.parametrize("linked", [False, True], ids=["same name", "link"])
def test_the_configuration_is_not_overwritten(app: typer.Typer, config: Path, linked: bool) -> None:
    output = config
    if linked:
        output = config.with_name("envoy.yaml")
        output.symlink_to(config)
    result = CliRunner().invoke(app, ["envoy", "--config", str(config), "--output", str(output)])

    assert isinstance(result.exception, UserError)
    assert str(result.exception).startswith(f"--output {output}: is the configuration itself; name another file")
    assert config.read_text() == SMALL


def test_what_envoy_cannot_do_is_reported_with_the_line_of_its_key(app: typer.Typer, config: Path) -> None:
    config.write_text(f'{SMALL}\ngateway:\n  listen: "localhost:8080"\n')
    result = CliRunner().invoke(app, ["envoy", "--config", str(config)])

    assert isinstance(result.exception, UserError)
    assert str(result.exception).startswith(f'{config}:3: gateway.listen: "localhost" is a name')


def test_the_help_shows_an_example(app: typer.Typer) -> None:
    assert "Example: fairlead envoy" in CliRunner().invoke(app, ["envoy", "--help"]).stdout


def test_every_bootstrap_in_deploy_has_its_configuration() -> None:
    written = {path.name for path in DEPLOY.glob("*.yaml")} - {path.name for path in EXAMPLES}

    assert written == {path.name.replace(".fairlead.yaml", ".yaml") for path in EXAMPLES}
    assert {"stand-alone.yaml", "full-duplex.yaml", "unix-socket.yaml"} <= written


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_the_admin_port_of_an_example_is_on_loopback(example: Path) -> None:
    admin = load(example).listen.admin
    assert admin is not None
    assert admin.startswith("127.0.0.1:")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_what_the_command_in_its_first_line_writes(
    app: typer.Typer, example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = (DEPLOY / example.name.replace(".fairlead.yaml", ".yaml")).read_text()
    command = written.splitlines()[0].removeprefix("# Envoy bootstrap, written by: fairlead ")
    monkeypatch.chdir(DEPLOY)

    result = CliRunner().invoke(app, shlex.split(command))

    assert result.stdout == written
    validate(yaml.safe_load(written))
