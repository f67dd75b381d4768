"""The judges that the configuration names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import aiohttp

from fairlead.cascade.judge import EndpointJudge, FunctionJudge, Judge, load_function
from fairlead.cascade.serving.settings import CascadeRouteSettings
from fairlead.errors import UserError


def load_judges(
    settings: Mapping[str, CascadeRouteSettings], folder: Path, session: aiohttp.ClientSession
) -> dict[str, Judge]:
    """The judge of each route. Raises UserError for a function that is not there."""
    judges: dict[str, Judge] = {}
    for name, route in settings.items():
        judge = route.judge
        if judge.function is not None:
            try:
                judges[name] = FunctionJudge(load_function(judge.function, folder))
            except UserError as error:
                raise UserError(f"routes.{name}.judge.function: {error}") from None
        else:
            judges[name] = EndpointJudge(session, judge.url or "", judge.model)
    return judges
