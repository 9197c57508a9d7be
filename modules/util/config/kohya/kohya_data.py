"""The images of a kohya config: a dataset file, or a folder of folders named after their repeats."""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.faults import show
from modules.util.config.foreign.building import build
from modules.util.config.foreign.Fields import Fields
from modules.util.config.foreign.MaskKinds import MaskKinds
from modules.util.config.foreign.Notes import Notes
from modules.util.display import counted
from modules.util.errors import ConfigError, UserError
from modules.util.files.caption_list import Entry, is_absolute, names_below, read_entries
from modules.util.jsonio import read_bytes
from modules.util.pairs.dpo_pair_files import IMAGE_EXTENSIONS

Data = dict[str, Any]

_REPEATED = re.compile(r"(\d+)_(.+)")
_MOST_FOLDERS = 1000
_MOST_OF_A_CAPTION = 1 << 20
_IDLE = (
    *(
        "bucket_no_upscale",
        "bucket_reso_steps",
        "min_bucket_reso",
        "max_bucket_reso",
    ),
    *(
        "batch_size",
        "enable_bucket",
        "validation_seed",
        "cache_info",
        "skip_image_resolution",
        "resize_interpolation",
    ),
)
_OF_THE_RUN = ("batch_size", "enable_bucket")
_OTHER_CROPS = "not supported: images are cropped around their middle, with a little jitter"
_LOST = {
    "color_aug": "not supported: set brightness and hue in the concept",
    "face_crop_aug_range": _OTHER_CROPS,
    "token_warmup_step": "not supported: all tokens are used from the first step",
    "token_warmup_min": "not supported: all tokens are used from the first step",
    "caption_dropout_every_n_epochs": "not supported: text_encoder.dropout_probability drops captions at random",
    "keep_tokens_separator": "not supported, and it stays in the captions: set keep_tokens",
    "wildcard": "not supported",
    "enable_wildcard": "not supported",
    "secondary_separator": "not supported",
    "validation_split": "not supported: add a concept of the type VALIDATION",
    "custom_attributes": "not supported",
}


def import_datasets(
    data: Mapping[str, Any], base: Data, rates: list[float], masks: MaskKinds, notes: Notes
) -> tuple[list[ConceptConfig], Data]:
    """Import the concepts of a dataset file, and the settings that belong to the run here.

    Args:
        data: general settings, data sets and their subsets; inner ones take precedence.
        base: settings of the training file, used if the dataset file does not set them.
        rates: receives the caption dropout rate of each concept.
        masks: receives the mask source of each concept.
    """
    fields = Fields(data, notes)
    general = fields.inner("general").left()
    concepts: list[ConceptConfig] = []
    shared: Data = {}
    for one in fields.items("datasets"):
        place = one.place("subsets")
        subsets, own = one.items("subsets"), one.left()
        for name in _OF_THE_RUN:
            value = {**base, **general, **own}.get(name)
            if value is not None and shared.setdefault(name, value) != value:
                notes.add(name, value, "the first data set decides for all")
        for index, subset in enumerate(subsets):
            together = {**base, **general, **own, **subset.left()}
            where = f"{place}[{index}]"
            concepts.append(_concept(Fields(together, notes, where), rates, masks, notes, where))
    fields.note_rest()
    return concepts, {
        **{name: general[name] for name in _OF_THE_RUN if name in general},
        **shared,
    }


def import_folders(
    fields: Fields, base: Data, rates: list[float], masks: MaskKinds, notes: Notes
) -> list[ConceptConfig]:
    """Import the concepts of ``train_data_dir`` and ``reg_data_dir``, one per folder ``N_name``, or a single one
    whose captions are in the file ``in_json``.
    """
    listed = fields.text("in_json")
    if listed:
        data = {**base, "image_dir": fields.text("train_data_dir"), "metadata_file": listed}
        return [_concept(Fields(data, notes, "in_json"), rates, masks, notes, "in_json")]
    concepts = []
    for field, regular in (("train_data_dir", False), ("reg_data_dir", True)):
        name = fields.text(field)
        for folder, times, word in _repeated(Path(name), field) if name else ():
            data = {
                **base,
                "image_dir": str(folder),
                "num_repeats": times,
                "class_tokens": word,
                "is_reg": regular,
            }
            concepts.append(_concept(Fields(data, notes, field), rates, masks, notes, field))
    return concepts


def _repeated(folder: Path, field: str) -> Iterator[tuple[Path, int, str]]:
    try:
        inner = sorted(path for path in folder.iterdir() if path.is_dir())[:_MOST_FOLDERS]
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
        raise ConfigError(
            f"the folder {show(str(folder))} {reason}", field, "import it where it is"
        ) from None
    for path in inner:
        found = _REPEATED.fullmatch(path.name)
        if found:
            yield path, int(found[1]), found[2].strip()


def _concept(fields: Fields, rates: list[float], masks: MaskKinds, notes: Notes, where: str) -> ConceptConfig:
    regular = fields.flag("is_reg")
    weight = fields.number("prior_loss_weight", 1.0)
    made: Data = {
        "path": fields.text("image_dir"),
        "mask_path": masks.add(fields.flag("alpha_mask"), fields.text("conditioning_data_dir")),
        "balancing": float(fields.whole("num_repeats", 1)),
        "loss_weight": weight if regular else 1.0,
        "image": _image(fields, notes),
        "text": _text(fields),
    }
    made |= _captions(fields, made, notes)
    rates.append(fields.number("caption_dropout_rate", 0.0) or 0.0)
    for name, why in _LOST.items():
        fields.lost(name, why)
    fields.without_meaning(_IDLE)
    fields.note_rest()
    return build(ConceptConfig, made, where, notes)


