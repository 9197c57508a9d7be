from modules.util.enum.BaseEnum import BaseEnum


class TimeUnit(BaseEnum):
    """Unit of an interval."""

    NEVER = "NEVER"
    EPOCH = "EPOCH"
    STEP = "STEP"
    SECOND = "SECOND"
    MINUTE = "MINUTE"
    HOUR = "HOUR"
    ALWAYS = "ALWAYS"
