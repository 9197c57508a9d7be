"""Training settings of a round: a preset for family and card, and values derived from the data."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from modules.project.ProjectFile import ProjectFile
from modules.spec.registry import FAMILIES
from modules.util.config.load import load_layered
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import ConfigError, UserError
from modules.util.program_files import PRESETS, ROOT

STEPS_FOR_100_PAIRS = 150
FEWEST_PAIRS = 25
FEWEST_EPOCHS, MOST_EPOCHS = 2, 60
SMALL_CARD = 12
EDITS = "edit"
"""Word in names of presets that leave memory for source images."""
OWN_IMAGES = "nft"
"""Substring of preset names for training on the model's own images: any sampler, one pass per image."""


def find_preset(file: ProjectFile, taste: bool = False) -> Path:
    """The preset to start from: the named one, else one for this base model, else one for the family.

    A preset with a memory size in its name is for cards up to that size; the closest size is used.

    Args:
        taste: whether to train on the model's own images, judged by a learned taste, rather than on pairs.

    Raises:
        UserError: there is no such preset.
    """
    if file.preset and not taste:
        path = PRESETS / file.preset
        if not path.is_file():
            raise ConfigError(f"there is no preset {file.preset!r}", "preset", "check the name")
        return path
    fitting: list[tuple[int, int, str, Path]] = []
    for path in sorted(PRESETS.glob("**/*.json")):
        config = _of_own_images(path) if taste else _of_pairs(path)
        if config is None or config.model_type.value != file.model.type:
            continue
        same_base = _same_base(config.base_model_name, file.model.base)
        size = _card_of(path)
        for_edits = EDITS in path.stem.lstrip("#").split()
        # presets for a learned taste are for both
        if not config.model_type.spec.edits_only and for_edits != (file.edits and not taste):
            continue
        if (path.parent == PRESETS and not same_base) or (size is not None and file.card > size):
            continue
        fitting.append((-2 * same_base - (size is not None), size or 0, path.name, path))
    if not fitting:
        raise _no_preset(file, taste)
    return min(fitting)[3]


def _no_preset(file: ProjectFile, taste: bool) -> UserError:
    hint = "choose one of training_presets"
    if taste:
        found = (_of_own_images(path) for path in PRESETS.glob("*/*.json"))
        known = sorted({config.model_type.label for config in found if config is not None})
        hint = f"use --method pairs; there are presets for a learned taste with {', '.join(known)}"
    return UserError(
        f"there is no preset for {'a learned taste' if taste else 'pairs'} with {FAMILIES[file.model.type].label}",
        "--method" if taste else "--preset",
        hint,
    )


def _of_pairs(path: Path) -> TrainConfig | None:
    """Load a preset that learns from pairs; ``None`` for other presets and files."""
    config = _read(path)
    return config if config is not None and config.trains_pairs else None


def _of_own_images(path: Path) -> TrainConfig | None:
    """Load a preset that learns from the model's own images without likelihoods of denoising steps; else ``None``."""
    if OWN_IMAGES not in path.stem.lstrip("#").lower().split():
        return None
    return _read(path)


def _read(path: Path) -> TrainConfig | None:
    """Load a preset that is only looked at. A round looks at all presets several times."""
    try:
        state = path.stat()
    except OSError:
        return None
    try:
        return _read_once(path, state.st_mtime_ns, state.st_size)
    except UserError:
        return None


@lru_cache(maxsize=1024)
def _read_once(path: Path, _changed: int, _size: int) -> TrainConfig:
    """Errors are not remembered: what a file needs may be there next time."""
    config: TrainConfig = load_layered(path, None, check=False)
    return config


def _same_base(preset: str, base: str) -> bool:
    return preset == base or (bool(preset) and (ROOT / preset).resolve() == Path(base).resolve())


def _card_of(path: Path) -> int | None:
    words = path.stem.split()
    return int(words[-2]) if len(words) > 1 and words[-1] == "GB" and words[-2].isdecimal() else None


def round_config(
    file: ProjectFile, names: dict[str, Any], pairs: int, overrides: Sequence[str]
) -> TrainConfig:
    """The config of a round. Its files are not checked.

    Args:
        names: settings that name files.
        pairs: number of training pairs.
        overrides: ``name=value`` texts of the person, which take precedence.
    """
    follows = _from_data(file, names, pairs, overrides)
    return load_layered(find_preset(file), None, [*_texts(names), *_texts(follows), *overrides], check=False)


def chosen_from_data(
    file: ProjectFile, names: dict[str, Any], pairs: int, overrides: Sequence[str]
) -> dict[str, Any]:
    """The settings of ``round_config`` that follow from the data, without those that the person set."""
    set_by_hand = _set_by_hand(overrides)
    follows = _from_data(file, names, pairs, overrides)
    return {name: value for name, value in follows.items() if name not in set_by_hand}


