"""Parts that many families are made of."""

from __future__ import annotations

from modules.model.text.clip_vocabulary import END
from modules.spec.FamilySpec import PartSpec

STREAM_LAYERS = ("ff", "proj_mlp", ".proj_out")
"""What is not attention in FLUX's blocks of two streams and of one; the dot leaves out the last layer of the model,
which is called proj_out too.
"""
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


def transformer(module: str, *classes: str) -> PartSpec:
    """A denoiser without convolutions; ``module`` is the last piece of the name of the library's."""
    return PartSpec(
        "transformer",
        "denoiser",
        classes,
        f"diffusers.models.transformers.{module}",
        kohya_prefix="lora_unet",
    )


def clip_encoder(
    name: str,
    kohya_prefix: str,
    comfy_name: str,
    projected: bool = False,
    file_prefix: str = "",
    open_clip: bool = False,
) -> PartSpec:
    """A CLIP text encoder, with the projection of its pooled state or without."""
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
    """A language model whose states are read; ``library`` is the name of the family in transformers."""
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
    """An autoencoder of another kind; ``library`` is the last piece of the name of the library's module."""
    return PartSpec("vae", "vae", classes, f"diffusers.models.autoencoders.{library}")


def kl_autoencoder(file_prefix: str = "") -> PartSpec:
    """The autoencoder of latent diffusion, of any number of channels."""
    return PartSpec(
        "vae",
        "vae",
        ("AutoencoderKL",),
        "diffusers.models.autoencoders.autoencoder_kl",
        file_prefix=file_prefix,
    )


def clip_tokenizer(name: str = "tokenizer", pad_token: str = END) -> PartSpec:
    """CLIP's; OpenCLIP's encoders were trained with token 0 (``!``) after the end of a prompt instead of end marks."""
    return PartSpec(
        name,
        "tokenizer",
        ("CLIPTokenizer", "CLIPTokenizerFast"),
        "transformers.models.clip.tokenization_clip",
        pad_token=pad_token,
    )


def t5_tokenizer(name: str = "tokenizer", optional: bool = False) -> PartSpec:
    return PartSpec(
        name, "tokenizer", ("T5TokenizerFast", "T5Tokenizer"), "transformers.models.t5", optional=optional
    )


def qwen_tokenizer() -> PartSpec:
    """That of Qwen 2 and all that came after it."""
    return PartSpec(
        "tokenizer",
        "tokenizer",
        ("Qwen2Tokenizer", "Qwen2TokenizerFast"),
        "transformers.models.qwen2.tokenization_qwen2",
    )


def scheduler() -> PartSpec:
    """Only its config is read."""
    return PartSpec("scheduler", "scheduler", ())
