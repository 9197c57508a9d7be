"""A model family described as data: no tensors, no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

Prediction = Literal["epsilon", "v_prediction", "flow"]
PartKind = Literal["denoiser", "guide", "text_encoder", "vae", "tokenizer", "processor", "scheduler"]
_INPAINTING = "-inpainting"


@dataclass(frozen=True)
class PartSpec:
    """One component of a model folder.

    Args:
        name: its name in the config and, where ``folder`` says no other, its folder in the diffusers layout (``unet``,
            ``text_encoder``).
        kind: what it is for. A ``guide`` is a second denoiser that sees no prompt; guidance compares with its
            prediction. It is there for samples only: a run is without it.
        classes: class names that ``model_index.json`` may give, the one to load with first; empty accepts any.
        module: where that class is imported from; the full path, because importing the libraries' top levels takes
            seconds.
        kohya_prefix: prefix of its adapter keys in a kohya file, without the joining underscore.
        file_root: path of the weights inside the part as adapter files write it, where newer versions of the module
            dropped that level (``text_model`` for CLIP).
        optional: whether models may come without it.
        unread: prefixes of layer paths that a prompt never passes through; they get no adapters.
        comfy_name: what ComfyUI calls a text encoder (``clip_l``).
        comfy_sizes: hidden width -> ComfyUI's name, for encoders whose name depends on their size.
        comfy_root: the module ComfyUI nests its layers in, where that differs from here.
        file_prefix: prefix of its keys in a single-file model.
        open_clip: whether single-file models store it under OpenCLIP's names.
        folder: its folder in the diffusers layout, where that has another name.
        library: the library it is from, where that does not follow from its kind.
        frozen: whether it is never trained.
        apart: the repository that has it, where those of the family are without it.
        inside: what its names in a single file begin with, for a part that is stored within the denoiser.
        pad_token: what a CLIP tokenizer pads short prompts with; CLIP's vocabulary comes with the program.
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
    folder: str = ""
    library: str = ""
    inside: str = ""
    frozen: bool = False
    apart: str = ""

    @property
    def place(self) -> str:
        """Its folder in the diffusers layout."""
        return self.folder or self.name

    @property
    def where_apart(self) -> str:
        """Return what to do if a part is missing because models of the family are published without it; empty
        for other parts.
        """
        if not self.apart:
            return ""
        field = f"{self.name.replace('tokenizer', 'text_encoder')}.model_name"
        return (
            f"models of this family are published without it: set {field} to {self.apart}, or to a folder with that "
            "model and its tokenizer; it is gated, so accept its licence on its page and enter a token (Tools page, or "
            "HF_TOKEN)"
        )

    @property
    def denoises(self) -> bool:
        """True if it is the denoiser, or another one with the same architecture."""
        return self.kind in ("denoiser", "guide")

    @property
    def of_transformers(self) -> bool:
        """True if its module belongs to transformers rather than diffusers."""
        return self.kind == "text_encoder" and self.library != "diffusers"


def block_presets(
    attention: tuple[str, ...], mlp: tuple[str, ...], blocks: tuple[str, ...] = ("transformer_blocks",)
) -> dict[str, tuple[str, ...]]:
    """The layer presets of a transformer, from the names of its attention layers, other layers and blocks."""
    return {"attn-mlp": (*attention, *mlp), "attn-only": attention, "blocks": blocks, "full": ()}


@dataclass(frozen=True)
class Relative:
    """A model with the same architecture as a family that cannot be used as one of it.

    Attributes:
        message, hint: the error for such a model.

    Args:
        label: its displayed name.
        tensors: names of a layer whose width distinguishes it, in files and in diffusers.
        width: number of inputs of that layer.
        config: the field of the denoiser's config with the same number.
        key: its family, if supported.
    """

    label: str
    tensors: tuple[str, ...]
    width: int
    config: str
    key: str = ""

    @property
    def message(self) -> str:
        return f"is {self.label}" if self.key else f"is {self.label}, which is not supported"

    @property
    def hint(self) -> str:
        return f"set model_type to {self.key}" if self.key else "use a model of the family itself"


