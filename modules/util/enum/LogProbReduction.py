from modules.util.enum.BaseEnum import BaseEnum


class LogProbReduction(BaseEnum):
    """How the log-densities of a step's latent numbers become one."""

    MEAN = "MEAN"
    SUM = "SUM"
