"""The step of each online mode."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from modules.adapter.reference import Reference
from modules.trainer.online.OldPolicy import OldPolicy
from modules.trainer.online.steps.coupled import CoupledStep
from modules.trainer.online.steps.decoupled import DecoupledStep
from modules.trainer.online.steps.DGPOStep import DGPOStep
from modules.trainer.online.steps.OnlinePairStep import NFTStep, OnlinePairStep
from modules.trainer.OnlineLoader import OnlineLoader
from modules.trainer.steps import TrainStep
from modules.util.enum.RLHFMode import RLHFMode

_DECOUPLED: Mapping[RLHFMode, type[DecoupledStep]] = {
    RLHFMode.DGPO: DGPOStep,
    RLHFMode.ONLINE_DPO: OnlinePairStep,
    RLHFMode.NFT: NFTStep,
}


def create_online_step(
    loader: OnlineLoader,
    reference: Reference | None,
    parameters: list[torch.nn.Parameter],
    old_policy: OldPolicy | None,
    lossless: bool,
) -> TrainStep:
    """What the config's mode does in an optimizer step.

    Args:
        reference: the weights the run started from, if the mode compares with them.
        old_policy: the weights that follow slowly, if the mode has them.
        lossless: whether nothing in use computes rollouts otherwise than training.
    """
    config = loader.config
    if config.rlhf_mode.coupled:
        return CoupledStep(
            config,
            loader.setup,
            loader.model,
            loader.processes,
            reference,
            parameters,
            loader.settings,
            lossless,
        )
    return _DECOUPLED[config.rlhf_mode](loader, reference, parameters, old_policy)
