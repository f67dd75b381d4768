"""`make bare-image`: the Dockerfile carried out and its image run, where no container engine is.

Its base is a bare Debian root by debootstrap, each stage a folder that `chroot` enters; the image runs there as
`docker run --read-only --tmpfs /tmp --cap-drop ALL` would run it. Layers, networks and the real base are not seen here.
Needs root, debootstrap and a package mirror; some minutes.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import aiohttp
import yaml

from fairlead.config import load
from fairlead.gateway import EnvoyProcess, bootstrap
from fairlead.processes import Child, free_ports
from fairlead.tools.simulate.server import EngineOptions, running_engine

ROOT: Final = Path(__file__).resolve().parent.parent
_PYTHON: Final = "python3,python3-venv,ca-certificates"  # what the real base has, too
_CONFIGURATION: Final = "etc/fairlead/fairlead.yaml"
_FETCHES_BY: Final = ("PIP_CERT", "PIP_INDEX_URL")
# As `--read-only --tmpfs /tmp --cap-drop ALL`: the shell's arguments are the root, the user and the command.
_RUN: Final = """
mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && mount -t tmpfs tmpfs "$1/tmp" && mount --bind /proc "$1/proc"
root=$1 user=$2; shift 2
exec chroot "$root" setpriv --reuid="$user" --regid="$user" --clear-groups --bounding-set=-all --no-new-privs -- "$@"
"""


def instructions() -> list[tuple[str, str]]:
    """Keyword and arguments of each, with continued lines joined."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", "").splitlines()
    return [(keyword, arguments) for keyword, _, arguments in (line.partition(" ") for line in joined)]


def words(keyword: str) -> list[str]:
    """Of the last instruction of this kind, in JSON."""
    text = [arguments for name, arguments in instructions() if name == keyword][-1]
    return list(json.loads(text[text.index("[") :]))


class Stages:
    """A root for each stage, of which the last is the image."""

    def __init__(self, base: Path, folder: Path) -> None:
        self._base, self._folder = base, folder
        self._roots: dict[str, Path] = {}
        self.user = "0"

    def build(self) -> Path:
        root, work = self._base, Path("/")
        for keyword, arguments in instructions():
            if keyword == "FROM":
                name = arguments.partition(" AS ")[2] or "image"
                root = self._roots[name] = self._folder / name
                subprocess.run(["cp", "--archive", "--reflink=auto", str(self._base), str(root)], check=True)
                work = Path("/")
            elif keyword == "WORKDIR":
                work = Path(arguments)
                (root / arguments.lstrip("/")).mkdir(parents=True)
            elif keyword == "COPY":
                self._copy(root, work, arguments.split())
            elif keyword == "RUN":
                print(f"RUN {arguments}", flush=True)
                subprocess.run(chrooted(root, work, arguments), env=_environment(), check=True)
            elif keyword == "USER":
                self.user = arguments
        return root

    def _copy(self, root: Path, work: Path, names: Sequence[str]) -> None:
        came_from = ROOT
        if names[0].startswith("--from="):
            came_from, names = self._roots[names[0].partition("=")[2]], names[1:]
        *sources, target = names
        for name in sources:
            source, to = came_from / name.lstrip("/"), root / str(work / target).lstrip("/")
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*_pb2.py*") if came_from == ROOT else None
                shutil.copytree(source, to, ignore=ignored, symlinks=True)
            else:
                shutil.copy(source, to)


def chrooted(root: Path, work: Path, command: str) -> list[str]:
    return ["chroot", str(root), "sh", "-ec", f"cd {work} && {command}"]


def _environment() -> dict[str, str]:
    fetches = {name: os.environ[name] for name in _FETCHES_BY if name in os.environ}
    return {"PATH": "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin", "LANG": "C.UTF-8"} | fetches


def bare_base(root: Path) -> None:
    subprocess.run(["debootstrap", "--variant=minbase", f"--include={_PYTHON}", "bookworm", str(root)], check=True)
    (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    for file in (Path("/etc/resolv.conf"), Path(os.environ.get("PIP_CERT", "/etc/hosts"))):
        shutil.copy(file, root / str(file).lstrip("/"))


def running(root: Path, user: str, command: Sequence[str]) -> list[str]:
    """A command of the image as a container would run it; it sees this machine's network."""
    return ["unshare", "--mount", "sh", "-ec", _RUN, "sh", str(root), user, *command]


async def serves(root: Path, user: str) -> None:
    """The image's own command, health check and stop, and a request through Envoy."""
    grpc, admin, listen, envoy_admin = (f"127.0.0.1:{port}" for port in free_ports(4))
    healthy = [argument.replace("127.0.0.1:9003", admin) for argument in words("HEALTHCHECK")]
    configuration = root / _CONFIGURATION
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(running_engine(EngineOptions(model="small", time_scale=50.0)))
        document = {
            "listen": {"grpc": grpc, "admin": admin},
            "gateway": {"listen": listen},
            "pool": {"endpoints": [{"address": engine.address, "model": "small"}]},
        }
        configuration.parent.mkdir()
        configuration.write_text(yaml.safe_dump(document))
        _expect(await _ends(running(root, user, healthy)) != 0, "unhealthy while nobody listens")
        command = running(root, user, [*words("ENTRYPOINT"), *words("CMD")])
        async with Child("image", command, stop_within_s=60.0) as image:
            await image.until_ready(f"http://{admin}/readyz", within_s=60.0)
            _expect(await _ends(running(root, user, healthy)) == 0, "its health check says so when it serves")
            for path in ("/opt/fairlead/x", "/etc/x", "/x"):
                _expect(await _ends(running(root, user, ["sh", "-c", f": >{path}"])) != 0, f"{path} cannot be written")
            tree = bootstrap(load(configuration), admin_address=envoy_admin)
            await stack.enter_async_context(EnvoyProcess(tree, ready_within_s=60.0))
            body = {"model": "small", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
            async with (
                aiohttp.ClientSession() as client,
                client.post(f"http://{listen}/v1/chat/completions", json=body) as answer,
            ):
                advised = answer.headers.get("x-fairlead-endpoint")
                _expect(answer.status == 200 and advised == engine.address, "a request through Envoy is routed by it")
        _expect(await _ends(running(root, user, healthy)) != 0, "unhealthy when it has ended")


async def _ends(command: Sequence[str]) -> int:
    quiet = asyncio.subprocess.DEVNULL
    return await (await asyncio.create_subprocess_exec(*command, stdout=quiet, stderr=quiet)).wait()


def _expect(is_so: bool, what: str) -> None:
    if not is_so:
        sys.exit(f"bare-image: not so: {what}")
    print(f"seen: {what}", flush=True)


def main() -> None:
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        sys.exit("bare-image: run it as root, with debootstrap installed")
    with tempfile.TemporaryDirectory(prefix="fairlead-image-") as name:
        base = Path(name) / "base"
        bare_base(base)
        stages = Stages(base, Path(name))
        root = stages.build()
        asyncio.run(serves(root, stages.user))
        size = subprocess.run(["du", "-sh", str(root / "opt/fairlead")], capture_output=True, text=True, check=True)
        print(f"seen: /opt/fairlead has {size.stdout.split()[0]}")


if __name__ == "__main__":
    main()
