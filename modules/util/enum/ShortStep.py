from modules.util.enum.BaseEnum import BaseEnum


class ShortStep(BaseEnum):
    """What happens to the last step of an epoch when too few images are left for it."""

    TRAIN = "TRAIN"
    ERROR = "ERROR"
