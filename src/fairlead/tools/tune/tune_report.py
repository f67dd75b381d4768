"""The output of `fairlead tune`: the weights to copy, every proposal, a picture, and a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from matplotlib.figure import Figure

from fairlead.tools.estimates import Estimate
from fairlead.tools.figures import png_of, tidy
from fairlead.tools.origin import Origin
from fairlead.tools.tune.offline import FIRST_TOKEN_TOLERANCE, Comparison, Proposal, TuningResult
from fairlead.tuning.weights import BOXES, Weights

_OUR_COLOUR: Final = "#D55E00"
_REJECTED_COLOUR: Final = "#0072B2"
_GREY: Final = "#777777"


def weights_yaml(result: TuningResult, parameters: dict[str, Any], origin: Origin) -> str:
    """The section `policy` of a configuration with the tuned weights in it."""
    assert result.held_out is not None
    changed = parameters | {name: _short(value) for name, value in result.best.items()}
    inside = ", ".join(f"{name}: {value}" for name, value in changed.items())
    lines = (
        f"# {origin.command}",
        f"# Fairlead {origin.commit}, {origin.date}",
        f"# Against {_weights_text(result.start)} on held-out traffic:",
        f"# {_ratios_text(result.held_out)}.",
        f"policy: {{name: {result.policy}, {inside}}}",
    )
    return "\n".join(lines) + "\n"


def proposals_jsonl(result: TuningResult) -> bytes:
    """One line a proposal, in their order."""
    return b"".join(msgspec.json.encode(proposal) + b"\n" for proposal in result.proposals)


def verdict(result: TuningResult) -> str:
    """One paragraph: the gain, or why there is none to report."""
    if result.held_out is None:
        return (
            f"No gain: none of {len(result.proposals)} proposals was better than {_weights_text(result.start)} on the "
            "traffic that was tuned on. Keep the weights as they are."
        )
    weights = f"{_weights_text(result.best)} against {_weights_text(result.start)}"
    numbers = f"{weights} on held-out traffic: {_ratios_text(result.held_out)}"
    if result.held_out.is_gain:
        return f"Gain: {numbers}."
    return f"No gain: {_why_not(result.held_out)}. Measured: {numbers}. Keep the weights as they are."


def markdown(result: TuningResult, origin: Origin, notes: Sequence[str]) -> str:
    """The report."""
    lines = [
        f"# Weights of `{result.policy}`, tuned",
        "",
        f"`{origin.command}`, commit {origin.commit}, {origin.date}.",
        "",
        verdict(result),
        "",
        *[f"- {note}" for note in notes],
        "- Ratios are geometric means over slices of traffic with their 95 % intervals; below 1 is better. Weights are "
        "searched on the first part of each trace and judged on the rest.",
        "",
        "![proposals](tune.png)",
        "",
        f"| proposal | {' | '.join(result.start)} | p95 to the end, ms | first token, ms | against the start | |",
        f"| ---: | {' | '.join('---:' for _ in result.start)} | ---: | ---: | ---: | --- |",
        _row("start", result.start, result.start_p95_ms, result.start_first_token_p95_ms, "1", ""),
        *[_proposal_row(proposal) for proposal in result.proposals],
    ]
    return "\n".join(lines) + "\n"


def picture(result: TuningResult) -> bytes:
    """A PNG: p95 of each proposal at the left, where the proposals lie in the box at the right."""
    figure = Figure(figsize=(11, 4), dpi=120, layout="constrained")
    left, right = figure.subplots(1, 2)
    _times(left, result)
    _places(right, result)
    return png_of(figure)


def _times(axes: Any, result: TuningResult) -> None:
    numbers = [0, *[proposal.number for proposal in result.proposals]]
    accepted = [True, *[proposal.accepted for proposal in result.proposals]]
    for title, marker, values in (
        ("to the end", "o", [result.start_p95_ms, *[p.p95_ms for p in result.proposals]]),
        (
            "to the first token",
            "^",
            [result.start_first_token_p95_ms, *[p.first_token_p95_ms for p in result.proposals]],
        ),
    ):
        best: list[float] = []
        for value, taken in zip(values, accepted, strict=True):
            best.append(value if taken else best[-1])
        axes.step(numbers, best, where="post", color=_OUR_COLOUR, linewidth=1.4)
        colours = [_OUR_COLOUR if taken else _REJECTED_COLOUR for taken in accepted]
        axes.scatter(numbers, values, color=colours, marker=marker, s=22, label=f"p95 {title}")
    axes.set(xlabel="proposal (0: the start)", ylabel="ms, on the part that is tuned on", yscale="log")
    axes.legend(frameon=False, fontsize=8)
    tidy(axes)


def _places(axes: Any, result: TuningResult) -> None:
    across, up = list(result.start)
    for taken, colour in ((False, _REJECTED_COLOUR), (True, _OUR_COLOUR)):
        mine = [proposal.candidate for proposal in result.proposals if proposal.accepted == taken]
        label = "accepted" if taken else "rejected"
        axes.scatter([w[across] for w in mine], [w[up] for w in mine], color=colour, s=22, label=label)
    way = [result.start, *[proposal.candidate for proposal in result.proposals if proposal.accepted]]
    axes.plot([w[across] for w in way], [w[up] for w in way], color=_OUR_COLOUR, linewidth=1)
    axes.scatter([result.start[across]], [result.start[up]], color="black", marker="*", s=70, label="start", zorder=3)
    box = BOXES[result.policy]
    axes.set(xscale="log", yscale="log", xlim=box[across], ylim=box[up], xlabel=across, ylabel=up)
    axes.set_title("the box of the search", fontsize=9, color=_GREY)
    axes.legend(frameon=False, fontsize=8)
    tidy(axes)


def _why_not(held_out: Comparison) -> str:
    if held_out.total.high >= 1.0:
        return "the interval of the ratio on held-out traffic includes 1"
    return f"the first token comes more than {FIRST_TOKEN_TOLERANCE:.0%} later"


def _proposal_row(proposal: Proposal) -> str:
    ratio = _ratio_text(proposal.against_start.total)
    taken = "accepted" if proposal.accepted else ""
    return _row(str(proposal.number), proposal.candidate, proposal.p95_ms, proposal.first_token_p95_ms, ratio, taken)


def _row(name: str, weights: Weights, p95_ms: float, first_token_p95_ms: float, ratio: str, taken: str) -> str:
    values: Sequence[str] = [_short(value) for value in weights.values()]
    return f"| {name} | {' | '.join(values)} | {p95_ms:,.0f} | {first_token_p95_ms:,.0f} | {ratio} | {taken} |"


def _weights_text(weights: Weights) -> str:
    return ", ".join(f"{name} {_short(value)}" for name, value in weights.items())


def _ratios_text(compared: Comparison) -> str:
    ends, first_tokens = _ratio_text(compared.total), _ratio_text(compared.first_token)
    return f"{ends} of p95 to the end, {first_tokens} of p95 to the first token"


def _ratio_text(ratio: Estimate) -> str:
    if math.isinf(ratio.high):
        return f"{ratio.mean:.3f}"
    return ratio.text(3)


def _short(value: float) -> str:
    return f"{value:.3g}"
