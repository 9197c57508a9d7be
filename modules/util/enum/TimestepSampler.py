from modules.util.enum.BaseEnum import BaseEnum


class TimestepSampler(BaseEnum):
    """How the timesteps of a decoupled loss are drawn."""

    UNIFORM = "UNIFORM"
    LOGIT_NORMAL = "LOGIT_NORMAL"
    DISCRETE = "DISCRETE"
    DISCRETE_WITH_INIT = "DISCRETE_WITH_INIT"
    DISCRETE_WO_INIT = "DISCRETE_WO_INIT"
