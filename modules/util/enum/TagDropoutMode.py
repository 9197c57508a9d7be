from modules.util.enum.BaseEnum import BaseEnum


class TagDropoutMode(BaseEnum):
    """How tags are dropped: all together, each alone, or each alone and later ones more often."""

    FULL = "FULL"
    RANDOM = "RANDOM"
    RANDOM_WEIGHTED = "RANDOM_WEIGHTED"
