"""Detects the family of a base model by its hub name, its folder's index, or the tensor names in its file."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path

from modules.util.config.faults import show
from modules.util.enum.ModelType import ModelType
from modules.util.errors import UnsupportedError, UserError
from modules.util.files.model_index import index_file, read_index
from modules.util.published_models import family_of

_MOST_BYTES = 100_000_000
_NAMES: Mapping[str, str] = {
    "runwayml/stable-diffusion-v1-5": "STABLE_DIFFUSION_15",
    "stable-diffusion-v1-5/stable-diffusion-v1-5": "STABLE_DIFFUSION_15",
    "stabilityai/stable-diffusion-2-1": "STABLE_DIFFUSION_21",
    "stabilityai/stable-diffusion-2-1-base": "STABLE_DIFFUSION_21_BASE",
    "stabilityai/stable-diffusion-xl-base-1.0": "STABLE_DIFFUSION_XL_10_BASE",
    "stabilityai/stable-diffusion-3-medium-diffusers": "STABLE_DIFFUSION_3",
    "pixart-alpha/pixart-xl-2-1024-ms": "PIXART_ALPHA",
    "pixart-alpha/pixart-sigma-xl-2-1024-ms": "PIXART_SIGMA",
    "lodestones/chroma1-hd": "CHROMA_1",
    "lodestones/chroma1-base": "CHROMA_1",
    "alpha-vllm/lumina-image-2.0": "LUMINA_2",
    "efficient-large-model/sana_1600m_1024px_bf16_diffusers": "SANA",
}
_IN_FILES: tuple[tuple[str, str], ...] = (
    ("conditioner.embedders.1.", "STABLE_DIFFUSION_XL_10_BASE"),
    ("cond_stage_model.transformer.", "STABLE_DIFFUSION_15"),
    ("distilled_guidance_layer.", "CHROMA_1"),
    ("single_blocks.47.", "FLUX_2_DEV"),
    ("double_stream_modulation_img.", "FLUX_2"),
    ("guidance_in.", "FLUX_DEV_1"),
    ("vector_in.", "FLUX_SCHNELL_1"),
    ("x_pad_token", "Z_IMAGE"),
    ("noise_refiner.", "LUMINA_2"),
    ("adaLN_sa_ln.", "ERNIE"),
    ("llm_adapter.", "ANIMA"),
    ("double_stream_blocks.0.block.", "HI_DREAM_FULL"),
    ("embed_image_indicator.", "IDEOGRAM_4"),
    ("transformer_blocks.0.img_mod.", "QWEN"),
    ("txt_in.text_norm.", "QWEN_21"),
    ("x_block.attn2.", "STABLE_DIFFUSION_35"),
    ("joint_blocks.37.", "STABLE_DIFFUSION_35"),
    ("joint_blocks.0.", "STABLE_DIFFUSION_3"),
)
"""Substrings of tensor names; the first one found decides."""


def family_of_base(name: str, hints: Collection[str | None], field: str, given: str = "") -> ModelType:
    """Detect the family of a base model.

    Args:
        name: hub name, folder or file.
        hints: families suggested by other settings; the first that is not None takes precedence over the
            name.
        field: the setting that holds the name.
        given: the family chosen by the user, which takes precedence over everything.

    Raises:
        UnsupportedError: the family cannot be determined or is not supported.
    """
    for found in (given, *hints, _by_name(name), _by_folder(Path(name)), _by_file(Path(name))):
        if found and found in ModelType.__members__:
            return ModelType(found)
        if found:
            raise UnsupportedError(
                f"the family {show(found)} is not supported", field, "docs/models.md lists what is"
            )
    raise UnsupportedError(
        f"nothing identifies the family of {show(name)}",
        field,
        "import it with scripts/import_config.py FILE TARGET --family FAMILY, such as STABLE_DIFFUSION_XL_10_BASE",
    )


def _by_name(name: str) -> str | None:
    wanted = name.strip().strip("/").lower()
    return _NAMES.get(wanted) or family_of(wanted) or None


def _by_folder(path: Path) -> str | None:
    index = index_file(path)
    if index is None:
        return None
    try:
        kind = read_index(index, _MOST_BYTES).get("_class_name")
    except UserError:
        return None
    fitting = [family.value for family in ModelType if family.spec.pipeline_class == kind]
    return fitting[0] if len(fitting) == 1 else None


def _is_file(path: Path) -> bool:
    """Return whether a file exists. The name may be any text, even one too long for any file system."""
    try:
        return path.is_file()
    except OSError:
        return False


def _by_file(path: Path) -> str | None:
    if path.suffix.lower() != ".safetensors" or not _is_file(path):
        return None
    try:
        with path.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            names = json.loads(stream.read(size)) if size <= _MOST_BYTES else {}
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(names, Mapping):
        return None
    return next((family for part, family in _IN_FILES if any(part in name for name in names)), None)
