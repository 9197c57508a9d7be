from modules.util.enum.BaseEnum import BaseEnum


class EMAMode(BaseEnum):
    """Where the moving average of the trained weights is kept."""

    OFF = "OFF"
    CPU = "CPU"
    GPU = "GPU"
