from modules.util.enum.BaseEnum import BaseEnum


class ModelType(BaseEnum):
    """Families of models; each has its setup class."""

    STABLE_DIFFUSION_15 = "STABLE_DIFFUSION_15"
    STABLE_DIFFUSION_20 = "STABLE_DIFFUSION_20"
    STABLE_DIFFUSION_20_BASE = "STABLE_DIFFUSION_20_BASE"
    STABLE_DIFFUSION_21 = "STABLE_DIFFUSION_21"
    STABLE_DIFFUSION_21_BASE = "STABLE_DIFFUSION_21_BASE"

    @property
    def label(self) -> str:
        words = self.value.removeprefix("STABLE_DIFFUSION_").split("_")
        return f"Stable Diffusion {words[0][0]}.{words[0][1]}" + (" base" if "BASE" in words else "")
