from modules.util.enum.BaseEnum import BaseEnum


class DPOExecutionMode(BaseEnum):
    """How the passes of a preference step are arranged: same gradient, different memory."""

    FULL_CONCURRENT = "FULL_CONCURRENT"
    POLICY_CONCURRENT = "POLICY_CONCURRENT"
    SEQUENTIAL = "SEQUENTIAL"
