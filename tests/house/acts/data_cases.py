"""Cases of the data: images, captions and what is done to them."""

from __future__ import annotations

from typing import Any

from tests.house.acts import outcomes as see
from tests.house.acts.bases import concept, concepts, edits, image_folder, inpainted, masked, pictures
from tests.house.acts.case import Case, Values
from tests.house.acts.run_cases import lists

DATA = [
    Case(
        "concept_file_name", pictures, lambda folder: str(folder / "other.json"), see.images,
        {"concepts": None, "concept_file_name": lambda folder: str(folder / "one.json")}, lists,
    ),
    Case("concepts", pictures, lambda folder: [concept(side="rejected")], see.images),
    Case("resolution", pictures, "64", see.images),
    Case("source_resolution", edits, 64, see.weights),
    Case("aspect_ratio_bucketing", pictures, False, see.images),
    Case("latent_caching", pictures, False, see.files),
    Case("cache_batch_size", pictures, 1, see.read_ahead, {"dataloader_threads": 1}),
    Case("dataloader_threads", pictures, 2, see.reading),
    Case("masked_training", masked, False, see.weights),
    Case("mask_source", masked, "FOLDER", see.weights),
    Case("unmasked_weight", masked, 0.9, see.weights),
    Case("unmasked_probability", masked, 1.0, see.weights),
    Case("normalize_masked_area_loss", masked, True, see.weights),
    Case("masked_prior_preservation_weight", masked, 1.0, see.weights),
    Case("custom_conditioning_image", inpainted, True, see.weights),
]  # fmt: skip


def own(path: str, value: Any, **given: Any) -> Case:
    """A case of a setting of a concept."""
    laid = {f"concepts.0.{name.replace('__', '.')}": one for name, one in given.items()}
    return Case(f"concepts.0.{path}", concepts, value, see.images, laid)


def either(name: str, strength: float) -> list[Case]:
    """Cases of a change to pixels that is random, the same for all, and of a strength."""
    most = f"random_{name}_max_{'angle' if name == 'rotate' else 'strength'}"
    on: Values = {f"image__{most}": strength}
    return [
        own(f"image.enable_random_{name}", True, **on),
        own(f"image.enable_fixed_{name}", True, **on),
        own(f"image.{most}", strength, **{f"image__enable_fixed_{name}": True}),
    ]


SPECIAL = {
    "text__tag_dropout_special_tags_mode": "WHITELIST",
    "text__tag_dropout_special_tags": "small dog",
    "text__tag_dropout_probability": 1.0,
}
CAPS = {"text__caps_randomize_enable": True, "text__caps_randomize_probability": 0.5}
CONCEPT = [
    own("name", "mine"),
    Case(
        "concepts.0.mask_path", masked, lambda folder: str(image_folder() / "other-masks"), see.weights,
        {"mask_source": "FOLDER"},
    ),
    Case("concepts.0.image.enable_random_circular_mask_shrink", masked, True, see.weights),
    Case("concepts.0.image.enable_random_mask_rotate_crop", masked, True, see.weights),
    own("path", lambda folder: str(image_folder() / "rejected")),
    own("type", "PRIOR_PREDICTION"),
    Case(
        "concepts.1.enabled", concepts, False, see.images,
        {"concepts": lambda folder: [concept(), concept(side="rejected")]},
    ),
    own("include_subdirectories", True),
    Case(
        "concepts.0.source_path", edits, lambda folder: str(image_folder() / "before-other"), see.weights
    ),
    own("seed", 4),
    own("image_variations", 1, image__enable_random_flip=True),
    own("text_variations", 1),
    own("balancing", 2.0),
    own("balancing_strategy", "SAMPLES"),
    own("loss_weight", 0.5),
    own("image.enable_crop_jitter", False, include_subdirectories=True),
    own("image.enable_random_flip", True),
    own("image.enable_fixed_flip", True),
    *either("rotate", 30.0),
    *either("brightness", 0.5),
    *either("contrast", 0.5),
    *either("saturation", 0.5),
    *either("hue", 0.5),
    own("image.enable_resolution_override", True, image__resolution_override="64"),
    own("image.resolution_override", "64", image__enable_resolution_override=True, image__resolution_override="32"),
    own("text.prompt_source", "filename"),
    own("text.prompt_path", lambda folder: str(image_folder() / "other.txt"),
        text__prompt_source="concept", text__prompt_path=str(image_folder() / "lines.txt")),
    own("text.caption_extension", ".caption", text__missing_caption="nothing"),
    own("text.missing_caption", "nothing", text__caption_extension=".caption", text__missing_caption="none"),
    own("text.trigger_word", "zxc"),
    own("text.caption_prefix", "photo of"),
    own("text.caption_suffix", "at night"),
    own("text.enable_tag_shuffling", True, text__tag_dropout_enable=False),
    own("text.tag_delimiter", " "),
    own("text.keep_tags_count", 0, text__tag_dropout_probability=1.0),
    own("text.tag_dropout_enable", False),
    own("text.tag_dropout_mode", "RANDOM_WEIGHTED"),
    own("text.tag_dropout_probability", 1.0),
    own("text.tag_dropout_special_tags_mode", "BLACKLIST", **SPECIAL),
    own("text.tag_dropout_special_tags", "blue square", **SPECIAL),
    own("text.tag_dropout_special_tags_regex", True, **{**SPECIAL, "text__tag_dropout_special_tags": "[a-z]+ [a-z]+"}),
    own("text.caps_randomize_enable", True, **{**CAPS, "text__caps_randomize_enable": False}),
    own("text.caps_randomize_mode", "capslock", **CAPS),
    own("text.caps_randomize_probability", 1.0, **CAPS),
    own("text.caps_randomize_lowercase", True, **CAPS),
]  # fmt: skip
CASES = [*DATA, *CONCEPT]
