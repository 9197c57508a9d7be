from modules.util.enum.BaseEnum import BaseEnum


class DPOPatienceMode(BaseEnum):
    """Whether one stalled metric is enough to count against patience, or all must stall."""

    EITHER = "EITHER"
    BOTH = "BOTH"
