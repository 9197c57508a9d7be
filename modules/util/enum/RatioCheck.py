from modules.util.enum.BaseEnum import BaseEnum


class RatioCheck(BaseEnum):
    """What happens if the first ratio after a rollout is not 1."""

    AUTO = "AUTO"
    OFF = "OFF"
    WARN = "WARN"
    ERROR = "ERROR"
