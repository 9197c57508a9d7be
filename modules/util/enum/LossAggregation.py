from modules.util.enum.BaseEnum import BaseEnum


class LossAggregation(BaseEnum):
    """How the losses of steps become one; STEP_MEAN is another name of TOKEN_MEAN."""

    SAMPLE_MEAN = "SAMPLE_MEAN"
    PROMPT_MEAN = "PROMPT_MEAN"
    TOKEN_MEAN = "TOKEN_MEAN"
    STEP_MEAN = "STEP_MEAN"
    CONSTANT = "CONSTANT"
