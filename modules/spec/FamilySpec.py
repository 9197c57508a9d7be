"""What a model family is, in words and numbers: no tensors, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Prediction = Literal["epsilon", "v_prediction", "flow"]
PartKind = Literal["denoiser", "text_encoder", "vae", "tokenizer", "scheduler"]


@dataclass(frozen=True)
class PartSpec:
    """One component of a model folder.

    Args:
        name: its folder in a diffusers layout and its name in the config (``unet``, ``text_encoder``).
        kind: what it is for.
        classes: the class names ``model_index.json`` may give it, the one to load with first; none means any.
        module: where that class is imported from; part by part, because the libraries' top levels take seconds.
        kohya_prefix: first letters of its adapter keys in a kohya file, without the joining underscore.
        file_root: path of the weights inside the part as adapter files write it, where the module has lost
            that level (``text_model`` for CLIP).
        optional: whether models come without it too.
        unread: first letters of the paths of layers that a prompt never passes; they get no adapters.
        comfy_name: what ComfyUI calls a text encoder (``clip_l``).
        comfy_sizes: hidden width -> that name, where encoders of other sizes have other names.
        comfy_root: what its layers are in there, where that is not what they are in here.
        file_prefix: first letters of its keys in a single-file model.
        open_clip: whether single-file models have it as OpenCLIP names it.
        pad_token: what a tokenizer of CLIP fills short prompts with; its vocabulary comes with the program.
    """

    name: str
    kind: PartKind
    classes: tuple[str, ...]
    module: str = ""
    kohya_prefix: str = ""
    file_root: str = ""
    optional: bool = False
    unread: tuple[str, ...] = ()
    comfy_name: str = ""
    comfy_sizes: tuple[tuple[int, str], ...] = ()
    comfy_root: str = ""
    file_prefix: str = ""
    open_clip: bool = False
    pad_token: str = ""


def block_presets(
    attention: tuple[str, ...], mlp: tuple[str, ...], blocks: tuple[str, ...] = ("transformer_blocks",)
) -> dict[str, tuple[str, ...]]:
    """The layer presets of a transformer, from the names its attention, its other layers and its blocks go by."""
    return {"attn-mlp": (*attention, *mlp), "attn-only": attention, "blocks": blocks, "full": ()}


@dataclass(frozen=True)
class FamilySpec:
    """Everything the shared code has to know about a family.

    Args:
        key: the model type it is registered under.
        label: its name for people.
        parts: the components, denoiser first.
        pipeline_class: what ``model_index.json`` names, and what a saved folder will name.
        prediction: default parameterisation; a discrete family may be overruled by its scheduler's config.
        prompt_tokens: how much of a prompt the text encoders are given, where their tokenizers know no smaller limit;
            with start and end marks, without a template. The widest counts where there are several.
        layer_presets: name -> substrings of module names an adapter is attached to; empty means all layers.
        lora_architecture: ``modelspec.architecture`` of its adapters.
        model_architecture: the same of a whole model.
        default_resolution: pixels of a square sample.
        size_multiple: sample heights and widths are multiples of this.
        writes_single_file: whether it can be written to one file, in the latent-diffusion layout.
        key_map: naming scheme of the checkpoints it was published as, see ``modules.weights.keymaps``.
        kohya_original: whether kohya files have those names too, and not the ones of diffusers.
        inpainting: whether the denoiser sees a mask and the masked image too.
        denoiser_channels: input channels of the denoiser, where families differ by them; 0 for any.
        size_conditioning: whether the denoiser is told original size, crop and target size of an image.
        embeds_guidance: whether the guidance scale is an input of the denoiser, so that one pass is enough.
        prompt_weighting: whether emphasis in prompts can be applied to its text states.
        chunks_prompts: whether a prompt longer than its encoders read is encoded in several chunks.
        even_steps: whether a flow model's noise levels fall by 1 / steps before they are shifted.
        default_steps, default_cfg, default_sampler: what a sample is made with if nothing else is asked for.
        lora_metadata: further fields other programs expect in adapter files.
    """

    key: str
    label: str
    parts: tuple[PartSpec, ...]
    pipeline_class: str
    prediction: Prediction
    lora_architecture: str
    model_architecture: str
    prompt_tokens: int
    layer_presets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    default_resolution: int = 512
    size_multiple: int = 8
    writes_single_file: bool = False
    key_map: str = ""
    kohya_original: bool = True
    inpainting: bool = False
    denoiser_channels: int = 0
    size_conditioning: bool = False
    embeds_guidance: bool = False
    even_steps: bool = False
    prompt_weighting: bool = False
    chunks_prompts: bool = False
    default_steps: int = 20
    default_cfg: float = 7.0
    default_sampler: str = "DDIM"
    lora_metadata: Mapping[str, str] = field(default_factory=dict)

    def part(self, name: str) -> PartSpec:
        """The part called ``name``; ``KeyError`` if the family has none."""
        for part in self.parts:
            if part.name == name:
                return part
        raise KeyError(f"{self.label} has no part {name!r}; it has {', '.join(p.name for p in self.parts)}")

    def of_kind(self, kind: PartKind) -> tuple[PartSpec, ...]:
        return tuple(part for part in self.parts if part.kind == kind)

    @property
    def denoiser(self) -> str:
        return self.of_kind("denoiser")[0].name

    @property
    def text_encoders(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.of_kind("text_encoder"))

    @property
    def vae(self) -> str:
        return self.of_kind("vae")[0].name

    @property
    def module_parts(self) -> tuple[str, ...]:
        """Names of the parts that hold weights."""
        return tuple(p.name for p in self.parts if p.kind in ("denoiser", "text_encoder", "vae"))
