"""The chart as plain manifests, for those without Helm: `deploy/kubernetes/manifests`, one file for each ready values.

python -m tests.kubernetes.manifests    # writes them again, after a change of the chart
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from tests.kubernetes.parts import KUBERNETES, part

_ROOT: Final = Path(__file__).parents[2]
CHART: Final = _ROOT / "deploy" / "kubernetes" / "fairlead"
READY: Final = sorted((CHART / "values").glob("*.yaml"))
MANIFESTS: Final = _ROOT / "deploy" / "kubernetes" / "manifests"


def manifest(values: Path) -> str:
    """What helm renders with these values, with how it was made above it."""
    command = ["template", "fairlead", str(CHART.relative_to(_ROOT)), "--namespace", "llm"]
    command += ["--values", str(values.relative_to(_ROOT))]
    run = [str(part("helm")), *command, "--kube-version", KUBERNETES]
    done = subprocess.run(run, capture_output=True, text=True, check=True, cwd=_ROOT)
    return (
        f"# helm {' '.join(command)}\n# Change the chart and write this again: python -m tests.kubernetes.manifests\n"
        + done.stdout
    )


def main() -> None:
    MANIFESTS.mkdir(exist_ok=True)
    for values in READY:
        (MANIFESTS / values.name).write_text(manifest(values), encoding="utf-8")


if __name__ == "__main__":
    main()
