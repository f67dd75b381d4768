"""plan.yaml: a plan as people read it, and as `fairlead plan explain` and `diff` read it back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import yaml

from fairlead.errors import UserError
from fairlead.files import replace_file
from fairlead.tools.plan.plan import Plan, faults

_HEADING = "# Written by `fairlead plan`; `fairlead plan explain` explains it.\n"


def write_plan(path: Path, plan: Plan) -> None:
    """Raises UserError if the file cannot be written."""
    document = _rounded(msgspec.to_builtins(plan))
    document["thresholds"] = list(plan.thresholds)  # to the last digit: a score may be equal to one
    for stage in document["stages"]:
        stage["replicas"] = [{"count": count, **shape} for shape, count in stage.pop("strategy")]
    for other in document["alternatives"]:
        for unused in ("p95_ms", "quality", "gpu_ms") if other["fault"] else ("fault",):
            del other[unused]
    text = yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=120)
    try:
        replace_file(path, (_HEADING + text).encode())
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None


def read_plan(path: Path) -> Plan:
    """Raises UserError for a file that is not a valid plan."""
    try:
        document: Any = yaml.safe_load(path.read_bytes())
        for stage in document["stages"]:
            stage["strategy"] = [(each, each["count"]) for each in stage.pop("replicas")]
        plan = msgspec.convert(document, Plan)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); `fairlead plan` writes plans") from None
    except (yaml.YAMLError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise UserError(f"{path}: not a plan: {error}") from None
    except (TypeError, KeyError, AttributeError, ValueError):
        raise UserError(f"{path}: not a plan: no stages with replicas in it") from None
    problems = faults(plan.thresholds, plan.stages, plan.gpus)
    if problems:
        raise UserError(f"{path}: not a plan: {'; '.join(problems)}")
    return plan


def _rounded(value: Any) -> Any:
    """Every number rounded to six digits, for readers."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
