from modules.util.enum.BaseEnum import BaseEnum


class DPOTimestepSampling(BaseEnum):
    """Whether the timesteps a pair sees over its visits are independent or spread evenly."""

    UNIFORM = "UNIFORM"
    STRATIFIED = "STRATIFIED"
