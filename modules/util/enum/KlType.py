from modules.util.enum.BaseEnum import BaseEnum


class KlType(BaseEnum):
    """How far the policy is from the reference."""

    EXACT = "EXACT"
    FLOW_GRPO = "FLOW_GRPO"
    X = "X"
    V = "V"
