"""One tuning from its traces to its files, with a progress bar; nothing half written is left when it fails."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fairlead.bench.commit import commit
from fairlead.errors import UserError
from fairlead.replay.contest import REFERENCE, Contestant, contestant, faster_for
from fairlead.replay.run import Traffic, workload_of
from fairlead.replay.world import World
from fairlead.tuning import report
from fairlead.tuning.offline import Found, Ground, runs, tune
from fairlead.tuning.weights import BOXES, weights_of

_FILES = ("proposals.jsonl", "tune.md", "tune.png")
_WEIGHTS = "weights.yaml"


class Request(msgspec.Struct, frozen=True):
    """What is asked for; `load` None leaves times as recorded."""

    traffics: tuple[Traffic, ...]
    policy: Contestant
    world: World
    load: float | None
    seeds: tuple[int, ...]
    share: float
    proposals: int
    seed: int


def make(request: Request, out: Path, jobs: int | None) -> str:
    """Tune, write the files to `out`, and tell the result in a paragraph. Raises UserError.

    An older weights.yaml does not outlive a search that found no gain.
    """
    policy, box = request.policy.policy(), BOXES.get(request.policy.name)
    if box is None:
        raise UserError(f'policy "{request.policy.name}" has no weights to tune; tunable are: {", ".join(BOXES)}')
    for name, value in weights_of(policy, box).items():
        if not box[name][0] <= value <= box[name][1]:
            raise UserError(f"{name} {value:g} is outside the box {box[name][0]:g} to {box[name][1]:g}; start inside")
    traffics, notes = _loaded(request)
    ground = Ground(traffics, request.policy.world(request.world), request.seeds, request.share)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} simulations"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        refresh_per_second=2,
    ) as shown:
        task = shown.add_task("tune", total=runs(ground, request.proposals))
        found = tune(
            request.policy.name,
            policy,
            box,
            ground,
            proposals=request.proposals,
            seed=request.seed,
            jobs=min(jobs or os.cpu_count() or 1, len(traffics) * len(request.seeds)),
            progress=lambda ended: shown.advance(task, ended),
        )
    origin = report.Origin(
        command=shlex.join(["fairlead", *sys.argv[1:]]),
        commit=commit(),
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        notes=notes,
    )
    try:
        _write(found, request.policy, origin, out)
    except OSError as error:
        raise UserError(f"--out {error.filename or out}: cannot be written ({error.strerror})") from None
    return report.verdict(found)


def _loaded(request: Request) -> tuple[tuple[Traffic, ...], tuple[str, ...]]:
    """Traces at the wanted rate, and how it was set."""
    if request.load is None:
        return request.traffics, ()
    traffics, notes = [], []
    for traffic in request.traffics:
        workload = workload_of(traffic, request.seeds[0])
        faster = faster_for(request.load, request.world, workload, contestant(REFERENCE))
        traffics.append(msgspec.structs.replace(traffic, faster=faster))
        notes.append(
            f"{workload.name}: {request.load:g} of what `{REFERENCE}` can serve, conversations start {faster:.3g} "
            "times as often as recorded"
        )
    return tuple(traffics), tuple(notes)


def _write(found: Found, policy: Contestant, origin: report.Origin, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".unfinished-") as name:
        folder = Path(name)
        (folder / "proposals.jsonl").write_bytes(report.proposals_jsonl(found))
        (folder / "tune.md").write_text(report.markdown(found, origin), encoding="utf-8")
        (folder / "tune.png").write_bytes(report.picture(found))
        files = list(_FILES)
        if found.held_out is not None and found.held_out.is_gain:
            (folder / _WEIGHTS).write_text(report.weights_yaml(found, policy.parameters, origin), encoding="utf-8")
            files.append(_WEIGHTS)
        else:
            (out / _WEIGHTS).unlink(missing_ok=True)
        for file in files:
            (folder / file).replace(out / file)
