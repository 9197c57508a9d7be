from modules.util.enum.BaseEnum import BaseEnum


class GroupNoise(BaseEnum):
    """Which noise the images of a group are trained with."""

    GROUP_FIXED = "GROUP_FIXED"
    GROUP_PER_TIMESTEP = "GROUP_PER_TIMESTEP"
    INDEPENDENT = "INDEPENDENT"