@dataclass(frozen=True)
class FamilySpec:
    """Everything that code shared by all families needs to know about one of them.

    Args:
        key: the model type in configs.
        label: its displayed name.
        parts: the components: denoiser first, then text encoders, then the rest.
        pipeline_class: what ``model_index.json`` names, and what a saved folder will name.
        prediction: default parameterisation; the scheduler config of a discrete model may overrule it.
        prompt_tokens: how many tokens of a prompt the text encoders read, where their tokenizers set no
            smaller limit; start and end marks included, templates not. The largest limit where there are
            several encoders.
        template_tokens: how many more of them the template around a prompt takes.
        length_of: the text encoder whose number of tokens a run may choose; empty where CLIP alone reads.
        most_tokens: the largest number of tokens it may choose, template included.
        padding: what the denoiser does with the padding after a prompt: ``seen``, ``masked``, or ``none`` if
            it is never given any.
        layer_presets: name -> substrings of module names an adapter is attached to; empty means all layers.
        onetrainer_presets: presets of OneTrainer that train other layers than ours of the same name, as
            filters; those that begin with ``^`` are regular expressions.
        onetrainer_type: the model type that OneTrainer gives it, where that is another family's here; its
            base model tells them apart.
        model_architecture: ``modelspec.architecture`` of a model.
        default_resolution: width and height in pixels of a square sample.
        size_multiple: widths and heights of samples are multiples of this.
        writes_single_file: whether it can be written to one file, in the latent-diffusion layout.
        key_map: naming scheme of the checkpoints it was published as, a module of ``modules.weights.keymaps``; empty
            for the names of diffusers.
        kohya_original: whether kohya files use those names instead of diffusers' names.
        inpainting: whether the denoiser also sees a mask and the masked image.
        sources: maximum number of source images that the denoiser sees besides the noisy one; 0 for models
            without editing.
        edits_only: whether it is trained only with source images.
        sees_sources: whether the text encoder is shown these images too, so that the states of a prompt
            depend on them.
        shown_area: about how many pixels of each it is shown; 0 for those that ``shown_side`` says.
        shown_side: how long the sides of what it is shown are, as a part of those that the denoiser is given.
        keeps_shown: whether the states of a prompt have one for each token of these images.
        denoiser_channels: input channels of the denoiser, where they tell families apart; 0 accepts any
            number.
        size_conditioning: whether the denoiser is given the original size, crop and target size of an image.
        blocks: blocks of the denoiser, where all models of the family have the same number; 0 where they
            differ.
        skips_layers_of: the CLIP text encoders whose states of an earlier layer can be taken (clip skip).
        embeds_guidance: whether the guidance scale is an input of the denoiser, so that one pass is enough.
        prompt_weighting: whether emphasis in prompts can be applied to the text states.
        chunks_prompts: whether a prompt longer than its encoders read is encoded in several chunks.
        embedding_keys: what files of embeddings call each text encoder, in their order; empty where
            embeddings cannot be used. Such a family reads prompts with the tokenizers and tables that words
            extend (``ModelFamily._tokenizer_of``).
        output_keys: the name of each text encoder in files of embeddings (with ``_out``) that hold vectors for its
            output, in their order. The name is empty if the denoiser is not given the encoder's states of tokens.
            No names where such vectors cannot be used.
        output_layers: how many layers that output is made of, one after the other.
        predicts_variance: whether the denoiser also predicts the variance of a step.
        shifts_by_size: whether noise levels are shifted by the size of the image.
        even_steps: whether a flow model's noise levels fall by 1 / steps before they are shifted.
        default_steps, default_cfg, default_sampler: sampling settings used where a sample leaves them open.
        lora_metadata: further fields that other programs expect in adapter files.
        other_prediction: the family that is built alike and has the other parameterisation, if there is one.
            A model whose scheduler config names that one is of that family.
        relatives: models that are distinguished from the family's, to be named when they are refused.
        order: position in displayed lists; families with equal numbers keep the order of their file.
    """

    key: str
    label: str
    parts: tuple[PartSpec, ...]
    pipeline_class: str
    prediction: Prediction
    model_architecture: str
    prompt_tokens: int
    template_tokens: int = 0
    length_of: str = ""
    most_tokens: int = 512
    padding: Literal["none", "seen", "masked"] = "none"
    layer_presets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    onetrainer_presets: Mapping[str, str] = field(default_factory=dict)
    onetrainer_type: str = ""
    default_resolution: int = 512
    size_multiple: int = 8
    writes_single_file: bool = False
    key_map: str = ""
    kohya_original: bool = True
    inpainting: bool = False
    sources: int = 0
    edits_only: bool = False
    sees_sources: bool = False
    shown_area: int = 0
    shown_side: float = 1.0
    keeps_shown: bool = True
    denoiser_channels: int = 0
    size_conditioning: bool = False
    blocks: int = 0
    skips_layers_of: tuple[str, ...] = ()
    embeds_guidance: bool = False
    shifts_by_size: bool = False
    even_steps: bool = False
    prompt_weighting: bool = False
    chunks_prompts: bool = False
    embedding_keys: tuple[str, ...] = ()
    output_keys: tuple[str, ...] = ()
    output_layers: int = 1
    predicts_variance: bool = False
    default_steps: int = 20
    default_cfg: float = 7.0
    default_sampler: str = "DDIM"
    lora_metadata: Mapping[str, str] = field(default_factory=dict)
    other_prediction: str = ""
    relatives: tuple[Relative, ...] = ()
    order: int = 1000

    @property
    def lora_architecture(self) -> str:
        """``modelspec.architecture`` of its adapters. Those of an inpainting model have the same layers as others."""
        return f"{self.model_architecture.removesuffix(_INPAINTING)}/lora"

    def part(self, name: str) -> PartSpec:
        """The part called ``name``; ``KeyError`` if the family has none."""
        for part in self.parts:
            if part.name == name:
                return part
        raise KeyError(f"{self.label} has no part {name!r}; it has {', '.join(p.name for p in self.parts)}")

    def of_kind(self, kind: PartKind) -> tuple[PartSpec, ...]:
        """The parts of one kind, in the family's order."""
        return tuple(part for part in self.parts if part.kind == kind)

    @property
    def prompt_length(self) -> int:
        """Number of tokens that its text encoders read, including the template."""
        return self.prompt_tokens + self.template_tokens

    @property
    def denoiser(self) -> str:
        """Name of the denoiser: ``unet`` or ``transformer``."""
        return self.of_kind("denoiser")[0].name

    @property
    def text_encoders(self) -> tuple[str, ...]:
        """Names of the text encoders."""
        return tuple(part.name for part in self.of_kind("text_encoder"))

    @property
    def trained_encoders(self) -> tuple[str, ...]:
        """Names of the trainable text encoders."""
        return tuple(part.name for part in self.of_kind("text_encoder") if not part.frozen)

    @property
    def optional_encoders(self) -> tuple[str, ...]:
        """Names of those that prompts can be read without."""
        return tuple(part.name for part in self.of_kind("text_encoder") if part.optional)

    @property
    def output_encoders(self) -> dict[str, str]:
        """Text encoders whose output can be replaced by vectors -> their names in files of embeddings."""
        known = zip(self.text_encoders, self.output_keys, strict=bool(self.output_keys))
        return {encoder: key for encoder, key in known if key}

    @property
    def output_groups(self) -> tuple[tuple[str, ...], ...]:
        """The same encoders in the arrangement of their states: side by side within a group, and the groups one after
        the other along the tokens.
        """
        long = tuple(name for name in self.output_encoders if name == self.length_of)
        side_by_side = tuple(name for name in self.output_encoders if name not in long)
        return tuple(group for group in (side_by_side, long) if group)

    @property
    def vae(self) -> str:
        """Name of the autoencoder."""
        return self.of_kind("vae")[0].name

    @property
    def module_parts(self) -> tuple[str, ...]:
        """Names of the parts with weights that a run needs. Settings have a section for each."""
        return tuple(p.name for p in self.parts if p.kind in ("denoiser", "text_encoder", "vae"))

    @property
    def guide(self) -> str:
        """Name of the second denoiser used for guidance; empty if there is none."""
        return next((part.name for part in self.of_kind("guide")), "")

    @property
    def weight_parts(self) -> tuple[str, ...]:
        """``module_parts`` and, after the denoiser, the parts used only for samples."""
        denoiser, *rest = self.module_parts
        return (denoiser, *(part.name for part in self.of_kind("guide")), *rest)

    @property
    def parts_of_a_run(self) -> tuple[str, ...]:
        """Names of all parts except those used only for samples."""
        return tuple(part.name for part in self.parts if part.kind != "guide")

    @property
    def reads_negatives(self) -> bool:
        """True if guidance uses the prediction for a negative prompt."""
        return not self.unread_negatives

    @property
    def unread_negatives(self) -> str:
        """The reason why negative prompts are never read, as text; empty if guidance reads them."""
        if self.embeds_guidance:
            return f"{self.label} takes its guidance scale as an input"
        return f"{self.label} is guided by a network that reads no prompts" if self.guide else ""

    @property
    def flow_matching(self) -> bool:
        """True if it learns the straight path from noise to image, without a schedule of noise variances."""
        return self.prediction == "flow"

    def relative_by_shapes(self, shapes: Mapping[str, Sequence[int]]) -> Relative | None:
        """The relative to which a denoiser with tensors of these shapes belongs, if any."""
        for relative in self.relatives:
            found = (shapes[name] for name in relative.tensors if name in shapes)
            if any(len(shape) > 1 and shape[1] == relative.width for shape in found):
                return relative
        return None

    def relative_by_config(self, config: Mapping[str, object]) -> Relative | None:
        """As ``relative_by_shapes``, for a diffusers config."""
        return next((one for one in self.relatives if config.get(one.config) == one.width), None)

    def for_inpainting(self, key: str, label: str, pipeline_class: str) -> FamilySpec:
        """The spec of this family's inpainting model, whose adapters have the same layers."""
        return replace(
            self,
            key=key,
            label=label,
            pipeline_class=pipeline_class,
            model_architecture=self.model_architecture + _INPAINTING,
            inpainting=True,
            # latents, the mask, and the latents of the masked image
            denoiser_channels=9,
            other_prediction="",
        )


flow_family = partial(
    FamilySpec,
    prediction="flow",
    default_resolution=1024,
    size_multiple=16,
    length_of="text_encoder",
    even_steps=True,
    default_steps=50,
    default_sampler="EULER",
)
"""Describes a flow-matching family. What most of them have in common need not be said."""
