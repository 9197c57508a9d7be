"""Import of data sets and samples from ai-toolkit configs."""

from __future__ import annotations

from typing import Any

from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.foreign.building import build
from modules.util.config.foreign.Fields import Fields
from modules.util.config.foreign.MaskKinds import MaskKinds
from modules.util.config.foreign.Notes import Notes
from modules.util.config.SampleConfig import SampleConfig

Data = dict[str, Any]

_LOST = {
    "invert_mask": "not supported",
    "control_path": "set the concept's source_path to this folder, in a family that edits images",
    "control_path_1": "name these images NAME.2 in the folder of source_path",
    "inpaint_path": "not supported",
    "clip_image_path": "not supported",
    "unconditional_path": "not supported",
    "flip_y": "not supported: set a rotation in the concept",
    "augments": "set them in the concept",
    "random_crop": "not supported: images are cropped around their middle, with a little jitter",
    "random_scale": "not supported",
    "standardize_images": "not supported",
    "token_dropout_rate": "not supported",
    "shrink_video_to_frames": "not supported",
}
_IDLE = (
    *(
        "type",
        "cache_latents",
        "cache_latents_to_disk",
        "cache_text_embeddings",
        "buckets",
        "bucket_tolerance",
    ),
    *("num_workers", "prefetch_factor", "enable_ar_bucket", "dataset_path", "fps"),
)


def import_dataset(
    fields: Fields, trigger: str, rates: list[float], masks: MaskKinds, notes: Notes
) -> ConceptConfig:
    """Import a concept. In captions, ``[trigger]`` is replaced by the trigger word, which is prepended if missing."""
    place = fields.place("folder_path").rpartition(".")[0]
    extension = fields.text("caption_ext", "txt")
    sizes = fields.raw("resolution")
    repeats = fields.whole("num_repeats", 1)
    text: Data = {
        "caption_extension": f".{extension.lstrip('.')}",
        "missing_caption": fields.text("default_caption"),
        "enable_tag_shuffling": fields.flag("shuffle_tokens"),
        "keep_tags_count": fields.whole("keep_tokens", 0),
        "trigger_word": trigger,
    }
    made: Data = {
        "path": fields.text("folder_path") or fields.text("dataset_path"),
        "mask_path": masks.add(fields.flag("alpha_mask"), fields.text("mask_path")),
        "balancing": float(repeats),
        "loss_weight": fields.number("loss_multiplier", 1.0),
        "image": {"enable_random_flip": fields.flag("flip_x"), "enable_crop_jitter": False},
        "text": text,
        "include_subdirectories": True,
    }
    if sizes is not None:
        listed = sizes if isinstance(sizes, list) else [sizes]
        made["image"] |= {
            "enable_resolution_override": True,
            "resolution_override": ", ".join(map(str, listed)),
        }
    fields.lost("is_reg", "not supported: set the weight of the concept's loss")
    rates.append(fields.number("caption_dropout_rate", 0.0) or 0.0)
    weight = fields.number("network_weight", 1.0)
    if weight != 1:
        notes.add(fields.place("network_weight"), weight, "not supported: the adapter has full strength")
    frames = fields.whole("num_frames", 1)
    if frames > 1:
        notes.add(fields.place("num_frames"), frames, "not supported: images alone are trained on")
    for name, why in _LOST.items():
        fields.lost(name, why)
    fields.without_meaning(_IDLE)
    fields.note_rest()
    return build(ConceptConfig, made, place, notes)


def import_samples(fields: Fields, trigger: str, notes: Notes) -> list[SampleConfig]:
    """Import the sample prompts with their shared size, steps, guidance and seed."""
    shared: Data = {
        "width": fields.whole("width", 1024),
        "height": fields.whole("height", 1024),
        "seed": fields.whole("seed", 42),
        "diffusion_steps": fields.whole("sample_steps", 20),
        "cfg_scale": fields.number("guidance_scale", 7.0),
        "negative_prompt": fields.text("neg"),
    }
    walk = fields.flag("walk_seed")
    made = []
    listed = [*_texts(fields.raw("prompts")), *_prompts(fields.raw("samples"))]
    for index, prompt in enumerate(listed):
        own = {
            "prompt": prompt.replace("[trigger]", trigger),
            "seed": shared["seed"] + (index if walk else 0),
        }
        made.append(build(SampleConfig, {**shared, **own}, f"sample.prompts[{index}]", notes))
    return made


def _texts(given: Any) -> list[str]:
    return [text for text in given if isinstance(text, str)] if isinstance(given, list) else []


def _prompts(given: Any) -> list[str]:
    items = given if isinstance(given, list) else []
    return _texts([item.get("prompt") for item in items if isinstance(item, dict)])
