from modules.util.enum.BaseEnum import BaseEnum


class DataType(BaseEnum):
    """Number format of weights or of autocast."""

    FLOAT_32 = "FLOAT_32"
    BFLOAT_16 = "BFLOAT_16"
    FLOAT_16 = "FLOAT_16"
