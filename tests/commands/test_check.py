"""`check` accepts what `serve` can run, and nothing else."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.core.lengths import BUCKETS

CONFIG = "pool:\n  endpoints:\n    - {address: '127.0.0.1:8000', model: m}\n"
ENDPOINT = "    - {address: 'localhost:8000', model: m}\n"
CASCADE = (
    "    - {address: '127.0.0.1:8001', model: n}\nroutes:\n  auto:\n    cascade: [m, n]\n    thresholds: [50]\n"
    "    judge: {function: 'JUDGE'}\n"
)

# A process in which some libraries are not installed.
FAIRLEAD = """
import sys
missing = sys.argv.pop(1).split(",")
class NotInstalled:
    def find_spec(self, name, *_):
        if name in missing:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
sys.meta_path.insert(0, NotInstalled())
from fairlead import cli
cli.main()
"""


def run(command: str, path: Path, *, missing: str = "") -> tuple[int, list[str]]:
    """The exit status, and the lines that were printed to stderr."""
    arguments = [sys.executable, "-c", FAIRLEAD, missing, command, "--config", path.name]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False, cwd=path.parent)
    return done.returncode, done.stderr.removeprefix("fairlead: ").splitlines()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "f.yaml"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CONFIG + "listen: {admin: '192.0.2.1:9003'}\n", '4: listen.admin: "192.0.2.1:9003" cannot be listened at on'),
        (CONFIG + "listen: {grpc: 'unix:/none/f.sock'}\n", "4: listen.grpc: /none is not a folder; create one there"),
        (CONFIG + ENDPOINT, '4: pool.endpoints[1].address: "localhost:8000" is 127.0.0.1:8000, as'),
        (CONFIG + "    - {address: 'no.such.invalid:1', model: m}\n", "4: pool.endpoints[1].address: the host name"),
        (CONFIG + "listen: {tls: {certificate: none.pem, key: none.pem}}\n", "none.pem cannot be used (No such file"),
        (CONFIG + "decisions: {path: f.yaml/log}\n", "f.yaml is not a folder; create one there, or change the path"),
        (CONFIG + "observe: {state: f.yaml/learned.json}\n", "observe.state: "),
        (CONFIG + "observe: {state: .}\n", "is a folder; write the path of a file"),
        (CONFIG + CASCADE.replace("JUDGE", "judges:none"), '9: routes.auto.judge.function: the judge "judges:none"'),
        (CONFIG + CASCADE.replace("JUDGE", "broken:f"), "cannot be loaded (ZeroDivisionError: division by zero)"),
        (CONFIG + "gateway: {listen: 'localhost:8080'}\n", '4: gateway.listen: "localhost" is a name and Envoy'),
        (CONFIG + "  models: {m: {capability: none.json}}\n", "4: pool.models.m.capability: none.json cannot be read"),
        (CONFIG + "  models: {m: {capability: bad.json}}\n", "4: pool.models.m.capability: bad.json: task: expect"),
    ],
)  # fmt: skip
def test_what_serve_would_refuse_is_refused_with_the_line_and_by_serve_in_the_same_words(
    file: Path, text: str, message: str
) -> None:
    file.write_text(text)
    (file.parent / "judges.py").touch()
    (file.parent / "broken.py").write_text("1 / 0\n")
    (file.parent / "bad.json").write_text(json.dumps({"task": 3, "buckets": BUCKETS, "models": {}}))
    code, lines = run("check", file)
    assert (code, len(lines)) == (2, 1), lines
    assert lines[0].startswith("f.yaml:")
    assert message in lines[0]
    assert run("serve", file) == (code, lines)


@pytest.mark.parametrize(
    ("text", "missing", "message"),
    [
        (CONFIG.replace("m}", "m, kv_events: {events: 'tcp://127.0.0.1:1'}}"), "zmq",
         "3: pool.endpoints[0].kv_events: needs the package pyzmq; in a checkout of Fairlead run: pip install"),
        (CONFIG + "sessions:\n  store: redis://127.0.0.1:6379/0\n", "redis", "5: sessions.store: Redis needs the"),
        (CONFIG + "decisions: {path: log}\n", "polars", "4: decisions: needs polars, which is not"),
        (CONFIG + "listen: {tls: {self_signed: true}}\n", "cryptography",
         "4: listen.tls.self_signed: needs cryptography, which is not"),
    ],
)  # fmt: skip
def test_a_library_that_the_configuration_needs_and_is_not_installed_is_reported(
    file: Path, text: str, missing: str, message: str
) -> None:
    file.write_text(text)
    for command in ("check", "serve"):
        code, [line] = run(command, file, missing=missing)
        assert code == 2
        assert f"f.yaml:{message}" in line
    assert run("check", file) == (0, [])


def test_everything_that_is_in_the_way_is_reported_at_once(file: Path) -> None:
    text = CONFIG + ENDPOINT + "  models: {m: {capability: none.json}}\nlisten: {admin: '192.0.2.1:9003'}\n"
    file.write_text(text + "sessions: {store: redis://h:1}\n")
    _, lines = run("check", file, missing="redis")
    found = {line.split(": ")[1] for line in lines}
    assert found == {"pool.models.m.capability", "pool.endpoints[1].address", "sessions.store", "listen.admin"}


def test_a_sidecar_that_runs_at_these_addresses_does_not_hinder_check(file: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        file.write_text(CONFIG + f"listen: {{grpc: '127.0.0.1:{taken.getsockname()[1]}'}}\n")
        assert run("check", file) == (0, [])


def test_check_makes_no_folder(file: Path) -> None:
    file.write_text(CONFIG + "decisions: {path: new/log}\n")
    assert run("check", file) == (0, [])
    assert os.listdir(file.parent) == ["f.yaml"]  # noqa: PTH208


def test_output_that_a_full_disk_does_not_take_is_one_sentence() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fairlead", "check", "--schema"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (1, b"fairlead: output: cannot be written (No space left on device)\n")
