from modules.util.enum.BaseEnum import BaseEnum


class TrainingMethod(BaseEnum):
    """What is trained: a small adapter, or the weights of the model themselves."""

    LORA = "LORA"
    FINE_TUNE = "FINE_TUNE"
