"""Recognises, by name, files that are not models, and tensors that belong to none of a model's parts."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.spec.FamilySpec import FamilySpec, PartSpec
from modules.util.display import counted
from modules.util.errors import UserError, list_offenders
from modules.util.jsonio import read_json

_NEVER = re.compile(r"(?!)")


@dataclass(frozen=True)
class OtherKind:
    """Something given in place of a model by mistake.

    Args:
        label: its displayed name, with an article.
        names: regular expression of the names of its tensors.
        share: share of all names that must match, 0 to 1; for 0, one name suffices.
        hint: what to do instead.
        classes: regular expression of the class in its config.
    """

    label: str
    names: re.Pattern[str]
    share: float
    hint: str
    classes: re.Pattern[str] = _NEVER


@dataclass(frozen=True)
class PartKind:
    """A kind of part that may be given in place of another part, or of a whole model.

    Args:
        label: its displayed name, with an article.
        names: regular expression of the names of its tensors.
        share: share of all names that must match, 0 to 1.
        classes: regular expression of the class in its config.
    """

    label: str
    names: re.Pattern[str]
    share: float
    classes: re.Pattern[str]

    def homes(self, spec: FamilySpec) -> list[PartSpec]:
        """The parts of a family that are of this kind."""
        modules = (part for part in spec.parts if part.name in spec.module_parts)
        return [part for part in modules if self.classes.fullmatch(part.classes[0])]


@dataclass(frozen=True)
class EncoderSize:
    """A text encoder by its kind and size.

    Args:
        width: size of its text states.
        layers: number of its layers.
    """

    kind: str
    width: int
    layers: int

    def __str__(self) -> str:
        name = _SIZES.get(self.kind, {}).get((self.width, self.layers), self.kind)
        return f"{name} ({counted(self.layers, 'layer')}, width {self.width})"

    @classmethod
    def of_tensors(cls, shapes: Mapping[str, tuple[int, ...]]) -> EncoderSize | None:
        """The text encoder that has these tensors, without a prefix; ``None`` for anything else."""
        width = next((shape[-1] for name, shape in shapes.items() if _TOKENS.fullmatch(name)), 0)
        layers = {int(match[3]) for name in shapes if (match := _LAYER.fullmatch(name))}
        kind = next((kind for kind, _, names in _ENCODERS if any(map(names.fullmatch, shapes))), "")
        if not (width and layers and kind):
            return None
        sees = kind.startswith("Qwen") and any(map(_SEES.fullmatch, shapes))
        return cls(f"{kind}-VL" if sees else kind, width, max(layers) + 1)

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> EncoderSize | None:
        """The text encoder that has this config; ``None`` for anything else."""
        text = config.get("text_config")
        own = text if isinstance(text, Mapping) else config
        width, layers = (
            next((own[name] for name in names if isinstance(own.get(name), int)), 0)
            for names in (("hidden_size", "d_model"), ("num_hidden_layers", "num_layers"))
        )
        kind = next((kind for kind, types, _ in _ENCODERS if types.fullmatch(str(config.get("model_type")))), "")
        return cls(kind, width, layers) if width and layers and kind else None


_WHOLE = "set base_model_name to a model of the family"
KINDS = (
    OtherKind(
        "an adapter (LoRA)",
        re.compile(
            r"(.*[._])?(lora_(A|B|down|up)(\..+)?|lora\.(down|up)\.weight|lora_linear_layer\..*|hada_[wt]\d(_[ab])?|"
            r"lokr_[wt]\d(_[ab])?|oft_(R|blocks|diag)(\..+)?|boft_.*|dora_scale|alpha)"
        ),
        0.5,
        "set base_model_name to the model it was trained for and lora_model_name to this file, or merge it into that "
        "model with scripts/convert_model.py merge",
    ),
    OtherKind(
        "a ControlNet",
        re.compile(
            r"((control_model|controlnet_(blocks|single_blocks|single_transformer_blocks|x_embedder|down_blocks|"
            r"mid_block|cond_embedding|mode_embedder)|input_hint_block|zero_convs|control_blocks|control_layers|"
            r"control_all_x_embedder|pos_embed_input)\.|lllite_).*"
        ),
        0.0,
        f"ControlNets are not trained or used here; {_WHOLE}",
        re.compile(r".*ControlNet.*"),
    ),
    OtherKind(
        "a T2I-Adapter",
        re.compile(
            r"(adapter\.)?(body\.\d+\.(block[12]|in_conv|resnets\.\d+|skep|down_opt)\..*|conv_in\.(weight|bias))"
        ),
        0.9,
        f"T2I-Adapters are not trained or used here; {_WHOLE}",
        re.compile(r"(Full|Light)?T2I-?Adapter.*"),
    ),
    OtherKind(
        "FLUX.1 Redux, which turns images into prompts",
        re.compile(r"redux_(up|down)\..*"),
        0.0,
        f"it is not supported; {_WHOLE}",
    ),
    OtherKind(
        "an IP-Adapter", re.compile(r"(ip_adapter|image_proj)\..*"), 0.5, f"it is not supported; {_WHOLE}"
    ),
    OtherKind(
        "an embedding (textual inversion)",
        re.compile(r"emb_params|string_to_param.*|clip_[lg]|<.*>"),
        1.0,
        f"name it in additional_embeddings, or as embedding.model_name to train it further; {_WHOLE}",
    ),
)
_TEXT = r"(cond_stage_model\.|conditioner\.embedders\.\d\.|text_encoders\.\w+\.)?(transformer\.|model\.)?"
"""Beginnings of the names of text encoders in files of several parts."""
PARTS = (
    PartKind(
        "an image encoder (CLIP vision)",
        re.compile(r"(model\.)?(vision_model|visual_projection|visual)\..*"),
        1.0,
        re.compile(r"clip_?vision.*|siglip.*|dino.*", re.IGNORECASE),
    ),
    PartKind(
        "an autoencoder (VAE)",
        re.compile(
            r"(first_stage_model\.|vae\.)?((en|de)coder\.(conv1|conv_in|conv_out|norm_out|conv_norm_out|down|up|mid|"
            r"down_blocks|up_blocks|mid_block|downsamples|upsamples|middle|head|stages|project_in|project_out|"
            r"(post_)?quant_conv|layers\.\d+\.(weight|bias|conv))(\..*|$)|(post_)?quant_conv\..*|bn\..*|"
            r"conv[12]\.(weight|bias)|quantize\..*|loss\..*|model_ema\..*)"
        ),
        0.9,
        re.compile(r"(Asymmetric)?Autoencoder.*|ConsistencyDecoderVAE|VQModel"),
    ),
    PartKind(
        "a text encoder (CLIP)",
        re.compile(
            _TEXT + r"((text_model\.)?(embeddings\..*|encoder\.layers\.\d+\.(self_attn|mlp|layer_norm\d)\..*|"
            r"final_layer_norm\..*)|transformer\.resblocks\..*|token_embedding\.weight|positional_embedding|"
            r"ln_final\..*|text_projection(\.weight)?|logit_scale|(vision_model|visual_projection|visual)\..*)"
        ),
        0.9,
        re.compile(r"(open_?)?clip.*", re.IGNORECASE),
    ),
    PartKind(
        "a text encoder (T5)",
        re.compile(
            _TEXT + r"(shared\.weight|(en|de)coder\.(embed_tokens\.weight|block\.\d+\.layer\..*|"
            r"final_layer_norm\.weight)|lm_head\.weight)|enc\.(blk\.\d+|output_norm)\..*|token_embd\.weight"
        ),
        0.9,
        re.compile(r"(u?m)?t5.*", re.IGNORECASE),
    ),
    PartKind(
        "a text encoder (language model)",
        re.compile(
            _TEXT + r"(language_model\.)?(model\.)?(embed_tokens\.weight|layers\.\d+\.(self_attn|mlp|(input|"
            r"post_attention|pre_feedforward|post_feedforward)_layernorm)\..*|norm\.weight|lm_head\.weight|(visual|"
            r"vision_tower|multi_modal_projector)\..*)|blk\.\d+\..*|(token_embd|output|output_norm)\.weight"
        ),
        0.9,
        re.compile(r"(qwen(?!image)|gemma|llama|mi(ni)?stral).*", re.IGNORECASE),
    ),
)
"""Kinds of parts; the first that matches counts."""
_SIZES = {
    "CLIP": {(768, 12): "CLIP-L", (1024, 23): "CLIP-H", (1024, 24): "CLIP-H", (1280, 32): "CLIP-G"},
    "T5": {(768, 12): "T5-base", (1024, 24): "T5-large", (2048, 24): "T5-XL", (4096, 24): "T5-XXL"},
    "Qwen3": {
        (1024, 28): "Qwen3-0.6B", (2048, 28): "Qwen3-1.7B", (2560, 36): "Qwen3-4B", (4096, 36): "Qwen3-8B",
    },
    "Qwen3-VL": {(2048, 28): "Qwen3-VL-2B", (2560, 36): "Qwen3-VL-4B", (4096, 36): "Qwen3-VL-8B"},
}  # fmt: skip
"""Names of published text encoders, by kind, width and number of layers."""
_ENCODERS = (
    ("CLIP", re.compile(r"clip.*"), re.compile(r"(text_model\.)?encoder\.layers\..*")),
    ("T5", re.compile(r"t5.*"), re.compile(r"encoder\.block\..*")),
    ("Gemma", re.compile(r"gemma.*"), re.compile(r".*layers\.\d+\.pre_feedforward_layernorm\..*")),
    ("Qwen3", re.compile(r"qwen3(?!_vl).*"), re.compile(r".*layers\.\d+\.self_attn\.q_norm\..*")),
    ("Qwen2.5", re.compile(r"qwen2(?!_5_vl).*"), re.compile(r".*layers\.\d+\.self_attn\.q_proj\.bias")),
    ("Llama or Mistral", re.compile(r"llama.*|mi(ni)?stral.*"), re.compile(r".*layers\.\d+\.self_attn\..*")),
    ("Qwen3-VL", re.compile(r"qwen3_vl.*"), _NEVER),
    ("Qwen2.5-VL", re.compile(r"qwen2_5_vl.*"), _NEVER),
)
"""Kinds of text encoders: the type in their configs, and names that they have; the first that matches counts."""
_SEES = re.compile(r"(model\.)?visual\..*")
_TOKENS = re.compile(r"(.*\.)?(token_embedding|embed_tokens|shared)\.weight")
_LAYER = re.compile(r"(?!.*(visual|vision|decoder)).*\b(layers|block)\.(\d+)\..*")
_LCM = re.compile(r"(.*\.)?time_embed(ding)?\.cond_proj\.weight")
"""The layer that tells a UNet its guidance scale."""
NEEDLESS = re.compile(
    r"(.*\.)?(position_ids|logit_scale|pos_embed|y_embedding|norm_final\.weight|inv_freq|text_projection(\.weight)?|"
    r"pos_embedder\.(seq|dim_spatial_range|dim_temporal_range)|_extra_state|accum_[a-z_]+|"
    r"lm_head\.weight|spiece_model|v_pred|ztsnr|(vision_model|visual_projection|model_ema|loss)\..*)"
)
"""Tensors of published files that the modules do not need: computed ones, and those needed only for training."""
LEFTOVERS = re.compile(
    r"(model_ema|embedding_manager|loss|denoiser|logvar|safety_checker)\..*|betas|alphas_cumprod(_prev)?|"
    r"(sqrt|log|posterior|lvlb)_\w+|logvar|scale_factor|global_step|edm_.*"
)
"""Tensors of whole models that are needed only for training, or are marks."""


def refuse_other_kinds(path: Path, names: Collection[str], field: str, spec: FamilySpec, part: str) -> None:
    """Refuse a file that is not what it was given for, before its tensors are compared with that.

    Args:
        field: the config field that names the file.
        part: the part it was given for: for whole models the denoiser, or none if that comes from elsewhere.

    Raises:
        UserError: the file is something else. The message says what, and what to set instead.
    """
    for kind in KINDS:
        if _agrees(kind, names):
            raise UserError(f"{path} is {kind.label}, not a model", field=field, hint=kind.hint)
    if any(map(_LCM.fullmatch, names)):
        raise UserError(
            f"{path} is an LCM model: it was distilled to a few denoising steps, and training it is not supported",
            field=field,
            hint="train the model it was made from; the LoRA works with the LCM model too",
        )
    found = next((kind for kind in PARTS if part and _agrees(kind, names)), None)
    if found is not None and spec.part(part) not in found.homes(spec):
        raise _misplaced(path, found, field, spec, spec.part(part))


def refuse_other_folders(folder: Path, field: str, spec: FamilySpec, part: str) -> None:
    """As ``refuse_other_kinds``, for a folder of a single part, by the class in its config. No such folder is a whole
    model.

    Raises:
        UserError: the folder holds something else. The message says what, and what to set instead.
    """
    place = folder / "config.json"
    config = read_json(place, "model config") if place.is_file() else {}
    name = _class_in(config) if isinstance(config, dict) else ""
    wanted, alone = spec.part(part), field == f"{part}.model_name"
    if not name or (alone and name in wanted.classes):
        return
    for kind in KINDS:
        if kind.classes.fullmatch(name):
            raise UserError(f"{folder} is {kind.label}, not a model", field=field, hint=kind.hint)
    found = next((kind for kind in PARTS if kind.classes.fullmatch(name)), None)
    if found is not None and wanted not in found.homes(spec):
        raise _misplaced(folder, found, field, spec, wanted)
    denoiser = spec.part(spec.denoiser)
    if found is None and not (wanted.of_transformers and "_class_name" not in config):
        hint = _instead([denoiser] if name in denoiser.classes else [], field, spec, wanted)
        meant = _meant(spec, wanted) if alone else "a whole model"
        raise UserError(f"{folder} holds a part of the class {name}, not {meant}", field=field, hint=hint)


def refuse_denoisers(path: Path, labels: Sequence[str], field: str, spec: FamilySpec, part: PartSpec) -> None:
    """Refuse a file with the denoiser alone, given for another part.

    Args:
        labels: of the families whose denoiser it is; none if it is something else.

    Raises:
        UserError: it is a denoiser. The message says of what, and what to set instead.
    """
    if labels:
        own = [spec.part(spec.denoiser)] if spec.label in labels else []
        kind = f"the denoiser of {spec.label if own else ' or '.join(labels)}"
        hint = _instead(own, field, spec, part)
        raise UserError(f"{path} is {kind}, not {_meant(spec, part)}", field=field, hint=hint)


def refuse_other_sizes(
    path: Path, given: EncoderSize | None, needed: Sequence[EncoderSize | None], field: str, owner: str
) -> None:
    """Refuse a text encoder of another size, or of another kind of language model.

    Args:
        needed: those that fit.
        owner: the model it has to fit, for the message.

    Raises:
        UserError: it does not fit. The message says what it is and what is needed.
    """
    known = list(dict.fromkeys(str(size) for size in needed if size))
    if given is None or given in needed or len(known) < len(needed):
        return
    raise UserError(
        f"{path} is the text encoder {given}, but {owner} needs {' or '.join(known)} as its {field.partition('.')[0]}",
        field=field,
        hint=f"name a {' or '.join(known)}, or leave {field} empty to use that of the base model",
    )


def _agrees(kind: OtherKind | PartKind, names: Collection[str]) -> bool:
    count = sum(bool(kind.names.fullmatch(name)) for name in names)
    return bool(count) and count >= kind.share * len(names)


def _class_in(config: Mapping[str, Any]) -> str:
    """The name of a class, or in configs without one the type of the model; empty if there is neither."""
    names = config.get("architectures")
    first = names[0] if isinstance(names, list) and names else ""
    found = config.get("_class_name") or first or config.get("model_type")
    return found if isinstance(found, str) else ""


def _misplaced(path: Path, kind: PartKind, field: str, spec: FamilySpec, part: PartSpec) -> UserError:
    hint = _instead(kind.homes(spec), field, spec, part)
    return UserError(f"{path} is {kind.label}, not {_meant(spec, part)}", field=field, hint=hint)


def _meant(spec: FamilySpec, part: PartSpec) -> str:
    return "a model" if part.denoises else f"the {part.name} of {spec.label}"


def _instead(homes: Sequence[PartSpec], field: str, spec: FamilySpec, part: PartSpec) -> str:
    """The hint for something that was given for another part."""
    fields = " or ".join(f"{home.name}.model_name" for home in homes)
    first = f"set {fields} to it" if fields else f"{spec.label} has no such part"
    if field == f"{part.name}.model_name":
        return f"{first}; leave {field} empty, or set it to a {part.name} of {spec.label}"
    return f"{first}; {_WHOLE}"


def refuse_strays(path: Path, names: Iterable[str], prefixes: Sequence[str], field: str) -> None:
    """Refuse a file of several parts with tensors that belong to none of them.

    Args:
        prefixes: prefixes of all parts the file may hold.
        field: the config field that names the file.

    Raises:
        UserError: there are such tensors. The message lists them.
    """
    known = tuple(prefixes)
    outside = [name for name in names if not name.startswith(known)]
    strays = [name for name in outside if not (NEEDLESS.fullmatch(name) or LEFTOVERS.fullmatch(name))]
    if strays:
        raise UserError(
            f"{path} has {counted(len(strays), 'tensor that belongs', 'tensors that belong')} to no part of such a "
            f"model:\n{list_offenders(strays)}",
            field=field,
            hint="they could change the model's images; use the published file, or one without these tensors",
        )
