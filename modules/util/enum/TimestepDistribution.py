from modules.util.enum.BaseEnum import BaseEnum


class TimestepDistribution(BaseEnum):
    """How timesteps are drawn."""

    UNIFORM = "UNIFORM"
    SIGMOID = "SIGMOID"
    LOGIT_NORMAL = "LOGIT_NORMAL"
