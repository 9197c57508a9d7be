"""Recognises, by name, files that are not models, and tensors that belong to none of a model's parts."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.util.display import counted
from modules.util.errors import UserError, list_offenders


@dataclass(frozen=True)
class OtherKind:
    """Something given in place of a model by mistake.

    Args:
        label: its displayed name, with an article.
        names: regular expression of the names of its tensors.
        share: share of all names that must match, 0 to 1; for 0, one name suffices.
        hint: what to do instead.
    """

    label: str
    names: re.Pattern[str]
    share: float
    hint: str


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


def refuse_other_kinds(path: Path, names: Collection[str], field: str) -> None:
    """Refuse a file that is not a model, before its tensors are compared with one.

    Args:
        field: the config field that names the file.

    Raises:
        UserError: the file is something else. The message says what, and what to set instead.
    """
    for kind in KINDS:
        count = sum(bool(kind.names.fullmatch(name)) for name in names)
        if count and count >= kind.share * len(names):
            raise UserError(f"{path} is {kind.label}, not a model", field=field, hint=kind.hint)
    if any(map(_LCM.fullmatch, names)):
        raise UserError(
            f"{path} is an LCM model: it was distilled to a few denoising steps, and training it is not supported",
            field=field,
            hint="train the model it was made from; the LoRA works with the LCM model too",
        )


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
