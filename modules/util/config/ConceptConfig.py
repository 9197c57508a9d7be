from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from pydantic import field_validator

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.config_list import load_list
from modules.util.config.resolution import parse_resolutions
from modules.util.config.setting import Float, PathText, setting
from modules.util.enum.choices import (
    BalancingStrategy,
    PromptSource,
    TagDropoutMode,
    TagDropoutSpecialTagsMode,
)
from modules.util.enum.ConceptType import ConceptType

_EXTENSION = re.compile(r"(\.[A-Za-z0-9_-]+)+")
CAPS_MODES = ("capslock", "title", "first", "random")
_TAG_FILES = (".txt", ".csv")


def names_tag_file(text: str) -> bool:
    """Return whether a setting of special tags names a file with the tags instead of listing them."""
    return text.lower().endswith(_TAG_FILES)

_strength = partial(setting, 0.0, within=(-1, 1))
_dropout = partial(setting, visible=".tag_dropout_enable")
_capitals = partial(setting, visible=".caps_randomize_enable")


class ConceptImageConfig(BaseConfig):
    """Augmentation of the images of a concept. Everything is off for preference pairs."""

    enable_crop_jitter: bool = setting(
        True,
        title="Crop jitter",
        tip="In each variation, crop the image at a random place. Off: crop the middle.",
    )
    enable_random_flip: bool = setting(False, title="Random flip", tip="Mirror half of the variations.")
    enable_fixed_flip: bool = setting(False, title="Fixed flip", tip="Mirror every image.")
    enable_random_rotate: bool = setting(
        False,
        title="Random rotation",
        tip="Rotate by a random angle, up to the maximum angle in either direction.",
    )
    enable_fixed_rotate: bool = setting(
        False, title="Fixed rotation", tip="Rotate every image by the maximum angle."
    )
    random_rotate_max_angle: Float = setting(
        0.0,
        within=(-180, 180),
        title="Maximum angle",
        tip="Maximum angle in degrees, counter-clockwise. Below 0: clockwise.",
    )
    enable_random_brightness: bool = setting(
        False,
        title="Random brightness",
        tip="Change the brightness by a random amount, up to the strength, upwards or downwards.",
    )
    enable_fixed_brightness: bool = setting(
        False, title="Fixed brightness", tip="Change the brightness of every image by the strength."
    )
    random_brightness_max_strength: Float = _strength(
        title="Brightness strength", tip="0: no change. 1: twice as bright. -1: black."
    )
    enable_random_contrast: bool = setting(
        False,
        title="Random contrast",
        tip="Change the contrast by a random amount, up to the strength, upwards or downwards.",
    )
    enable_fixed_contrast: bool = setting(
        False, title="Fixed contrast", tip="Change the contrast of every image by the strength."
    )
    random_contrast_max_strength: Float = _strength(
        title="Contrast strength", tip="0: no change. 1: twice the contrast. -1: no contrast, all grey."
    )
    enable_random_saturation: bool = setting(
        False,
        title="Random saturation",
        tip="Change the saturation by a random amount, up to the strength, upwards or downwards.",
    )
    enable_fixed_saturation: bool = setting(
        False, title="Fixed saturation", tip="Change the saturation of every image by the strength."
    )
    random_saturation_max_strength: Float = _strength(
        title="Saturation strength", tip="0: no change. 1: twice the saturation. -1: no colour."
    )
    enable_random_hue: bool = setting(
        False,
        title="Random hue",
        tip="Shift the hue by a random amount, up to the strength, in either direction.",
    )
    enable_fixed_hue: bool = setting(
        False, title="Fixed hue", tip="Shift the hue of every image by the strength."
    )
    random_hue_max_strength: Float = _strength(
        title="Hue strength", tip="0: no change. 1 or -1: half a turn of the colour wheel."
    )
    enable_random_circular_mask_shrink: bool = setting(
        False,
        title="Random mask disc",
        tip=(
            "In masked training, keep only a disc of the mask in each variation, around a random white point. "
            "Its radius is 0.2 to 1 times the distance to the farthest white point."
        ),
    )
    enable_random_mask_rotate_crop: bool = setting(
        False,
        title="Random crop to mask",
        tip=(
            "In masked training, rotate each variation by up to 20 degrees and crop it to the white area of "
            "the mask, with a margin of 10 to 30 % of that area's size on each side. The crop has the "
            "aspect ratio in which the image is trained and is never smaller than the concept's smallest "
            "resolution."
        ),
    )
    enable_resolution_override: bool = setting(
        False, title="Own resolution", tip="Train this concept at its own resolution."
    )
    resolution_override: str = setting(
        "512",
        visible=".enable_resolution_override",
        title="Resolution",
        tip="Like the run's resolution, but only for this concept.",
    )

    @field_validator("resolution_override")
    @classmethod
    def _readable_resolution(cls, value: str) -> str:
        parse_resolutions(value)
        return value


