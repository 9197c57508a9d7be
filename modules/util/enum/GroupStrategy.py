from modules.util.enum.BaseEnum import BaseEnum


class GroupStrategy(BaseEnum):
    """How a loss over a whole group or trajectory is computed from micro-batches."""

    AUTO = "AUTO"
    EXACT = "EXACT"
    TWO_PASS = "TWO_PASS"
    STASH = "STASH"
