"""One tuning study, from its traces to its files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from fairlead.errors import UserError
from fairlead.tools.origin import Origin, origin
from fairlead.tools.replay.policy_spec import REFERENCE, PolicySpec, read_policy_spec
from fairlead.tools.replay.run import Traffic, at_load, workload_of
from fairlead.tools.replay.world import World
from fairlead.tools.study import check_writable, progress_bar, results_in
from fairlead.tools.tune import tune_report
from fairlead.tools.tune.offline import TuningData, TuningResult, runs, tune
from fairlead.tuning.weights import BOXES, weights_of

_WEIGHTS = "weights.yaml"


class TuneRequest(msgspec.Struct, frozen=True):
    """What to tune; `load` None leaves times as recorded."""

    traffics: tuple[Traffic, ...]
    policy: PolicySpec
    world: World
    load: float | None
    seeds: tuple[int, ...]
    share: float
    proposals: int
    seed: int


def make(request: TuneRequest, out: Path, jobs: int | None) -> str:
    """Tune, write the files to `out`, and return the result as a paragraph. Raises UserError.

    If the search finds no gain, an older weights.yaml is removed.
    """
    policy, box = request.policy.policy(), BOXES.get(request.policy.name)
    if box is None:
        raise UserError(f'policy "{request.policy.name}" has no weights to tune; tunable are: {", ".join(BOXES)}')
    for name, value in weights_of(policy, box).items():
        if not box[name][0] <= value <= box[name][1]:
            raise UserError(f"{name} {value:g} is outside the box {box[name][0]:g} to {box[name][1]:g}; start inside")
    check_writable(out)
    traffics, notes = _loaded(request)
    data = TuningData(traffics, request.policy.world(request.world), request.seeds, request.share)
    with progress_bar("simulations") as shown:
        task = shown.add_task("tune", total=runs(data, request.proposals))
        result = tune(
            request.policy.name,
            policy,
            box,
            data,
            proposals=request.proposals,
            seed=request.seed,
            jobs=min(jobs or os.cpu_count() or 1, len(traffics) * len(request.seeds)),
            progress=lambda ended: shown.advance(task, ended),
        )
    _write(result, request.policy, origin(), notes, out)
    return tune_report.verdict(result)


def _loaded(request: TuneRequest) -> tuple[tuple[Traffic, ...], tuple[str, ...]]:
    """Traces at the requested rate, and notes on how it was set."""
    if request.load is None:
        return request.traffics, ()
    references = (read_policy_spec(REFERENCE),)
    loaded = [
        at_load(request.load, traffic, workload_of(traffic, request.seeds[0]), request.world, references)
        for traffic in request.traffics
    ]
    return tuple(traffic for traffic, _ in loaded), tuple(note for _, note in loaded)


def _write(result: TuningResult, policy: PolicySpec, of: Origin, notes: Sequence[str], out: Path) -> None:
    with results_in(out) as folder:
        (folder / "proposals.jsonl").write_bytes(tune_report.proposals_jsonl(result))
        (folder / "tune.md").write_text(tune_report.markdown(result, of, notes), encoding="utf-8")
        (folder / "tune.png").write_bytes(tune_report.picture(result))
        if result.held_out is not None and result.held_out.is_gain:
            (folder / _WEIGHTS).write_text(tune_report.weights_yaml(result, policy.parameters, of), encoding="utf-8")
        else:
            (out / _WEIGHTS).unlink(missing_ok=True)
