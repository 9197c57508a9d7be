from modules.util.enum.BaseEnum import BaseEnum


class ModelFormat(BaseEnum):
    """File format of the trained model."""

    AUTO = "AUTO"
    KOHYA_LORA = "KOHYA_LORA"
    DIFFUSERS_LORA = "DIFFUSERS_LORA"
    DIFFUSERS = "DIFFUSERS"
    SAFETENSORS = "SAFETENSORS"
