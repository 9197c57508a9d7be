"""The memory of the rewards of a run: their weights, and what scoring needs."""

from __future__ import annotations

from functools import cached_property

from modules.reward.base import Reward, RewardOutline
from modules.trainer.memory.memory_step import ShapeDryRun
from modules.trainer.online.settings import reward_set, taste_features
from modules.util.config.TrainConfig import TrainConfig
from modules.util.device_names import listed, plain


class RewardMemory:
    """Memory that the rewards of a run hold on the device of the model.

    Args:
        dry_run: measures the pass that scores images.
    """

    def __init__(self, config: TrainConfig, dry_run: ShapeDryRun) -> None:
        self._config, self._dry_run = config, dry_run

    @cached_property
    def _rewards(self) -> list[Reward]:
        return rewards_next_to_the_model(self._config)

    @cached_property
    def _outlines(self) -> dict[str, RewardOutline]:
        found = {reward.name: reward.outline() for reward in self._rewards}
        return {name: outline for name, outline in found.items() if outline is not None}

    def weights(self) -> dict[str, int]:
        """Bytes of the weights, by reward."""
        return {
            f"weights: reward {name}": sum(
                tensor.nbytes for tensor in (*outline.module.parameters(), *outline.module.buffers())
            )
            for name, outline in self._outlines.items()
        }

    def working(self) -> int:
        """Bytes that scoring needs besides the weights; the rewards score one after the other."""
        images = self._config.rlhf_prompts_per_epoch * self._config.rlhf_group_size
        needs = (self._dry_run.reward(outline, images) for outline in self._outlines.values())
        return max(needs, default=0)

    def notes(self) -> list[str]:
        """Notes on what the figures do not include."""
        left_out = [one.name for one in self._rewards if one.has_weights and one.name not in self._outlines]
        made = [f"these figures do not include the model of the reward {name}" for name in left_out]
        if self._rewards and taste_features(self._config) is not None:
            made.append("these figures do not include the model that votes for you")
        return made


def rewards_next_to_the_model(config: TrainConfig) -> list[Reward]:
    """The rewards of a run that are on a card with its model, not loaded."""
    named = config.rlhf_reward_device
    own = _cards(config.train_device, 1)
    there = named == "auto" or not own.isdisjoint(_cards(named, len(own)) - {"cpu"})
    return [term.reward for term in reward_set(config).terms] if config.trains_online and there else []


def _cards(device: str, processes: int) -> set[str]:
    """The devices that a setting names, one for each process."""
    if device in ("auto", "cuda"):
        return {f"cuda:{number}" for number in range(processes)}
    return {plain(name) for name in listed(device)}
