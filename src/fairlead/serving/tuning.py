"""The tuner of a running sidecar: built from the configuration, and its trials logged."""

from __future__ import annotations

from random import Random

import msgspec
import structlog

from fairlead.config import Config
from fairlead.core.policy import Policy
from fairlead.core.router import Router
from fairlead.tuning.online import OnlineTuner, TunerSettings
from fairlead.tuning.weights import BOXES

log = structlog.get_logger("fairlead")


def tuner_of(config: Config, policy: Policy) -> OnlineTuner | None:
    """A new tuner of `policy`, or None if tuning is off."""
    section = config.tuner
    if section.mode == "off":
        return None
    settings = TunerSettings(
        window=section.window, wash_out=section.wash_out, warm_up=section.warm_up, guard=section.guard
    )
    return OnlineTuner(policy, BOXES[config.policy.name], Random(), settings, apply=section.mode == "live")


class TrialLog:
    """Logs one line for every trial, off the request path."""

    def __init__(self) -> None:
        self._tuner: OnlineTuner | None = None
        self._logged = 0

    def log_new(self, router: Router) -> None:
        """Log the trials that have ended since the last call."""
        tuner = router.tuner
        if not isinstance(tuner, OnlineTuner):
            return
        if tuner is not self._tuner:
            self._tuner, self._logged = tuner, 0
        for trial in list(tuner.trials):
            if trial.number > self._logged:
                log.info("weights were tried", **msgspec.structs.asdict(trial))
        self._logged = tuner.verdicts.total()
