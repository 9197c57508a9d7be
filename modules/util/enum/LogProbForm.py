from modules.util.enum.BaseEnum import BaseEnum


class LogProbForm(BaseEnum):
    """What is taken for the log-probability of a step."""

    GAUSSIAN = "GAUSSIAN"
    SQUARED_ERROR = "SQUARED_ERROR"
