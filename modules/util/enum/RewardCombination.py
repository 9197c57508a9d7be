from modules.util.enum.BaseEnum import BaseEnum


class RewardCombination(BaseEnum):
    """How several rewards become one advantage."""

    SUM = "SUM"
    GDPO = "GDPO"
