from modules.util.enum.BaseEnum import BaseEnum


class RolloutSampler(BaseEnum):
    """How the images of an epoch are shared out among the processes."""

    AUTO = "AUTO"
    GROUP_DISTRIBUTED = "GROUP_DISTRIBUTED"
    DISTRIBUTED_K_REPEAT = "DISTRIBUTED_K_REPEAT"
    GROUP_CONTIGUOUS = "GROUP_CONTIGUOUS"
