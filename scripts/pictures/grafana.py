"""Every panel of deploy/grafana/*.json asked of a Prometheus, and what of it is a fault."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from PIL import Image

from scripts.dashboards import FOLDER
from scripts.pictures.panels import Drawn, Line, dashboard_picture, legend
from tests.stack.prometheus import Prometheus

# Panels in which nothing but 0 is to be seen, and why that is no fault of theirs, by a part of their title.
QUIET: Final[Mapping[str, str]] = {
    "KV events": "0: simulated engines publish none",
    "Faults of Fairlead itself": "0, as it should be",
    "Connections closed for what their peer did": "0, as it should be",
}


async def dashboards(
    prometheus: Prometheus, *, start_s: float, end_s: float, scraped_every_s: float, about: str
) -> tuple[Mapping[str, Image.Image], Sequence[str]]:
    """A picture of each dashboard over a window of Unix time, by its file's name; `about` is written below its title.

    And what is at fault: panels that show nothing and are not in `QUIET`, and series without a name.
    """
    step_s = max(scraped_every_s, (end_s - start_s) / 400)
    rate_interval_s = max(step_s + scraped_every_s, 4 * scraped_every_s)  # as Grafana computes $__rate_interval
    below = f"{about}; scraped each {scraped_every_s:g} s, rates over {rate_interval_s:g} s"
    faults: list[str] = []
    pictures = {}
    for path in sorted(FOLDER.glob("*.json")):
        dashboard = json.loads(path.read_text(encoding="utf-8"))
        drawn = []
        for panel in dashboard["panels"]:
            lines = []
            for target in panel["targets"]:
                query = target["expr"].replace("$__rate_interval", f"{math.ceil(rate_interval_s)}s")
                query = query.replace("$job", "fairlead").replace("$instance", ".*")
                series = await prometheus.ask_range(query, start_s, end_s, step_s)
                lines += [_line(each, target["legendFormat"], end_s) for each in series]
            lines = [line for line in lines if any(math.isfinite(value) for value in line.values)]
            lines.sort(key=lambda line: line.legend)
            where = f"{path.stem}: {panel['title']}"
            why_quiet = note(panel["title"], lines)
            if why_quiet is None:
                faults.append(f"{where}: nothing is to be seen")
            faults += [f"{where}: a series without a name" for line in lines if not line.legend]
            drawn.append(Drawn(panel["title"], panel["fieldConfig"]["defaults"]["unit"], lines, why_quiet or ""))
        pictures[path.stem] = dashboard_picture(dashboard["title"], below, drawn)
    return pictures, faults


def _line(series: Mapping[str, Any], form: str, end_s: float) -> Line:
    samples = series["values"]
    values = [float(value) for _, value in samples]
    return Line(legend(form, series["metric"]), [at_s - end_s for at_s, _ in samples], values)


def note(title: str, lines: list[Line]) -> str | None:
    """Why nothing is to be seen: empty if something is, None if something should be."""
    if any(value > 0 for line in lines for value in line.values):
        return ""
    return next((why for part, why in QUIET.items() if part in title), None)
