from modules.util.enum.BaseEnum import BaseEnum


class RLHFMode(BaseEnum):
    """How preferences are learned."""

    DPO = "DPO"
    DGPO = "DGPO"
    GRPO = "GRPO"
    GSPO = "GSPO"
