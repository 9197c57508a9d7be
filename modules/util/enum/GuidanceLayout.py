from modules.util.enum.BaseEnum import BaseEnum


class GuidanceLayout(BaseEnum):
    """How both predictions of a guided step are computed."""

    SPLIT = "SPLIT"
    JOINT = "JOINT"
