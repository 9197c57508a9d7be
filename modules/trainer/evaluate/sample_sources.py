"""Source images of samples of editing models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from modules.pipeline.nodes.images import load_rgb, read_size
from modules.pipeline.nodes.sources import source_size
from modules.pipeline.nodes.transforms import Transform, apply_transform
from modules.spec.FamilySpec import FamilySpec
from modules.util.config.SampleConfig import FilledSample, SampleConfig
from modules.util.errors import ConfigError, DataError
from modules.util.pairs.source_files import further_sources

FIELD = "samples.source_path"


def check_sample_sources(spec: FamilySpec, samples: Sequence[SampleConfig]) -> None:
    """Check the headers of the source images of samples.

    Raises:
        ConfigError: a sample has more sources than its family supports, or one is unreadable.
    """
    for path in dict.fromkeys(sample.source_path for sample in samples if sample.enabled):
        if not path:
            continue
        if not spec.sources:
            raise ConfigError(
                f"{path}: {spec.label} makes images of prompts alone",
                FIELD,
                "remove the source image, or choose a model that edits images",
            )
        files = further_sources(Path(path))
        if len(files) > spec.sources:
            raise ConfigError(
                f"{path}: there are {len(files)} source images, but {spec.label} takes at most {spec.sources}",
                FIELD,
                f"move {files[spec.sources].name} elsewhere",
            )
        for file in files:
            size_of(file, FIELD)


def size_of(path: Path, field: str) -> tuple[int, int]:
    """(width, height) of an image that a sample names in ``field``. Raises ``ConfigError`` if it is unreadable."""
    try:
        return read_size(path)
    except DataError as error:
        raise ConfigError(error.message, field, "choose another image") from error


def sample_sources(
    sample: FilledSample, multiple: int, resolution: int | None = None
) -> tuple[torch.Tensor, ...]:
    """The pixels of a sample's source images, (3, H, W) in [0, 1] each, scaled to its size.

    Args:
        multiple: number of pixels that sides must be a multiple of.
        resolution: side of a square of their area; ``None`` for that of the sample.

    Raises:
        DataError: a source is no longer readable.
    """
    if not sample.config.source_path:
        return ()
    made = []
    for path in further_sources(Path(sample.config.source_path)):
        wanted = (sample.width, sample.height)
        size = source_size(read_size(path), wanted, sample.size, multiple, resolution)
        pixels = torch.from_numpy(apply_transform(load_rgb(path), Transform(size)))
        made.append(pixels.permute(2, 0, 1).float() / 255.0)
    return tuple(made)
