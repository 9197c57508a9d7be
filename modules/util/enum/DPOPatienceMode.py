from modules.util.enum.BaseEnum import BaseEnum


class DPOPatienceMode(BaseEnum):
    """Choices of whether a single stalled metric counts against patience, or only all of them."""

    EITHER = "EITHER"
    BOTH = "BOTH"
