from __future__ import annotations

from collections.abc import Iterable

from modules.util.enum.BaseEnum import BaseEnum


class ModelType(BaseEnum):
    """Families of models; each has its setup class."""

    STABLE_DIFFUSION_15 = "STABLE_DIFFUSION_15"
    STABLE_DIFFUSION_15_INPAINTING = "STABLE_DIFFUSION_15_INPAINTING"
    STABLE_DIFFUSION_20 = "STABLE_DIFFUSION_20"
    STABLE_DIFFUSION_20_BASE = "STABLE_DIFFUSION_20_BASE"
    STABLE_DIFFUSION_20_INPAINTING = "STABLE_DIFFUSION_20_INPAINTING"
    STABLE_DIFFUSION_21 = "STABLE_DIFFUSION_21"
    STABLE_DIFFUSION_21_BASE = "STABLE_DIFFUSION_21_BASE"
    STABLE_DIFFUSION_XL_10_BASE = "STABLE_DIFFUSION_XL_10_BASE"
    STABLE_DIFFUSION_XL_10_BASE_INPAINTING = "STABLE_DIFFUSION_XL_10_BASE_INPAINTING"
    STABLE_DIFFUSION_3 = "STABLE_DIFFUSION_3"
    STABLE_DIFFUSION_35 = "STABLE_DIFFUSION_35"
    PIXART_ALPHA = "PIXART_ALPHA"
    PIXART_SIGMA = "PIXART_SIGMA"
    SANA = "SANA"
    CHROMA_1 = "CHROMA_1"
    FLUX_DEV_1 = "FLUX_DEV_1"
    FLUX_SCHNELL_1 = "FLUX_SCHNELL_1"
    Z_IMAGE = "Z_IMAGE"
    QWEN = "QWEN"
    FLUX_2 = "FLUX_2"

    @property
    def label(self) -> str:
        return _ABOUT[self.value][0]

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the parts with weights, denoiser first, as the config has them."""
        return _ABOUT[self.value][1]

    @property
    def denoiser(self) -> str:
        return self.parts[0]

    @property
    def text_encoders(self) -> tuple[str, ...]:
        return self.parts[1:-1]

    @property
    def embeds_guidance(self) -> bool:
        """Whether the denoiser is told the guidance scale instead of being asked twice."""
        return self.value in _EMBEDDED_GUIDANCE

    @property
    def chunks_prompts(self) -> bool:
        """Whether prompts longer than its text encoders read are encoded in several chunks."""
        return self.denoiser == "unet"

    @property
    def flow_matching(self) -> bool:
        """Whether it learns the straight way from noise to image, and has no schedule of noise variances."""
        return self.denoiser == "transformer" and self.value not in _DISCRETE_TRANSFORMERS

    @property
    def usual_side(self) -> int:
        """Pixels of a side of the square images it is usually used for."""
        if self.value in _SIDE_768:
            return 768
        return 512 if self.parts == _UNET_CLIP else 1024


def families_with(part: str) -> str:
    """The visibility rule of settings that belong to a part: the families that have it."""
    return _rule(family for family in ModelType if part in family.parts)


def families_with_noise_schedule() -> str:
    """The visibility rule of settings about a schedule of noise variances."""
    return _rule(family for family in ModelType if not family.flow_matching)


def families_with_prompt_chunks() -> str:
    """The visibility rule of settings about prompts in chunks."""
    return _rule(family for family in ModelType if family.chunks_prompts)


def families_with_guidance() -> str:
    """The visibility rule of settings about an embedded guidance scale."""
    return _rule(family for family in ModelType if family.embeds_guidance)


def _rule(families: Iterable[ModelType]) -> str:
    # a rule needs a value; no family has an empty name
    return "model_type=" + ("|".join(family.value for family in families) or "-")


_UNET_CLIP = ("unet", "text_encoder", "vae")
_UNET_TWO = ("unet", "text_encoder", "text_encoder_2", "vae")
_DIT_ONE = ("transformer", "text_encoder", "vae")
_DIT_TWO = ("transformer", "text_encoder", "text_encoder_2", "vae")
_DIT_THREE = ("transformer", "text_encoder", "text_encoder_2", "text_encoder_3", "vae")
_ABOUT: dict[str, tuple[str, tuple[str, ...]]] = {
    "STABLE_DIFFUSION_15": ("Stable Diffusion 1.5", _UNET_CLIP),
    "STABLE_DIFFUSION_15_INPAINTING": ("Stable Diffusion 1.5 inpainting", _UNET_CLIP),
    "STABLE_DIFFUSION_20": ("Stable Diffusion 2.0", _UNET_CLIP),
    "STABLE_DIFFUSION_20_BASE": ("Stable Diffusion 2.0 base", _UNET_CLIP),
    "STABLE_DIFFUSION_20_INPAINTING": ("Stable Diffusion 2.0 inpainting", _UNET_CLIP),
    "STABLE_DIFFUSION_21": ("Stable Diffusion 2.1", _UNET_CLIP),
    "STABLE_DIFFUSION_21_BASE": ("Stable Diffusion 2.1 base", _UNET_CLIP),
    "STABLE_DIFFUSION_XL_10_BASE": ("Stable Diffusion XL", _UNET_TWO),
    "STABLE_DIFFUSION_XL_10_BASE_INPAINTING": ("Stable Diffusion XL inpainting", _UNET_TWO),
    "STABLE_DIFFUSION_3": ("Stable Diffusion 3", _DIT_THREE),
    "STABLE_DIFFUSION_35": ("Stable Diffusion 3.5", _DIT_THREE),
    "PIXART_ALPHA": ("PixArt alpha", _DIT_ONE),
    "PIXART_SIGMA": ("PixArt Sigma", _DIT_ONE),
    "SANA": ("Sana", _DIT_ONE),
    "CHROMA_1": ("Chroma1", _DIT_ONE),
    "FLUX_DEV_1": ("FLUX.1 dev", _DIT_TWO),
    "FLUX_SCHNELL_1": ("FLUX.1 schnell", _DIT_TWO),
    "Z_IMAGE": ("Z-Image", _DIT_ONE),
    "QWEN": ("Qwen-Image", _DIT_ONE),
    "FLUX_2": ("FLUX.2 klein", _DIT_ONE),
}
"""Label and parts of each family."""
_DISCRETE_TRANSFORMERS: frozenset[str] = frozenset({"PIXART_ALPHA", "PIXART_SIGMA"})
_SIDE_768: frozenset[str] = frozenset({"STABLE_DIFFUSION_20", "STABLE_DIFFUSION_21"})
_EMBEDDED_GUIDANCE: frozenset[str] = frozenset({"FLUX_DEV_1"})