TASTE_SHARE, AGAIN_SHARE = 0.75, 0.25
"""Training on a taste uses these shares of the preset's epochs, the second if the initial adapter already
follows a taste of the project. With all epochs, the demo model moved far and began to forget its prompts
(``docs/few-picks.md``).
"""


def taste_config(
    file: ProjectFile, names: dict[str, Any], tasks: int, overrides: Sequence[str], again: bool = False
) -> TrainConfig:
    """The config of a round that learns from the model's own images, judged by a learned taste.

    Args:
        names: settings that name files, the learned taste among them.
        tasks: number of prompts that images are made of; of edits, each with its source.
        overrides: ``name=value`` texts of the person, which take precedence.
        again: whether the initial adapter was itself trained on a taste of this project.
    """
    preset = find_preset(file, taste=True)
    begin: TrainConfig = load_layered(preset, None, [*_texts(names), *overrides], check=False)
    share = AGAIN_SHARE if again else TASTE_SHARE
    follows = {**_sizes(file), "epochs": max(1, round(begin.epochs * share))}
    if file.image.cfg is not None:
        follows["rlhf_rollout_cfg_scale"] = file.image.cfg
    if "batch_size" not in _set_by_hand(overrides) and _needs_batches_of_one(file, begin):
        follows |= {
            "batch_size": 1,
            "gradient_accumulation_steps": begin.batch_size * begin.gradient_accumulation_steps,
        }
    fewer = _prompts_of_an_epoch(begin, tasks, follows.get("batch_size", begin.batch_size))
    if "batch_size" in _set_by_hand(overrides):
        # accumulation would make up for a smaller batch, but the batch stays as it was set
        fewer.pop("gradient_accumulation_steps", None)
    follows |= fewer
    return load_layered(preset, None, [*_texts(names), *_texts(follows), *overrides], check=False)


def _prompts_of_an_epoch(begin: TrainConfig, tasks: int, batch: int) -> dict[str, Any]:
    """Fewer prompts per epoch if there are not as many as the preset uses. Their images still fill whole batches."""
    if tasks >= begin.rlhf_prompts_per_epoch:
        return {}
    shared = math.gcd(begin.rlhf_group_size, batch)
    unit = batch // shared
    if tasks >= unit:
        return {"rlhf_prompts_per_epoch": tasks // unit * unit}
    return {
        "rlhf_prompts_per_epoch": tasks,
        "batch_size": shared,
        "gradient_accumulation_steps": begin.gradient_accumulation_steps * unit,
    }


def again_config(path: Path, names: dict[str, Any], overrides: Sequence[str]) -> TrainConfig:
    """The config of a round that was already started, with the current locations of its files."""
    return load_layered(None, path, [*_texts(names), *overrides], check=False)


def _from_data(
    file: ProjectFile, names: dict[str, Any], pairs: int, overrides: Sequence[str]
) -> dict[str, Any]:
    """Values derived from the number of pairs, the image size and the card."""
    begin: TrainConfig = load_layered(find_preset(file), None, [*_texts(names), *overrides], check=False)
    set_by_hand = _set_by_hand(overrides)
    made = _sizes(file)
    batch, accumulation = begin.batch_size, begin.gradient_accumulation_steps
    group = batch * accumulation
    if "batch_size" not in set_by_hand:
        if _needs_batches_of_one(file, begin):
            batch = 1
        batch = min(batch, pairs)
    if batch != begin.batch_size:
        made["batch_size"] = batch
        if "gradient_accumulation_steps" not in set_by_hand:
            made["gradient_accumulation_steps"] = accumulation = max(1, min(group, pairs) // batch)
        group = batch * accumulation
    steps = STEPS_FOR_100_PAIRS * math.sqrt(max(pairs, FEWEST_PAIRS) / 100.0)
    made["epochs"] = min(MOST_EPOCHS, max(FEWEST_EPOCHS, round(steps * group / max(1, pairs))))
    return made


def _needs_batches_of_one(file: ProjectFile, begin: TrainConfig) -> bool:
    return file.card <= SMALL_CARD and begin.train_device != "cpu" and begin.batch_size > 1


def _set_by_hand(overrides: Sequence[str]) -> set[str]:
    return {text.partition("=")[0].strip() for text in overrides}


def _sizes(file: ProjectFile) -> dict[str, Any]:
    """The sizes of images and their sources in training, which are those of the project's images."""
    source = file.image.source_resolution
    return {"resolution": _resolution(file)} | ({} if source is None else {"source_resolution": source})


def _resolution(file: ProjectFile) -> str:
    image, usual = file.image, FAMILIES[file.model.type].default_resolution
    side = math.sqrt((image.width or usual) * (image.height or usual))
    return str(max(64, round(side / 64) * 64))


def _texts(values: dict[str, Any]) -> list[str]:
    return [f"{name}={json.dumps(value)}" for name, value in values.items()]
