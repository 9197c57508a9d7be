"""Making the data loaders of a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from modules.dataLoader.BaseDataLoader import BaseDataLoader, open_file_index
from modules.dataLoader.collector import no_search_for_cycles
from modules.dataLoader.likes import split_unequal_pairs
from modules.dataLoader.progress import Progress
from modules.dataLoader.source import collect_source, leave_out_identical, raise_faults
from modules.dataLoader.Text2ImageDataLoader import Text2ImageDataLoader

if TYPE_CHECKING:
    import torch

    from modules.model.Model import Model
    from modules.modelSetup.BaseModelSetup import BaseModelSetup
    from modules.util.config.TrainConfig import TrainConfig


def sides_multiple(setup: BaseModelSetup, model: Model) -> int:
    """Number of pixels that the sides of training and source images must be multiples of."""
    return math.lcm(setup.spec.size_multiple, model.latent_factor)


@no_search_for_cycles()
def create_data_loader(
    config: TrainConfig,
    model: Model,
    setup: BaseModelSetup,
    *,
    validation: bool = False,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    rank: int = 0,
    world_size: int = 1,
    barrier: Callable[[], None] | None = None,
    share: BaseDataLoader | None = None,
) -> BaseDataLoader:
    """Create the loader of a run's training or validation data. Call its ``prepare`` before requesting
    batches.

    Args:
        validation: deliver the held-back data instead of the training data.
        progress: called with the progress; may cancel.
        rank, world_size: index of this process, and number of processes.
        barrier: waits for all processes; needed with more than one.
        share: another loader of this run, whose knowledge of the files is reused.

    Raises:
        DataError: the data is unusable. Every fault is listed.
        ValueError: the run has no validation data.
    """
    if world_size > 1 and barrier is None:
        raise ValueError("several processes need a barrier")
    if share is not None:
        source, files = share.source, share.files
    else:
        source = collect_source(config, config.load_concepts(), sides_multiple(setup, model))
        files = open_file_index(config)
        raise_faults(source.faults)
        leave_out_identical(source, files)
        if config.takes_single_images:
            split_unequal_pairs(source, files)
    units = source.validation if validation else source.train
    if units is None:
        raise ValueError("this run has no validation data: validation is switched off")
    return Text2ImageDataLoader(
        config,
        model,
        setup,
        units,
        source,
        files,
        validation=validation,
        device=device,
        progress=progress,
        rank=rank,
        world_size=world_size,
        barrier=barrier,
    )
