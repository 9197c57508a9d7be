"""The difficulty of each image for a model: its mean loss at fixed noise levels, with the same noise for all
images of one size.
"""

from __future__ import annotations

import csv
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.formats import read_adapter
from modules.adapter.PeftAdapter import attach
from modules.dataLoader.BaseDataLoader import BaseDataLoader
from modules.dataLoader.create import create_data_loader
from modules.model.batch import ImageBatch
from modules.modelSetup import training
from modules.modelSetup.learned_words import add_words_of, noting_known_words
from modules.modelSetup.registry import create_model_setup
from modules.trainer.evaluate.grid_sheet import sorted_sheet
from modules.trainer.memory.memory_plan import parts_of_a_step
from modules.util.config.ConceptConfig import ConceptConfig, ConceptImageConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import ConfigError
from modules.util.jsonio import atomic_path, write_bytes

STREAM = "image losses"
MOST_SHOWN = 60
"""Maximum number of images on a sheet."""
SAME = "every image"
"""Key of the noise, in place of the image."""


class ImageLoss(NamedTuple):
    """One image.

    Args:
        loss: mean of ``levels``.
        levels: loss at each noise level, in order of increasing noise.
    """

    path: str
    loss: float
    levels: tuple[float, ...]


def settings_of(config: TrainConfig, images: Path | None) -> TrainConfig:
    """The settings to measure with: the images of a folder if given, or those the config trains on.

    Raises:
        ConfigError: the config trains on pairs or on images of its own, and no folder is given.
    """
    if images is None and (config.trains_pairs or config.trains_online):
        raise ConfigError("the config does not train on single images", "--images", "give a folder of images")
    changes: dict[str, object] = {"rlhf_enabled": False, "latent_caching": False, "validation": False}
    # training leaves out the masks of some images at random: their losses could not be compared with the others
    changes["unmasked_probability"] = 0.0
    if images is not None:
        concept = {
            "name": images.name,
            "path": str(images),
            "type": "STANDARD",
            "include_subdirectories": True,
        }
        changes["concepts"] = [ConceptConfig.from_dict(concept)]
    concepts = config.model_copy(update=changes).load_concepts()
    return config.model_copy(update={**changes, "concepts": [_measured_alike(one) for one in concepts]})


def _measured_alike(concept: ConceptConfig) -> ConceptConfig:
    """A concept without random changes of images and prompts, which make some images harder than others, and without
    a weight of its own, by which its losses could not be compared with those of other concepts.
    """
    image = {name: False for name in ConceptImageConfig.model_fields if name.startswith("enable_random_")}
    text = {"enable_tag_shuffling": False, "tag_dropout_enable": False, "caps_randomize_probability": 0.0}
    parts = {
        "loss_weight": 1.0,
        "image": concept.image.model_copy(update={**image, "enable_crop_jitter": False}),
        "text": concept.text.model_copy(update=text),
    }
    return concept.model_copy(update=parts)


def image_losses(
    config: TrainConfig,
    adapter: Path | None,
    levels: int,
    device: torch.device,
    tell: Callable[[int, int, str], None],
) -> list[ImageLoss]:
    """Measure the images of a config (see ``settings_of``), hardest first.

    Args:
        adapter: adapter to attach; without one, the base model is measured.
        levels: number of noise levels, equally likely in training.
        tell: called with the number of images done, their total, and the next image.

    Raises:
        UserError: the model, the adapter or the images cannot be used.
    """
    setup = create_model_setup(config.model_type)
    with tempfile.TemporaryDirectory(prefix="tastemaker-losses-") as scratch:
        config = config.model_copy(update={"cache_dir": scratch})
        model = training.load_model(setup, config)
        if adapter is not None:
            file = noting_known_words(read_adapter(adapter, model), model)
            attach(model, AdapterOptions(), file)
            add_words_of(model, [file])
        loader = create_data_loader(config, model, setup, device=device)
        try:
            loader.prepare()
            model.place(device, parts_of_a_step(config, model))
            model.set_mode("eval")
            noise, loss = training.measuring_options(config, levels)
            paths = {item.id: item.path for item in loader.units.items()}
            found: dict[str, list[float]] = defaultdict(list)
            for batch in _batches(loader, len(paths), tell):
                same = replace(batch, ids=[SAME] * len(batch.ids), visits=[0] * len(batch.ids))
                for level in range(levels):
                    drawn = setup.draw_noise(model, same, noise, config.seed, STREAM, (level,), stratum=level)
                    with torch.no_grad():
                        loss_B = setup.calculate_loss(model, batch, drawn, loss)
                    for name, value in zip(batch.ids, loss_B.cpu().double().tolist(), strict=True):
                        found[name].append(value)
        finally:
            loader.close()
    made = [ImageLoss(paths[name], sum(each) / len(each), tuple(each)) for name, each in found.items()]
    return sorted(made, key=lambda one: (-one.loss, one.path))


def _batches(
    loader: BaseDataLoader, total: int, tell: Callable[[int, int, str], None]
) -> Iterator[ImageBatch]:
    done = 0
    for batch in loader.batches():
        assert isinstance(batch, ImageBatch)
        tell(done, total, batch.ids[0])
        yield batch
        done += len(batch.ids)


def write_table(found: list[ImageLoss], target: Path, replace: bool) -> None:
    """Write losses as CSV, the hardest image first; ``replace`` as for ``atomic_path``."""
    levels = len(found[0].levels) if found else 0
    with atomic_path(target, replace) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["image", "loss", *(f"level {i + 1}" for i in range(levels))])
        for one in found:
            table.writerow([one.path, f"{one.loss:.8g}", *(f"{value:.8g}" for value in one.levels)])


def sheet_of(target: Path) -> Path:
    """The file of the sheet that belongs to a table."""
    return target.with_suffix(".png")


def write_sheet(found: list[ImageLoss], target: Path, replace: bool) -> None:
    """Draw the hardest images next to their table ``target``, the hardest first; ``replace`` as for ``atomic_path``."""
    shown = [(Path(one.path), one.loss) for one in found[:MOST_SHOWN]]
    sheet = sorted_sheet([(path, f"{loss:.4f}  {path.name}") for path, loss in shown])
    write_bytes(sheet_of(target), sheet, replace)
