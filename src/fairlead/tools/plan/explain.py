"""Plans in words: what one says, and what differs between two."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.tools.plan.capacity import Strategy
from fairlead.tools.plan.plan import Alternative, Plan, StagePlan

_MS_PER_S = 1000.0
_NOTICEABLE = 0.005  # relative; latencies and shares nearer than this are called equal


def strategy_words(strategy: Strategy) -> str:
    return " + ".join(f"{count} x ({shape})" for shape, count in strategy) or "none"


def explain(plan: Plan) -> Iterator[str]:
    """Paragraphs, from what was asked for to what it costs."""
    yield f"Asked for: {plan.objective}, at {plan.rate_per_s:g} requests a second on at most {plan.gpus} GPUs."
    for index, stage in enumerate(plan.stages):
        yield _stage_words(plan, index, stage)
    slowest = max(plan.stages, key=lambda stage: stage.latency.p95_ms)
    end_to_end = (
        f"A request from its arrival to the accepted answer: p50 {_s(plan.end_to_end.p50_ms)}, "
        f"p95 {_s(plan.end_to_end.p95_ms)}."
    )
    if len(plan.stages) > 1:
        end_to_end = (
            f"{slowest.model} is the slowest stage (p95 {_s(slowest.latency.p95_ms)}): GPUs are divided so that this "
            f"is as short as possible. {end_to_end}"
        )
    yield end_to_end
    first, last = plan.models[0], plan.models[-1]
    yield (
        f"Quality {plan.quality:.1f} (± {1.96 * plan.quality_error:.1f}, since the profile is a sample); {first} alone "
        f"reaches {plan.nadir:.1f}, {last} alone {plan.utopia:.1f}."
    )
    yield from _choice_words(plan)
    used = sum(stage.gpus for stage in plan.stages)
    yield f"{used} of {plan.gpus} GPUs are used; a request keeps one busy for {_s(plan.gpu_ms)}."


def _choice_words(plan: Plan) -> Iterator[str]:
    """Which models are used, and what the others would give."""
    used = [stage.model for stage in plan.stages]
    left_out = [model for model in plan.models if model not in used]
    if len(used) == 1:
        yield f"No cascade of these models does better than {used[0]} alone: serve it without one."
    elif left_out:
        yield f"Without {' and '.join(left_out)} the cascade does better."
    if plan.alternatives:
        tried = (f"  {' + '.join(other.models)}: {_alternative_words(other)}" for other in plan.alternatives)
        yield "\n".join(("Planned and simulated as well, from arrival to accepted answer:", *tried))


def _alternative_words(other: Alternative) -> str:
    if other.fault:
        return f"no plan, {other.fault}"
    return f"p95 {_s(other.p95_ms)}, quality {other.quality:.1f}, {_s(other.gpu_ms)} of a GPU for a request"


def _stage_words(plan: Plan, index: int, stage: StagePlan) -> str:
    if not stage.share:
        return f"{stage.model} gets no request: the models before it reach the quality alone."
    words = f"{stage.model} answers {stage.share:.1%} of the requests on {stage.gpus} GPUs, "
    words += f"{strategy_words(stage.strategy)}, with a p95 of {_s(stage.latency.p95_ms)}"
    following = plan.stages[index + 1 : index + 2]
    if not following or not following[0].share:
        return f"{words}; whatever it answers is accepted."
    return f"{words}; an answer that scores below {plan.thresholds[index]:g} goes on to {following[0].model}."


def differences(old: Plan, new: Plan) -> Iterator[str]:
    """One line for each thing that changed; none for equal plans."""
    if old.objective != new.objective:
        yield f"asked for: {old.objective} -> {new.objective}"
    if old.rate_per_s != new.rate_per_s:
        yield f"requests a second: {old.rate_per_s:g} -> {new.rate_per_s:g}"
    before = {stage.model: (index, stage) for index, stage in enumerate(old.stages)}
    for index, stage in enumerate(new.stages):
        if stage.model not in before:
            yield f"{stage.model}: new in the cascade, {stage.gpus} GPUs, {strategy_words(stage.strategy)}"
            continue
        was_at, was = before.pop(stage.model)
        yield from _stage_differences(was, stage)
        thresholds = (*old.thresholds[was_at : was_at + 1], *new.thresholds[index : index + 1])
        if len(set(thresholds)) > 1:
            yield f"{stage.model}: threshold {thresholds[0]:g} -> {thresholds[1]:g}"
    for model in before:
        yield f"{model}: no longer in the cascade"
    if _differ(old.end_to_end.p95_ms, new.end_to_end.p95_ms):
        yield f"p95 end to end: {_s(old.end_to_end.p95_ms)} -> {_s(new.end_to_end.p95_ms)}"
    if _differ(old.quality, new.quality):
        yield f"quality: {old.quality:.2f} -> {new.quality:.2f}"


def _stage_differences(was: StagePlan, now: StagePlan) -> Iterator[str]:
    if _differ(was.share, now.share):
        yield f"{now.model}: share {was.share:.1%} -> {now.share:.1%}"
    if was.gpus != now.gpus:
        yield f"{now.model}: GPUs {was.gpus} -> {now.gpus}"
    if was.strategy != now.strategy:
        yield f"{now.model}: replicas {strategy_words(was.strategy)} -> {strategy_words(now.strategy)}"
    if _differ(was.latency.p95_ms, now.latency.p95_ms):
        yield f"{now.model}: p95 {_s(was.latency.p95_ms)} -> {_s(now.latency.p95_ms)}"


def _differ(old: float, new: float) -> bool:
    return abs(old - new) > _NOTICEABLE * max(abs(old), abs(new))


def _s(value_ms: float) -> str:
    return f"{value_ms / _MS_PER_S:.2f} s"
