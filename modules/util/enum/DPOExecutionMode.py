from modules.util.enum.BaseEnum import BaseEnum


class DPOExecutionMode(BaseEnum):
    """Arrangements of the passes of a preference step: same gradient, different memory use. AUTO chooses the
    fastest that fits the free memory of the device.
    """

    AUTO = "AUTO"
    FULL_CONCURRENT = "FULL_CONCURRENT"
    POLICY_CONCURRENT = "POLICY_CONCURRENT"
    SEQUENTIAL = "SEQUENTIAL"
