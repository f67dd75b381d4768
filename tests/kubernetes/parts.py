"""Build kube-apiserver, etcd and helm into the user's cache, and collect the CRDs that the tests need.

    python -m tests.kubernetes.parts         # builds what is missing, and prints each part with its path

Sources come from Go's module proxy, so that a machine needs Go and nothing else: no cluster, no container registry. The
first build takes some ten minutes on two cores; what it makes is kept per version.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import yaml

KUBERNETES: Final = "1.35.6"
ETCD: Final = "3.6.14"
HELM: Final = "3.19.0"
# CustomResourceDefinitions: by module, the files or folder in it, and those of their names that are wanted.
_CRDS: Final = {
    "sigs.k8s.io/gateway-api-inference-extension@v1.6.0": ("config/crd/bases", {"inferencepools"}),
    # llm-d has taken these two over since; its own modules are not on the proxy.
    "sigs.k8s.io/gateway-api-inference-extension@v1.5.0": (
        "config/crd/bases",
        {"inferenceobjectives", "inferencemodelrewrites"},
    ),
    "sigs.k8s.io/gateway-api@v1.4.0": ("config/crd/standard", {"gateways", "httproutes"}),
    "istio.io/api@v1.28.0": ("kubernetes", {"destinationrules"}),
    "github.com/prometheus-operator/prometheus-operator@v0.85.0": (
        "example/prometheus-operator-crd",
        {"servicemonitors"},
    ),
}
# Modules of which the proxy has no v0.35.6 (403 Forbidden, or not in the checksum database); a patch release changes no
# types of them.
_NEAREST: Final = {"k8s.io/externaljwt": "v0.35.5", "k8s.io/kube-proxy": "v0.35.5", "k8s.io/mount-utils": "v0.35.4"}

_CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fairlead" / "kubernetes"


def _go(*arguments: str, folder: str | Path) -> str:
    """What `go` prints. Raises SystemExit with what it says when it fails, such as a module that the proxy refuses."""
    if shutil.which("go") is None:
        sys.exit("kube-apiserver, etcd and helm are Go programs; install Go 1.25 or newer, and run this again")
    ran = subprocess.run(["go", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"go {' '.join(arguments)} failed:\n{ran.stderr or ran.stdout}")
    return ran.stdout


def _download(module: str) -> dict[str, str]:
    """What `go mod download -json` says of a `path@version`: Dir, GoMod, ..."""
    with TemporaryDirectory() as folder:
        answer: dict[str, str] = json.loads(_go("mod", "download", "-json", module, folder=folder))
        return answer


def _module(folder: str) -> None:
    _go("mod", "init", "fairlead.test/parts", folder=folder)


def _build_etcd(program: Path) -> None:
    with TemporaryDirectory() as folder:
        _module(folder)
        _go("get", f"go.etcd.io/etcd/server/v3@v{ETCD}", folder=folder)
        _go("build", "-mod=mod", "-ldflags=-s -w", "-o", str(program), "go.etcd.io/etcd/server/v3", folder=folder)


def _build_helm(program: Path) -> None:
    with TemporaryDirectory() as folder:
        _module(folder)
        _go("get", f"helm.sh/helm/v3/cmd/helm@v{HELM}", folder=folder)
        _go("build", "-mod=mod", "-ldflags=-s -w", "-o", str(program), "helm.sh/helm/v3/cmd/helm", folder=folder)


def _build_apiserver(program: Path) -> None:
    """Its go.mod replaces its own staging modules by folders, which only the main module may: so do we, by versions."""
    module = f"k8s.io/kubernetes@v{KUBERNETES}"
    go_mod = Path(_download(module)["GoMod"]).read_text()
    staged = re.findall(r"^\s*(k8s\.io/[a-z-]+) => \./staging/", go_mod, re.MULTILINE)
    staged_version = "v0." + KUBERNETES.partition(".")[2]
    version = "k8s.io/component-base/version"
    major, minor, _ = KUBERNETES.split(".")
    values = {"gitVersion": f"v{KUBERNETES}", "gitMajor": major, "gitMinor": minor}
    flags = "-s -w " + " ".join(f"-X {version}.{name}={value}" for name, value in values.items())
    with TemporaryDirectory() as folder:
        _module(folder)
        replaced = [f"-replace={name}={name}@{_NEAREST.get(name, staged_version)}" for name in staged]
        _go("mod", "edit", f"-require={module}", *replaced, folder=folder)
        target = "k8s.io/kubernetes/cmd/kube-apiserver"
        _go("build", "-mod=mod", f"-ldflags={flags}", "-o", str(program), target, folder=folder)


_BUILDERS: Final = {
    "etcd": (ETCD, _build_etcd),
    "helm": (HELM, _build_helm),
    "kube-apiserver": (KUBERNETES, _build_apiserver),
}


def part(name: str) -> Path:
    """The program `etcd`, `helm` or `kube-apiserver`, built if it is not there. Raises SystemExit without Go."""
    version, build = _BUILDERS[name]
    program = _CACHE / f"{name}-{version}"
    if not program.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        unfinished = program.with_suffix(f".{os.getpid()}")
        build(unfinished)
        unfinished.rename(program)
    return program


class _Loader(yaml.CSafeLoader):
    """Reads a bare `=` as text, which PyYAML's loaders refuse."""


_Loader.add_constructor("tag:yaml.org,2002:value", yaml.CSafeLoader.construct_yaml_str)  # type: ignore[type-var]


def crds() -> Path:
    """A file with the CustomResourceDefinitions that the charts' manifests and the picker need, one a document."""
    kept = _CACHE / f"crds-{hashlib.sha256(repr(_CRDS).encode()).hexdigest()[:12]}.yaml"
    if not kept.exists():
        found = []
        for module, (place, names) in _CRDS.items():
            files = sorted((Path(_download(module)["Dir"]) / place).glob("*.yaml"))
            documents = [each for file in files for each in yaml.load_all(file.read_bytes(), _Loader)]
            found += [
                each for each in documents if each and each.get("spec", {}).get("names", {}).get("plural") in names
            ]
        _CACHE.mkdir(parents=True, exist_ok=True)
        unfinished = kept.with_suffix(f".{os.getpid()}")
        unfinished.write_text(yaml.safe_dump_all(found))
        unfinished.rename(kept)
    return kept


if __name__ == "__main__":
    for part_name in _BUILDERS:
        began = time.monotonic()
        found = part(part_name)
        print(f"{part_name}\t{time.monotonic() - began:.0f} s\t{found}", flush=True)
    print(f"CRDs\t\t{crds()}")
