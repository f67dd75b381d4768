"""Fitting: from a table of attempts to capability files. Needs `fairlead[fit]`; nothing on the request path imports it.

`read_attempts` reads the table, `fit_model` fits one model of one task family, `write_family` writes its JSON and
`write_plot` (in `fairlead.tools.fit.plot`, for matplotlib is slow to import) its picture.
"""

from fairlead.tools.fit.attempts import ModelAttempts, read_attempts
from fairlead.tools.fit.capability_model import FittedModel, fit_model
from fairlead.tools.fit.files import write_family
from fairlead.tools.fit.quality import Quality

__all__ = ["FittedModel", "ModelAttempts", "Quality", "fit_model", "read_attempts", "write_family"]