class ConceptTextConfig(BaseConfig):
    """The prompts of a concept: their source, and how they are varied (not at all for preference pairs)."""

    prompt_source: PromptSource = setting(
        PromptSource.SAMPLE,
        tip=(
            "sample: a text file next to each image. concept: one text file for all images. filename: the image's "
            "name. metadata: one JSON file with a caption for each image, as kohya's scripts write it."
        ),
    )
    caption_extension: str = setting(
        ".txt",
        visible=".prompt_source=sample",
        tip="Extension of the text files next to the images, such as .txt or .caption.",
    )
    missing_caption: str = setting(
        "",
        visible=".prompt_source=sample|metadata",
        title="Missing captions",
        tip=(
            "The prompt of images without a caption. Empty: with text files, training does not start until every "
            "image has one. With a JSON file, images that are not listed are left out, with a warning."
        ),
    )
    prompt_path: PathText = setting(
        "",
        visible=".prompt_source=concept|metadata",
        widget="file",
        title="Prompt file",
        tip=(
            "concept: a text file with one prompt per line. A random line is used for each image and variation. "
            'metadata: a JSON file such as {"dog/1": {"caption": "a dog", "tags": "grass, ball"}}, or a .jsonl file '
            'with lines such as {"image_path": "dog/1.png", "caption": "a dog"}. Names are relative to the '
            "concept's folder, with or without extension, or full paths. In the prompt, the tags come after the "
            "caption, separated by the tag delimiter."
        ),
    )
    trigger_word: str = setting(
        "",
        tip=(
            "Replaces [trigger] in prompts, and is added before prompts that have neither [trigger] nor a word that is "
            "or begins with it."
        ),
    )
    caption_prefix: str = setting("", title="Prefix", tip="Added before each prompt, separated by a space.")
    caption_suffix: str = setting("", title="Suffix", tip="Added after each prompt, separated by a space.")
    enable_tag_shuffling: bool = setting(
        False, title="Shuffle tags", tip="Shuffle the tags of a prompt in each variation."
    )
    tag_delimiter: str = setting(
        ",", min_length=1, tip="The text that separates the tags of a prompt."
    )
    keep_tags_count: int = setting(
        1,
        within=(0, 10000),
        title="Tags to keep",
        tip="Number of tags at the start that are not moved, dropped or given random capitals.",
    )
    tag_dropout_enable: bool = setting(False, title="Drop tags", tip="Drop tags at random.")
    tag_dropout_mode: TagDropoutMode = _dropout(
        TagDropoutMode.FULL,
        title="Dropout mode",
        tip=(
            "FULL drops all tags or none. RANDOM drops each tag independently. RANDOM_WEIGHTED "
            "drops later tags more often."
        ),
    )
    tag_dropout_probability: Float = _dropout(
        0.0,
        within=(0, 1),
        title="Dropout probability",
        tip="Probability that a tag (FULL: all tags) is dropped.",
    )
    tag_dropout_special_tags_mode: TagDropoutSpecialTagsMode = _dropout(
        TagDropoutSpecialTagsMode.NONE,
        title="Special tags",
        tip="WHITELIST: special tags are never dropped. BLACKLIST: only special tags are dropped.",
    )
    tag_dropout_special_tags: str = setting(
        "",
        visible=".tag_dropout_enable,!.tag_dropout_special_tags_mode=NONE",
        widget="file",
        title="List of special tags",
        tip="The special tags, separated by the delimiter, or a .txt or .csv file with one tag per line.",
    )
    tag_dropout_special_tags_regex: bool = setting(
        False,
        visible=".tag_dropout_enable,!.tag_dropout_special_tags_mode=NONE",
        title="Special tags as regex",
        tip="Read the special tags as regular expressions.",
    )
    caps_randomize_enable: bool = setting(
        False, title="Random capitals", tip="Change the capitalisation of tags at random."
    )
    caps_randomize_mode: str = _capitals(
        "capslock, title, first, random",
        title="Capitals",
        tip="Styles to choose from, separated by commas: capslock, title, first, random.",
    )
    caps_randomize_probability: Float = _capitals(
        0.0,
        within=(0, 1),
        title="Capitals probability",
        tip="Probability that the capitals of a tag are changed.",
    )
    caps_randomize_lowercase: bool = _capitals(
        False,
        title="Lower case first",
        tip="Change everything to lower case before changing capitals.",
    )

    @field_validator("caption_extension")
    @classmethod
    def _an_extension(cls, value: str) -> str:
        if not _EXTENSION.fullmatch(value):
            raise ValueError(f"must be a dot with letters or digits, such as .caption, not {value!r}")
        return value

    @field_validator("caps_randomize_mode")
    @classmethod
    def _known_caps(cls, value: str) -> str:
        words = [word.strip() for word in value.split(",")]
        if not set(words) <= set(CAPS_MODES):
            raise ValueError(f"must be some of {', '.join(CAPS_MODES)} separated by commas, not {value!r}")
        return value


