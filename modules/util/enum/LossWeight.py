from modules.util.enum.BaseEnum import BaseEnum


class LossWeight(BaseEnum):
    """How the supervised loss is weighted over noise levels."""

    CONSTANT = "CONSTANT"
    MIN_SNR_GAMMA = "MIN_SNR_GAMMA"
    DEBIASED_ESTIMATION = "DEBIASED_ESTIMATION"
    P2 = "P2"
