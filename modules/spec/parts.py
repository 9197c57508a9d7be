"""Parts that many families share."""

from __future__ import annotations

from collections.abc import Mapping

from modules.spec.FamilySpec import PartSpec

STREAM_LAYERS = ("ff", "proj_mlp", ".proj_out")
"""The layers of FLUX's double- and single-stream blocks that are not attention; the dot excludes the model's last
layer, which is called proj_out too.
"""
UNET_PREFIX = "model.diffusion_model."
VAE_PREFIX = "first_stage_model."
TEXT_PREFIX = "cond_stage_model.transformer.text_model."
"""Prefixes of the parts in files of the latent-diffusion layout."""
UNET_PRESETS: Mapping[str, tuple[str, ...]] = {
    "attn-mlp": ("attentions",),
    "attn-only": ("attn1", "attn2"),
    "blocks": ("down_blocks", "mid_block", "up_blocks"),
    "full": (),
}
"""The layer presets of Stable Diffusion 1, 2 and XL."""
CLIP_TOKENS = 77
"""Number of positions of CLIP text encoders, including start and end marks."""
CLIP_END = "<|endoftext|>"
_CLIP = "transformers.models.clip.modeling_clip"


def unet(file_prefix: str) -> PartSpec:
    """The denoiser of Stable Diffusion 1, 2 and XL."""
    return PartSpec(
        "unet",
        "denoiser",
        ("UNet2DConditionModel",),
        "diffusers.models.unets.unet_2d_condition",
        kohya_prefix="lora_unet",
        file_prefix=file_prefix,
    )


def transformer(module: str, *classes: str, file_prefix: str = "") -> PartSpec:
    """A transformer as denoiser; ``module`` is the last piece of the name of diffusers' module."""
    return PartSpec(
        "transformer",
        "denoiser",
        classes,
        f"diffusers.models.transformers.{module}",
        kohya_prefix="lora_unet",
        file_prefix=file_prefix,
    )


def clip_encoder(
    name: str,
    kohya_prefix: str,
    comfy_name: str,
    projected: bool = False,
    file_prefix: str = "",
    open_clip: bool = False,
) -> PartSpec:
    """A CLIP text encoder, with or without the projection of its pooled state."""
    return PartSpec(
        name,
        "text_encoder",
        ("CLIPTextModelWithProjection" if projected else "CLIPTextModel",),
        _CLIP,
        kohya_prefix=kohya_prefix,
        file_root="text_model",
        comfy_name=comfy_name,
        file_prefix=file_prefix,
        open_clip=open_clip,
    )


def t5_encoder(name: str, kohya_prefix: str, optional: bool = False) -> PartSpec:
    """T5 v1.1 XXL, the encoder half."""
    return PartSpec(
        name,
        "text_encoder",
        ("T5EncoderModel",),
        "transformers.models.t5.modeling_t5",
        kohya_prefix=kohya_prefix,
        optional=optional,
        comfy_name="t5xxl",
    )


def language_encoder(
    comfy_name: str,
    library: str,
    *classes: str,
    unread: tuple[str, ...] = (),
    comfy_sizes: tuple[tuple[int, str], ...] = (),
) -> PartSpec:
    """A language model whose hidden states are read; ``library`` is the name of its folder in transformers."""
    return PartSpec(
        "text_encoder",
        "text_encoder",
        classes,
        f"transformers.models.{library}.modeling_{library}",
        kohya_prefix="lora_te",
        comfy_name=comfy_name,
        comfy_sizes=comfy_sizes,
        comfy_root="model",
        unread=unread,
    )


def autoencoder(library: str, *classes: str) -> PartSpec:
    """An autoencoder of another kind; ``library`` is the last piece of the name of diffusers' module."""
    return PartSpec("vae", "vae", classes, f"diffusers.models.autoencoders.{library}")


def kl_autoencoder(file_prefix: str = "") -> PartSpec:
    """The autoencoder of latent diffusion, with any number of channels."""
    return PartSpec(
        "vae",
        "vae",
        ("AutoencoderKL",),
        "diffusers.models.autoencoders.autoencoder_kl",
        file_prefix=file_prefix,
    )


def clip_tokenizer(name: str = "tokenizer", pad_token: str = CLIP_END) -> PartSpec:
    """CLIP's tokenizer; OpenCLIP's encoders were trained with token 0 (``!``) as padding instead of end marks."""
    return PartSpec(
        name,
        "tokenizer",
        ("CLIPTokenizer", "CLIPTokenizerFast"),
        "transformers.models.clip.tokenization_clip",
        pad_token=pad_token,
    )


def t5_tokenizer(name: str = "tokenizer", optional: bool = False, folder: str = "") -> PartSpec:
    """T5's tokenizer."""
    return PartSpec(
        name,
        "tokenizer",
        ("T5TokenizerFast", "T5Tokenizer"),
        "transformers.models.t5",
        optional=optional,
        folder=folder,
    )


def qwen_tokenizer(name: str = "tokenizer") -> PartSpec:
    """The tokenizer of Qwen 2 and its successors; a folder may hold it as a part of a processor."""
    return PartSpec(
        name,
        "tokenizer",
        ("Qwen2Tokenizer", "Qwen2TokenizerFast", "Qwen3VLProcessor"),
        "transformers.models.qwen2.tokenization_qwen2",
    )


def mistral_tokenizer() -> PartSpec:
    """The tokenizer of Mistral 3, read as its file has it; a folder may hold it as a part of a processor."""
    return PartSpec(
        "tokenizer",
        "tokenizer",
        (
            "PreTrainedTokenizerFast",
            "TokenizersBackend",
            "PixtralProcessor",
            "AutoProcessor",
            "LlamaTokenizerFast",
            "LlamaTokenizer",
        ),
        "transformers.tokenization_utils_tokenizers",
    )


def qwen_processor(name: str = "processor") -> PartSpec:
    """The processor that shows images to Qwen2.5-VL. Only its config is read; without one, the published
    values are used.
    """
    return PartSpec(name, "processor", ("Qwen2VLProcessor", "Qwen2_5_VLProcessor"), optional=True)


def scheduler() -> PartSpec:
    """The scheduler, of which only the config is read."""
    return PartSpec("scheduler", "scheduler", ())
