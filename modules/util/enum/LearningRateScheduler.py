from modules.util.enum.BaseEnum import BaseEnum


class LearningRateScheduler(BaseEnum):
    """How the learning rate moves after the warm-up."""

    CONSTANT = "CONSTANT"
    LINEAR = "LINEAR"
    COSINE = "COSINE"
    COSINE_WITH_RESTARTS = "COSINE_WITH_RESTARTS"
    COSINE_WITH_HARD_RESTARTS = "COSINE_WITH_HARD_RESTARTS"
    REX = "REX"
