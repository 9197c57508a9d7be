from modules.util.enum.BaseEnum import BaseEnum


class OnlinePairs(BaseEnum):
    """Which pairs are made of the images of a group."""

    BEST_WORST = "BEST_WORST"
    ALL = "ALL"
