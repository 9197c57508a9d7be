from modules.util.enum.BaseEnum import BaseEnum


class RolloutTransition(BaseEnum):
    """How a trained denoising step adds its noise; AUTO is DDIM or FLOW_SDE, as the model needs it."""

    AUTO = "AUTO"
    DDIM = "DDIM"
    FLOW_SDE = "FLOW_SDE"
    DANCE_SDE = "DANCE_SDE"
    CPS = "CPS"
