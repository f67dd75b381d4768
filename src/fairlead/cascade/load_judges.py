"""The judges that the configuration names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import aiohttp

from fairlead.cascade.judge import EndpointJudge, FunctionJudge, Judge, load_function
from fairlead.cascade.settings import CascadeRouteSettings
from fairlead.errors import UserError


def load_judges(
    settings: Mapping[str, CascadeRouteSettings], folder: Path, session: aiohttp.ClientSession
) -> dict[str, Judge]:
    """The judge of each route. Raises UserError for a function that does not exist."""
    judges: dict[str, Judge] = dict(load_functions(settings, folder))
    for name, route in settings.items():
        if route.judge.url is not None:
            judges[name] = EndpointJudge(session, route.judge.url, route.judge.model)
    return judges


def load_functions(settings: Mapping[str, CascadeRouteSettings], folder: Path) -> dict[str, FunctionJudge]:
    """The judges that are functions. Raises UserError for one that does not exist."""
    judges = {}
    for name, route in settings.items():
        if route.judge.function is not None:
            try:
                judges[name] = FunctionJudge(load_function(route.judge.function, folder))
            except UserError as error:
                raise UserError(f"routes.{name}.judge.function: {error}") from None
    return judges
