from modules.util.enum.BaseEnum import BaseEnum


class SdeChoice(BaseEnum):
    """Which steps are trained when not all are."""

    RANDOM = "RANDOM"
    CONTIGUOUS = "CONTIGUOUS"
