from modules.util.enum.BaseEnum import BaseEnum


class ModelFormat(BaseEnum):
    """File format of the trained model."""

    AUTO = "AUTO"
    KOHYA_LORA = "KOHYA_LORA"
    DIFFUSERS_LORA = "DIFFUSERS_LORA"
    COMFY_LORA = "COMFY_LORA"
    LEGACY_LORA = "LEGACY_LORA"
    DIFFUSERS = "DIFFUSERS"
    SAFETENSORS = "SAFETENSORS"

    @property
    def for_adapters(self) -> bool:
        """Whether adapters can be written in it; AUTO fits everything."""
        return self.name.endswith("_LORA")