def _image(fields: Fields, notes: Notes) -> Data:
    size = fields.raw("resolution")
    made: Data = {
        "enable_random_flip": fields.flag("flip_aug"),
        "enable_crop_jitter": fields.flag("random_crop"),
    }
    if size is not None:
        note_shape(size, fields.peek("enable_bucket") is True, notes)
        made |= {"enable_resolution_override": True, "resolution_override": resolution_of(size)}
    return made


def resolution_of(size: Any) -> str:
    """Convert a side, ``[width, height]`` or ``"width,height"`` to our resolution, the side of a square of
    equal area.
    """
    sides = _sides(size)
    return str(round(math.sqrt(sides[0] * sides[-1]))) if sides else str(size)


def note_shape(size: Any, keeps_shapes: bool, notes: Notes) -> None:
    """Note a resolution to which kohya crops all images, if it is not a square."""
    if len(set(_sides(size))) > 1 and not keeps_shapes:
        notes.add("resolution", size, "a square of this area: aspect_ratio_bucketing keeps the shapes of images")


def _sides(size: Any) -> list[int]:
    parts = size if isinstance(size, list) else str(size).split(",")
    return [
        int(text) for text in (str(part).strip() for part in parts) if text.isdecimal() and len(text) < 7
    ]


def _text(fields: Fields) -> Data:
    rate = fields.number("caption_tag_dropout_rate", 0.0)
    return {
        "enable_tag_shuffling": fields.flag("shuffle_caption"),
        "tag_delimiter": fields.text("caption_separator", ","),
        "keep_tags_count": fields.whole("keep_tokens", 0),
        "tag_dropout_enable": bool(rate),
        "tag_dropout_mode": "RANDOM",
        "tag_dropout_probability": rate,
        "caption_prefix": fields.text("caption_prefix"),
        "caption_suffix": fields.text("caption_suffix"),
    }


def _captions(fields: Fields, made: Data, notes: Notes) -> Data:
    """Import the place of the captions: a file for all images, or a file next to each."""
    extension = fields.text("caption_extension", ".caption")
    word = fields.text("class_tokens")
    listed = fields.text("metadata_file")
    first = not (fields.peek("enable_wildcard") or fields.peek("wildcard"))
    if listed:
        text = {**made["text"], "prompt_source": "metadata", "prompt_path": listed}
        return {"text": text, **_listed_images(listed, made["path"], fields.place("metadata_file"), first, notes)}
    if not word:
        notes.moved(
            fields.place("class_tokens"),
            "",
            "images without a caption are reported",
            "kohya trains them with an empty prompt",
        )
    extension = extension if extension.startswith(".") else f".{extension}"
    if first and made["path"]:
        several = _with_lines(Path(made["path"]), extension, notes.proceed)
        _note_lines(several, fields.place("caption_extension"), notes)
    return {"text": {**made["text"], "caption_extension": extension, "missing_caption": word}}


def _listed_images(path: str, folder: str, place: str, first: bool, notes: Notes) -> Data:
    """The folder of the images that a file of captions lists, and whether some are in folders below it.

    Args:
        first: whether only the first line of a caption is trained there.
    """
    try:
        entries = read_entries(path)
    except UserError as error:
        notes.say(place, f"{error.message}; its captions are read when training starts", changes_weights=False)
        entries = []
    several = sum(len(entry.prompts("")) > 1 for entry in entries) if first else 0
    _note_lines(several, place, notes)
    folder = folder or _common_folder(entries)
    if not folder:
        notes.say(place, "the folder of its images is unknown: set path in the concept")
    deeper = any("/" in name for _, name in names_below(entries, folder) if name)
    return {"path": folder, "include_subdirectories": deeper}


def _note_lines(several: int, place: str, notes: Notes) -> None:
    if several:
        captions = counted(several, "caption has", "captions have")
        notes.say(place, f"{captions} several lines: alternatives here, but kohya uses only the first")


def _with_lines(folder: Path, extension: str, proceed: Callable[[], object]) -> int:
    """Number of images in a folder whose captions next to them have several lines; 0 if the folder cannot be read,
    which the check before training reports.

    Args:
        proceed: called before each caption is read; may raise to end it.
    """
    try:
        images = [one for one in folder.iterdir() if one.suffix.lower() in IMAGE_EXTENSIONS]
    except (OSError, ValueError):  # the second for a path that no folder can have
        return 0
    several = 0
    for one in images:
        proceed()
        several += _has_lines(folder / f"{one.stem}{extension}")
    return several


def _has_lines(file: Path) -> bool:
    """Return whether a caption file has several lines with text; false if it cannot be read, which the check before
    training reports.
    """
    try:
        text = read_bytes(file, "caption", _MOST_OF_A_CAPTION).decode("utf-8-sig", "replace")
    except UserError:
        return False
    return sum(map(bool, map(str.strip, text.splitlines()))) > 1


def _common_folder(entries: list[Entry]) -> str:
    """The folder that holds all images with full paths; empty if they have none in common."""
    folders = [posixpath.dirname(entry.name) for entry in entries if is_absolute(entry.name)]
    try:
        return posixpath.commonpath(folders) if folders else ""
    except ValueError:  # full paths of two operating systems
        return ""
