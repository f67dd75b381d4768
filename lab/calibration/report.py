"""The quality of a calibration, in Markdown: errors on requests the fit did not see, from similar to different."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Final, NamedTuple

from fairlead.statistics import quantile
from fairlead.tools.bench.markdown import table
from fairlead.tools.replay.calibration import Calibrated, Case, run
from lab.streamed import Took

_SESSION_HEADS: Final = (
    "sessions side by side", "", "real p50", "simulated p50", "error", "real p95", "simulated p95", "error",
    "of one request",
)  # fmt: skip


class Conversed(NamedTuple):
    """The same sessions on both engines, `at_a_time` side by side; requests in the same order."""

    at_a_time: int
    real: Sequence[Took]
    modelled: Sequence[Took]


def markdown(
    model: str,
    facts: str,
    engine: Calibrated,
    fitted: Sequence[Case],
    others: Sequence[Case],
    spread: float,
    conversed: Sequence[Conversed],
) -> str:
    parameters = (
        engine.request_overhead_ms, engine.step_overhead_ms, engine.prefill_ms_per_token, engine.decode_ms_per_step,
        engine.decode_ms_per_sequence,
    )  # fmt: skip
    heads = ("ms a request", "ms a step", "ms a prompt token", "ms a decoding step more", "ms a sequence in it")
    most_fitted = max(case.batch for case in fitted)
    nearest = [case for case in others if case.batch <= most_fitted]
    farther = sorted({case.batch for case in others if case.batch > most_fitted})
    kinds = [
        ("fitted", fitted),
        (f"other prompts, at most {most_fitted} at once", nearest),
        *[(f"{batch} at once", [case for case in others if case.batch == batch]) for batch in farther],
    ]
    batches = [
        (name, len(cases), *_case_errors(engine, cases, "first_token_ms"), *_case_errors(engine, cases, "total_ms"))
        for name, cases in kinds
    ]
    requests = len(conversed[0].real)
    return f"""# The simulated engine against a real one

{facts}

One vLLM server with {model} on CPU, asked through its HTTP API in token ids; {fitted[0].output_tokens} tokens to an \
answer. Of whatever was repeated the shortest time counts: what else ran on the machine (see the load averages) only \
adds, and is not the engine's. The median repeat of a batch took {spread:.2f} times as long as the shortest: the more \
that is above 1, the more of the errors below is the machine's. Simulated times are of the engine model, on its own \
clock.

## Fitted

{len(fitted)} kinds of batches (`measurements.csv`) of at most {most_fitted} requests, through `fairlead calibrate` \
(`engines.json`):

{table(heads, [tuple(f"{ms:.3f}" for ms in parameters)])}

## Batches

Errors of the mean time to first token and of the mean time to the end: the median over the kinds of batches, sign \
included, and the largest. All but the first row are of what the fit did not see (`held-out.csv`).

{table(("batches", "kinds", "first token", "largest", "whole answer", "largest"), batches)}

## Sessions

{requests} requests of multi-turn sessions, each turn repeating the prompt before, from an empty cache; none of them \
was fitted to. The last column is the median over requests of the error's size.

{table(_SESSION_HEADS, [row for each in conversed for row in _session_rows(each)])}

Cached share of prompt tokens: {"; ".join(_cached(each) for each in conversed)}.

The model takes an engine to have its cores to itself and a prompt token to cost the same wherever it stands. Here the \
server's two processes, the client and whatever else runs share the machine's cores, the more so the more requests \
there are at once; and attention to a long prompt costs more than to a short one.
"""


def _case_errors(engine: Calibrated, cases: Sequence[Case], name: str) -> tuple[str, str]:
    parameters = engine.parameters()
    errors = [getattr(run(parameters, case), name) / getattr(case, name) - 1 for case in cases]
    return f"{median(errors):+.0%}", f"{max(errors, key=abs):+.0%}"


def _session_rows(conversed: Conversed) -> list[tuple[str, ...]]:
    def row(name: str, time_ms: Callable[[Took], float]) -> tuple[str, ...]:
        real, modelled = [[time_ms(one) for one in took] for took in (conversed.real, conversed.modelled)]
        each = median(abs(of_model / of_real - 1) for of_real, of_model in zip(real, modelled, strict=True))
        p50, p95 = _both(median(real), median(modelled)), _both(quantile(real, 0.95), quantile(modelled, 0.95))
        return (str(conversed.at_a_time), name, *p50, *p95, f"{each:.0%}")

    return [
        row("first token, ms", lambda one: one.first_token_ms),
        row("whole answer, ms", lambda one: one.total_ms),
    ]


def _both(real: float, modelled: float) -> tuple[str, str, str]:
    return f"{real:.0f}", f"{modelled:.0f}", f"{modelled / real - 1:+.0%}"


def _cached(conversed: Conversed) -> str:
    real, modelled = [
        sum(one.cached_tokens for one in took) / sum(one.prompt_tokens for one in took)
        for took in (conversed.real, conversed.modelled)
    ]
    return f"{conversed.at_a_time} side by side real {real:.2%}, simulated {modelled:.2%}"
