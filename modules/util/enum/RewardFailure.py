from modules.util.enum.BaseEnum import BaseEnum


class RewardFailure(BaseEnum):
    """What a reward that fails does to the run."""

    FAIL = "FAIL"
    SKIP_GROUP = "SKIP_GROUP"
