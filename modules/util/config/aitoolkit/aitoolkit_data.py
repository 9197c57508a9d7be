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

_OF_A_SAMPLE = {
    "width": "width", "height": "height", "neg": "negative_prompt", "seed": "seed", "guidance_scale": "cfg_scale",
    "sample_steps": "diffusion_steps", "ctrl_img": "source_path",
}  # fmt: skip
"""Settings of a single sample, and their names here."""
_FLAGS = {
    "n": "neg", "w": "width", "h": "height", "d": "seed", "l": "guidance_scale", "cfg": "guidance_scale",
    "s": "sample_steps", "steps": "sample_steps",
}  # fmt: skip
"""Flags in a prompt, and the settings of a sample that they stand for."""


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
        notes.add(fields.place("num_frames"), frames, "not supported: only images are trained on")
    for name, why in _LOST.items():
        fields.lost(name, why)
    fields.without_meaning(_IDLE)
    fields.note_rest()
    return build(ConceptConfig, made, place, notes)


def import_samples(fields: Fields, trigger: str, notes: Notes) -> list[SampleConfig]:
    """Import the samples with their shared size, steps, guidance and seed.

    A sample may have its own, as settings or as flags in its prompt (``a fox --w 768 --n blurry``).
    """
    shared: Data = {
        "width": fields.whole("width", 512),
        "height": fields.whole("height", 512),
        "diffusion_steps": fields.whole("sample_steps", 20),
        "cfg_scale": fields.number("guidance_scale", 7.0),
        "negative_prompt": fields.text("neg"),
    }
    seed, walk = fields.whole("seed", 0), fields.flag("walk_seed")
    made = []
    listed = fields.items("samples")
    simple = fields.raw("prompts")
    if not listed and isinstance(simple, list):
        places = [f"{fields.place('prompts')}[{index}]" for index in range(len(simple))]
        listed = [Fields({"prompt": text}, notes, place) for place, text in zip(places, simple, strict=True)]
    for index, one in enumerate(listed):
        own = {ours: one.peek(name) for name, ours in _OF_A_SAMPLE.items() if name in one}
        text, flags = _without_flags(one.text("prompt"), one, notes)
        whole = {**shared, "seed": seed + (index if walk else 0), **own, **flags}
        whole["prompt"] = text.replace("[trigger]", trigger)
        one.without_meaning((*_OF_A_SAMPLE, "fps", "num_frames", "ctrl_idx"))
        why = "not supported: the adapter has full strength"
        one.lost("network_multiplier", why, unless=(None, 1), changes_weights=False)
        one.note_rest()
        made.append(build(SampleConfig, whole, f"sample.prompts[{index}]", notes))
    return made


def _without_flags(prompt: str, sample: Fields, notes: Notes) -> tuple[str, Data]:
    """A prompt without its flags, and the settings that these stand for."""
    text, *rest = prompt.split("--")
    made: Data = {}
    for one in rest:
        flag, _, value = one.partition(" ")
        value = value.strip()
        ours = _OF_A_SAMPLE.get(_FLAGS.get(flag.strip(), flag.strip()))
        if ours is None:
            notes.add(f"{sample.place('prompt')} --{flag.strip()}", value, "left out", changes_weights=False)
        else:
            made[ours] = value
    return text.strip(), made
