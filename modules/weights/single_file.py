"""Single files in the latent-diffusion layout: identifies their model, and converts its parts for diffusers."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from modules.model.dtypes import PartDtypes
from modules.model.lazy_modules import ShapesOnly, make_lazy
from modules.model.text.clip_vocabulary import make_clip_tokenizer
from modules.model.weight_files import open_weights
from modules.spec.FamilySpec import FamilySpec, PartSpec
from modules.spec.parts import TEXT_PREFIX
from modules.util.display import counted
from modules.util.errors import UserError, list_offenders
from modules.util.tensors.lazy_tensors import LazyTensor
from modules.weights.ldm_keys import unet_to_ldm, vae_to_ldm
from modules.weights.loading import FIELD, load_tokenizer, part_class, require_floats
from modules.weights.open_clip import (
    PROJECTION,
    from_open_clip,
    joined_in_open_clip,
    lazily_from_open_clip,
    to_open_clip,
)
from modules.weights.other_kinds import NEEDLESS, refuse_other_kinds, refuse_strays

State = dict[str, torch.Tensor]
Entries = dict[str, LazyTensor]
V_MARK, ZERO_SNR_MARK = "v_pred", "ztsnr"
"""Names of empty tensors by which files tell how the model was trained."""
EDM_MARKS = ("edm_mean", "edm_std", "edm_vpred.")
"""Prefixes of marks in models with another kind of noise."""
OLD_TEXT = re.compile(r"^cond_stage_model\.transformer\.(?=embeddings\.|encoder\.|final_layer_norm\.)")
"""Location of the text encoder in files of programs with an old version of transformers."""
PREFIXES = {
    "denoiser": ("model.diffusion_model.", "diffusion_model."),
    "guide": (),
    "vae": ("first_stage_model.", "vae."),
    "text_encoder": (),
}
"""Prefixes of a part in files that hold several parts, besides those in its spec."""
BARE = "input_blocks."
"""Prefixes in a file that holds only a denoiser."""
_NEEDLESS_IN_CLIP = re.compile(r"attn_mask|visual\..*")
"""The same of OpenCLIP's files."""
HEADS = 8
HEAD_WIDTH = 64
TIME_WIDTH = 256
SCHEDULER: Mapping[str, Any] = {
    "_class_name": "DDIMScheduler",
    "num_train_timesteps": 1000,
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "clip_sample": False,
    "set_alpha_to_one": False,
    "steps_offset": 1,
    "prediction_type": "epsilon",
}


@dataclass(frozen=True)
class Unsaid:
    """Facts that a family's files do not contain.

    Args:
        scaling_factor: scaling factor of the autoencoder's latents.
        scheduler: the scheduler config.
    """

    scaling_factor: float = 0.18215
    scheduler: Mapping[str, Any] = field(default_factory=lambda: SCHEDULER)


@dataclass(frozen=True)
class SingleFile:
    """An opened file: tensors by part without their prefixes, the names of all, and the metadata."""

    states: dict[str, Entries]
    names: frozenset[str]
    metadata: Mapping[str, str]


