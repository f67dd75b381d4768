"""Build the sdist and the wheel twice, see that both builds are the same bytes, check them, and write an SBOM of the
image. Publishes nothing.

Run it by `make release`, in an environment that has `requirements-release.txt` and the build system of pyproject.toml.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the sdist and the wheel go")
    out: Path = parser.parse_args().out
    with tempfile.TemporaryDirectory(prefix="fairlead-release-") as folder:
        first, second = Path(folder) / "first", Path(folder) / "second"
        build(first)
        build(second)
        differing = [name for name, digest in digests(first).items() if digests(second).get(name) != digest]
        if differing:
            sys.exit(f"release: two builds of the same commit differ in {', '.join(differing)}; nothing was written")
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(first, out)
    files = sorted(out.iterdir())
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *map(str, files)], check=True)
    for file in (*files, bill_of_materials(out / f"{files[0].name.partition('-py3')[0]}.cdx.json")):
        print(f"{digests(out)[file.name]}  {file.name}  {file.stat().st_size:,} bytes")
    print("Nothing was published: see docs/release.md for what comes next.")


def build(out: Path) -> None:
    """The sdist, and the wheel from the sdist, so that what the sdist lacks is found here."""
    environment = os.environ | {"SOURCE_DATE_EPOCH": commit_time(), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"release: the build failed\n{done.stdout}{done.stderr}")


def bill_of_materials(path: Path) -> Path:
    """CycloneDX, of what `requirements.lock` puts alongside the package into the image: names, versions, hashes."""
    command = [sys.executable, "-m", "cyclonedx_py", "requirements", str(ROOT / "requirements.lock")]
    options = ["--pyproject", str(ROOT / "pyproject.toml"), "--output-reproducible", "--output-file", str(path)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"release: the SBOM could not be made\n{done.stderr}")
    return path


def commit_time() -> str:
    """Unix time of the last commit: it is the time of all files in the archives."""
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of each file, by name."""
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


if __name__ == "__main__":
    main()
