from modules.util.enum.BaseEnum import BaseEnum


class DPOObjective(BaseEnum):
    """The preference loss."""

    SIGMOID = "SIGMOID"
    IPO = "IPO"
    HINGE = "HINGE"
    KTO = "KTO"
    MAPO = "MAPO"
