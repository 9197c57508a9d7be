from modules.util.enum.BaseEnum import BaseEnum


class PeftType(BaseEnum):
    """Kind of adapter."""

    LORA = "LORA"
    LOHA = "LOHA"
    LOKR = "LOKR"
    OFT_2 = "OFT_2"