class ConceptConfig(BaseConfig):
    """A folder of images, its purpose and how it is used."""

    VERSION: ClassVar[int] = 1
    WHAT: ClassVar[str] = "concept"

    name: str = setting("", tip="Name in lists and messages. Empty: the folder's name.")
    path: PathText = setting("", widget="folder", tip="The folder with the images.")
    source_path: PathText = setting(
        "",
        widget="folder",
        title="Source images",
        tip=(
            "For models that edit images: the folder with the images before the edit, each named "
            "like its result. The caption is the instruction. A second and a third source have .2 and .3 before "
            "the extension of their names. For pairs, set this only on the chosen "
            "concept."
        ),
    )
    mask_path: PathText = setting(
        "",
        widget="folder",
        title="Mask folder",
        tip="Masks of the images, with the same names and subfolders. Used if the mask source is FOLDER.",
    )
    type: ConceptType = setting(
        ConceptType.STANDARD,
        tip=(
            "What the images are for. The DPO types are the two sides of preference pairs; chosen and "
            "rejected concepts belong together in the order of the list."
        ),
    )
    enabled: bool = setting(True, tip="Use this concept.")
    include_subdirectories: bool = setting(
        False, title="Include subfolders", tip="Also use the images in subfolders."
    )
    seed: int = setting(
        0,
        within=(-(2**53) + 1, 2**53 - 1),
        tip="Seed of the variations and of the choice of images. Another seed gives other variations.",
    )
    image_variations: int = setting(
        1,
        within=(1, 10000),
        tip="Number of differently augmented versions of each image. They are used in turn.",
    )
    text_variations: int = setting(
        1,
        within=(1, 10000),
        tip="Number of differently augmented versions of each prompt. They are used in turn.",
    )
    balancing: Float = setting(
        1.0,
        within=(0, 1_000_000),
        tip=(
            "Number of repeats of the concept in each epoch (2.5 uses every image twice and half of the images "
            "once more), or number of images in an epoch."
        ),
    )
    balancing_strategy: BalancingStrategy = setting(
        BalancingStrategy.REPEATS,
        title="Balancing counts",
        tip="REPEATS: Balancing is the number of repeats. SAMPLES: Balancing is the number of images in an epoch.",
    )
    loss_weight: Float = setting(
        1.0,
        within=(0, 1_000_000),
        tip=(
            "Factor on the supervised loss of this concept's images. 1: unchanged. Preference scores are never "
            "weighted."
        ),
    )
    image: ConceptImageConfig = setting(
        factory=ConceptImageConfig, title="Image augmentation", tip="How the images are augmented."
    )
    text: ConceptTextConfig = setting(
        factory=ConceptTextConfig, tip="Source of the prompts, and how they are varied."
    )

    @classmethod
    def load_all(
        cls, source: str | os.PathLike[str] | Sequence[Any], base_dir: str | os.PathLike[str] | None = None
    ) -> list[ConceptConfig]:
        """Read a list of concepts.

        Args:
            source: a JSON file, or the list itself (dicts or concepts).
            base_dir: folder that file names are relative to; defaults to the current folder.

        Raises:
            UserError: the file cannot be read; ConfigError, UserErrors: every fault in every concept.
        """
        return load_list(cls, source, base_dir, "concepts", "concept list")
