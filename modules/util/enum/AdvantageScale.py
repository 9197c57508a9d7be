from modules.util.enum.BaseEnum import BaseEnum


class AdvantageScale(BaseEnum):
    """By which deviation rewards are divided."""

    GLOBAL_STD = "GLOBAL_STD"
    GROUP_STD = "GROUP_STD"
    NONE = "NONE"