def marked_scheduler(
    path: Path, config: Mapping[str, Any], names: Collection[str], metadata: Mapping[str, str]
) -> dict[str, Any]:
    """A scheduler config updated with the marks in a file of weights.

    Raises:
        UserError: the model was trained with unsupported noise.
    """
    if any(name.startswith(EDM_MARKS) for name in names):
        raise UserError(
            f"{path} was trained with continuous noise levels (EDM), which are not supported",
            field=FIELD,
            hint="use a model that predicts noise or velocity at 1000 timesteps",
        )
    made = dict(config)
    if V_MARK in names or metadata.get("modelspec.prediction_type") == "v":
        made["prediction_type"] = "v_prediction"
    if ZERO_SNR_MARK in names:
        made |= {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
    return made


_VAE_ATTENTION = re.compile(r"mid_block\.attentions\.0\.to_(q|k|v|out\.0)\.weight$")


def to_ldm(kind: str, module: nn.Module, key: str, tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
    """Name (without prefix) and value of one tensor of a part in the latent-diffusion layout."""
    path, _, leaf = key.rpartition(".")
    config: Any = module.config
    if kind == "denoiser":
        attention = tuple("Attn" in block for block in config.up_block_types)
        return f"{unet_to_ldm(path, config.layers_per_block, attention)}.{leaf}", tensor
    if kind == "vae":
        if _VAE_ATTENTION.search(key):
            # the original attention consists of 1x1 convolutions
            tensor = tensor[:, :, None, None]
        return f"{vae_to_ldm(path, len(config.block_out_channels))}.{leaf}", tensor
    return key, tensor


def file_tensors(part: PartSpec, module: nn.Module, state: Mapping[str, torch.Tensor]) -> State:
    """The tensors of a part in the form of a single file, with its prefix.

    Args:
        state: the part's tensors under its own names.
    """
    if part.kind == "text_encoder":
        plain = {key.removeprefix("text_model."): tensor for key, tensor in state.items()}
        made = to_open_clip(plain) if part.open_clip else plain
    else:
        made = dict(to_ldm(part.kind, module, key, tensor) for key, tensor in state.items())
    return {f"{part.file_prefix}{name}": tensor for name, tensor in made.items()}


def file_entries(part: PartSpec, module: nn.Module, entries: Mapping[str, LazyTensor]) -> Entries:
    """``file_tensors`` for tensors that are read when they are written."""
    made: Entries = {}
    for group in joined_in_open_clip(entries) if part.open_clip else [(name,) for name in entries]:
        like = file_tensors(part, module, {name: entries[name].empty() for name in group})

        def read(name: str, group: tuple[str, ...] = group) -> torch.Tensor:
            return file_tensors(part, module, {each: entries[each].read() for each in group})[name]

        made |= {
            name: LazyTensor(tuple(tensor.shape), tensor.dtype, partial(read, name))
            for name, tensor in like.items()
        }
    return made


def load_single_file(
    path: Path,
    spec: FamilySpec,
    wanted: Sequence[str],
    dtypes: PartDtypes,
    unsaid: Unsaid,
    folders: Sequence[Path] = (),
) -> dict[str, Any]:
    """Load the wanted parts of a file, by name: modules, tokenizers, the scheduler config.

    Args:
        folders: diffusers folders of other parts, in which tokenizers are searched too.

    Raises:
        UserError: the file is damaged, of another family, or incomplete.
    """
    file = read_single_file(path, spec, wanted)
    loaded: dict[str, Any] = {}
    for part in (part for part in spec.parts if part.name in wanted):
        if part.kind == "scheduler":
            loaded[part.name] = marked_scheduler(path, unsaid.scheduler, file.names, file.metadata)
        elif part.kind == "tokenizer":
            loaded[part.name] = find_tokenizer(path, part, folders)
        else:
            module = _make_part(part, file.states[part.name], path, unsaid, dtypes.lazy)
            # diffusers' own ``to`` warns about number types even if none is at risk
            loaded[part.name] = module if dtypes.lazy else nn.Module.to(module, dtypes.of(part.name))
    return loaded


def _make_part(part: PartSpec, entries: Entries, path: Path, unsaid: Unsaid, stored: bool) -> nn.Module:
    kind = part_class(part)
    if part.open_clip:
        entries = _from_open_clip(part, entries, path)
    state = {name: entry.empty() for name, entry in entries.items()}
    try:
        if part.kind == "denoiser":
            config = unet_config(state)
        elif part.kind == "vae":
            config = {**vae_config(state), "scaling_factor": unsaid.scaling_factor}
        else:
            config = text_config(state, part.open_clip)
    except (KeyError, StopIteration, ValueError, IndexError) as error:
        raise UserError(
            f"the {part.name} of {path} is not one of this family: {error or 'layers'} missing",
            field=FIELD,
            hint="the file may be incomplete, or hold a model of another family",
        ) from error
    if part.kind == "text_encoder":
        from transformers.models.clip.configuration_clip import CLIPTextConfig

        return fill(part, lambda: kind(CLIPTextConfig(**config)), entries, path, stored)
    return fill(part, lambda: kind(**config), entries, path, stored)


def _from_open_clip(part: PartSpec, entries: Entries, path: Path) -> Entries:
    """Tensors under their names in transformers. An encoder whose projection is not used may lack it.

    Raises:
        UserError: the encoder has no place for some tensors, or lacks a projection that is used.
    """
    made = lazily_from_open_clip(entries)
    names = [name for name in entries if not from_open_clip({name: entries[name].empty()})]
    _check_read(part, [name for name in names if not _NEEDLESS_IN_CLIP.fullmatch(name)], path)
    embedding = made.get("embeddings.token_embedding.weight")
    if PROJECTION not in made and embedding is not None:
        if part.classes[0].endswith("WithProjection"):
            raise UserError(
                f"the {part.name} of {path} has no text_projection, so prompts would be read wrongly",
                field=FIELD,
                hint=f"set {part.name}.model_name to a folder or file that has it, such as "
                "stabilityai/stable-diffusion-xl-base-1.0",
            )
        width = embedding.shape[1]
        made[PROJECTION] = LazyTensor((width, width), embedding.dtype, lambda: torch.eye(width))
    return made


def _check_read(part: PartSpec, unread: Sequence[str], path: Path) -> None:
    """Raise ``UserError`` if there are unread tensors that affect the output of a part."""
    unread = [name for name in unread if not NEEDLESS.fullmatch(name)]
    if unread:
        raise UserError(
            f"the {part.name} in {path} has {counted(len(unread), 'tensor')} that such a part has no place for:\n"
            f"{list_offenders(unread)}",
            field=FIELD,
            hint="distilled models (LCM) and weights kept in blocks with scales are not supported; use the model "
            "it was made from",
        )


def read_single_file(path: Path, spec: FamilySpec, wanted: Collection[str]) -> SingleFile:
    """Locate the tensors of each part in a file.

    Raises:
        UserError: the file is damaged, or lacks a wanted part in the latent-diffusion layout.
    """
    file = open_weights(path, FIELD)
    refuse_other_kinds(path, file.shapes, FIELD, spec, spec.denoiser if spec.denoiser in wanted else "")
    places = {OLD_TEXT.sub(TEXT_PREFIX, name): name for name in file.shapes}
    found: dict[str, Entries] = {}
    taken: list[str] = []
    for part in (part for part in spec.parts if part.file_prefix):
        prefix = _prefix(part, places)
        taken += part_prefixes(part) if part.name not in wanted else () if prefix is None else (prefix,)
        found[part.name] = {
            usual.removeprefix(prefix): file.lazy(name)
            for usual, name in places.items()
            if prefix is not None and usual.startswith(prefix)
        }
    _check_family(path, spec, {name: tuple(tensor.shape) for name, tensor in found[spec.denoiser].items()})
    missing = [part for part, state in found.items() if part in wanted and not state]
    if missing:
        hint = f"its keys look like {next(iter(places))}" if places else "it is empty"
        if any(found.values()):
            fields = ", ".join(f"{part}.model_name" for part in missing)
            hint = f"use a checkpoint of the whole model, or set {fields} to a diffusers folder or a file that has it"
        raise UserError(
            f"{path} is not a {spec.label} checkpoint: it holds no {' and no '.join(missing)}",
            field=FIELD,
            hint=hint,
        )
    # without a prefix, everything else is the denoiser's
    if "" not in taken:
        refuse_strays(path, places, taken, FIELD)
    return SingleFile(found, frozenset(file.shapes), file.metadata)


def file_prefixes(spec: FamilySpec) -> tuple[str, ...]:
    """The prefixes of the parts in a whole file."""
    parts = (part for part in spec.parts if part.kind in PREFIXES)
    return tuple(prefix for part in parts for prefix in part_prefixes(part))


def part_prefixes(part: PartSpec) -> tuple[str, ...]:
    """A part's prefixes in files that hold several."""
    own: tuple[str, ...] = (part.file_prefix,) if part.file_prefix else ()
    if part.kind == "text_encoder" and part.comfy_name:
        names: tuple[str, ...] = (part.comfy_name, *(name for _, name in part.comfy_sizes))
        own += tuple(f"text_encoders.{name}.{rest}" for name in names for rest in ("transformer.", ""))
    if part.inside:
        own += tuple(f"{prefix}{part.inside}" for prefix in (*PREFIXES["denoiser"], ""))
    return tuple(dict.fromkeys((*own, *PREFIXES[part.kind])))


def _prefix(part: PartSpec, names: Collection[str]) -> str | None:
    """The prefix of a part in a file; ``None`` if it is missing."""
    for prefix in dict.fromkeys((part.file_prefix, *PREFIXES[part.kind])):
        if any(name.startswith(prefix) for name in names):
            return prefix
    return "" if part.kind == "denoiser" and any(name.startswith(BARE) for name in names) else None


def _check_family(path: Path, spec: FamilySpec, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ``UserError`` if the denoiser is that of a relative of the family."""
    relative = spec.relative_by_shapes(shapes)
    if relative is not None:
        raise UserError(f"{path} {relative.message}", field=FIELD, hint=relative.hint)


def unet_config(state: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """The config of a UNet in the latent-diffusion layout, derived from its shapes."""
    blocks = sorted({int(m[1]) for k in state if (m := re.match(r"input_blocks\.(\d+)\.", k))})
    downs = [i for i in blocks if f"input_blocks.{i}.0.op.weight" in state]
    per_block = downs[0] if downs else len(blocks)
    channels: list[int] = []
    attention: list[bool] = []
    for first in range(1, len(blocks), per_block):
        channels.append(state[f"input_blocks.{first}.0.out_layers.3.weight"].shape[0])
        attention.append(f"input_blocks.{first}.1.norm.weight" in state)
    first_attention = next(k for k in state if k.endswith("attn2.to_k.weight"))
    projection = next(k for k in state if k.endswith(".1.proj_in.weight"))
    # the first generation has heads of any width and projects with convolutions
    linear = state[projection].dim() == 2
    config: dict[str, Any] = {
        "in_channels": state["input_blocks.0.0.weight"].shape[1],
        "out_channels": state["out.2.weight"].shape[0],
        "block_out_channels": channels,
        "layers_per_block": per_block - 1,
        "cross_attention_dim": state[first_attention].shape[1],
        # diffusers uses this name for the number of heads
        "attention_head_dim": [width // HEAD_WIDTH for width in channels] if linear else HEADS,
        "transformer_layers_per_block": [
            *(
                _depth(state, f"input_blocks.{1 + per_block * level}.1.")
                for level in range(len(channels) - 1)
            ),
            # the one of the last level is that of the middle block
            _depth(state, "middle_block.1."),
        ],
        "use_linear_projection": linear,
        "down_block_types": ["CrossAttnDownBlock2D" if a else "DownBlock2D" for a in attention],
        "up_block_types": ["CrossAttnUpBlock2D" if a else "UpBlock2D" for a in reversed(attention)],
        "sample_size": 64,
    }
    if "label_emb.0.0.weight" in state:
        config |= {
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": TIME_WIDTH,
            "projection_class_embeddings_input_dim": state["label_emb.0.0.weight"].shape[1],
            "sample_size": 128,
        }
    return config


def _depth(state: Mapping[str, torch.Tensor], place: str) -> int:
    """Number of transformer blocks at a position of a UNet."""
    pattern = re.compile(re.escape(place) + r"transformer_blocks\.(\d+)\.")
    return 1 + max((int(match[1]) for key in state if (match := pattern.match(key))), default=0)


def vae_config(state: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """The config of an autoencoder in the latent-diffusion layout, derived from its shapes."""
    levels = 1 + max(int(m[1]) for k in state if (m := re.match(r"encoder\.down\.(\d+)\.", k)))
    layers = 1 + max(int(m[1]) for k in state if (m := re.match(r"encoder\.down\.0\.block\.(\d+)\.", k)))
    return {
        "block_out_channels": [
            state[f"encoder.down.{i}.block.0.conv2.weight"].shape[0] for i in range(levels)
        ],
        "down_block_types": ["DownEncoderBlock2D"] * levels,
        "up_block_types": ["UpDecoderBlock2D"] * levels,
        "latent_channels": state["post_quant_conv.weight"].shape[0],
        "layers_per_block": layers,
        "sample_size": 512,
    }


def text_config(state: Mapping[str, torch.Tensor], open_clip: bool = False) -> dict[str, Any]:
    """The config of a CLIP text encoder, derived from its shapes under the names of transformers."""
    tokens, width = state["embeddings.token_embedding.weight"].shape
    layers = 1 + max(int(m[1]) for k in state if (m := re.match(r"encoder\.layers\.(\d+)\.", k)))
    return {
        "vocab_size": tokens,
        "hidden_size": width,
        "intermediate_size": state["encoder.layers.0.mlp.fc1.weight"].shape[0],
        "num_hidden_layers": layers,
        "num_attention_heads": max(1, width // HEAD_WIDTH),
        "hidden_act": "gelu" if open_clip else "quick_gelu",
        "max_position_embeddings": state["embeddings.position_embedding.weight"].shape[0],
        "projection_dim": state["text_projection.weight"].shape[0] if open_clip else width,
        "bos_token_id": tokens - 2,
        "eos_token_id": tokens - 1,
        "pad_token_id": tokens - 1,
    }


def squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape without its ones, because a convolution of one pixel is a linear layer."""
    return tuple(size for size in shape if size != 1)


def fill(
    part: PartSpec,
    make: Callable[[], nn.Module],
    entries: Mapping[str, LazyTensor],
    source: Path,
    stored: bool = False,
) -> nn.Module:
    """Create a part with the tensors of a file, or with ``stored`` their locations.

    Raises:
        UserError: tensors are missing, have another shape, or do not belong to the part.
    """
    kind = part.kind
    try:
        with ShapesOnly() if stored else nullcontext():
            module = make()
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise UserError(
            f"the {kind} in {source} has widths that such a part cannot have: {str(error).strip().splitlines()[0]}",
            field=FIELD,
            hint="the file may hold a model of another family",
        ) from error
    own = module.state_dict()
    rooted = "text_model." if any(name.startswith("text_model.") for name in own) else ""
    filled: Entries = {}
    faults: list[str] = []
    unread = dict.fromkeys(entries)
    for key, tensor in own.items():
        name, like = to_ldm(kind, module, key.removeprefix(rooted), tensor)
        entry = entries.get(name)
        unread.pop(name, None)
        if entry is None and key.endswith("position_ids"):
            continue
        if entry is None or squeezed(entry.shape) != squeezed(tensor.shape):
            faults.append(name if entry is None else f"{name}: {entry.shape} for {tuple(like.shape)}")
        else:
            filled[key] = entry.then(lambda value, shape=tensor.shape: value.reshape(shape))  # type: ignore[misc]
    if faults:
        raise UserError(
            f"{source} does not hold a whole {kind} of this family; missing or of another shape:\n"
            f"{list_offenders(faults)}",
            field=FIELD,
        )
    _check_read(part, list(unread), source)
    require_floats(filled, own, source)
    if stored:
        return make_lazy(module, filled)
    with torch.no_grad():
        for key, entry in filled.items():
            own[key].copy_(entry.read())
    return module.eval().requires_grad_(False)


def find_tokenizer(path: Path, part: PartSpec, folders: Sequence[Path] = ()) -> Any:
    """The tokenizer for a single file, which has none in it.

    It is searched in a folder of its name or ``tokenizer`` next to the file, then in ``folders``; the default
    is the one published with CLIP.

    Raises:
        UserError: the one next to the file is damaged.
    """
    kind, own, first = part_class(part), path.parent / part.place, path.parent / "tokenizer"
    if own.is_dir():
        return load_tokenizer(kind, own)
    if first.is_dir():
        # both encoders read the same tokens; they differ in their padding
        return load_tokenizer(kind, first, pad_token=part.pad_token)
    for folder in folders:
        if (folder / part.place).is_dir():
            return load_tokenizer(kind, folder / part.place)
    return make_clip_tokenizer(part.pad_token)
