from modules.util.enum.BaseEnum import BaseEnum


class WeightDtype(BaseEnum):
    """Number format a part's weights are kept in; the last three for frozen parts only."""

    FLOAT_32 = "FLOAT_32"
    BFLOAT_16 = "BFLOAT_16"
    FLOAT_16 = "FLOAT_16"
    FLOAT_8 = "FLOAT_8"
    INT_8 = "INT_8"
    NFLOAT_4 = "NFLOAT_4"

    @property
    def quantized(self) -> bool:
        """Whether weights in it cannot be trained themselves."""
        return self.value in ("FLOAT_8", "INT_8", "NFLOAT_4")
