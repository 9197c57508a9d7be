"""The memory of the rewards of a run: their weights, and what scoring needs."""

from __future__ import annotations

from functools import cached_property

from modules.reward.base import Reward, RewardOutline
from modules.trainer.memory.memory_step import ShapeDryRun
from modules.trainer.online.settings import reward_set, taste_features
from modules.util.config.TrainConfig import TrainConfig
from modules.util.device_names import listed


class RewardMemory:
    """Memory that the rewards of a run hold on the device of the model.

    Args:
        dry_run: measures the pass that scores images.
    """

    def __init__(self, config: TrainConfig, dry_run: ShapeDryRun) -> None:
        self._config, self._dry_run = config, dry_run

    @property
    def _next_to_the_model(self) -> bool:
        named = self._config.rlhf_reward_device
        own = listed(self._config.train_device)[0]
        return named == "auto" or (listed(named)[0] != "cpu" and (own == "auto" or named == own))

    @cached_property
    def _rewards(self) -> list[Reward]:
        there = self._config.trains_online and self._next_to_the_model
        return [term.reward for term in reward_set(self._config).terms] if there else []

    @cached_property
    def _outlines(self) -> dict[str, RewardOutline]:
        found = {reward.name: reward.outline() for reward in self._rewards}
        return {name: outline for name, outline in found.items() if outline is not None}

    def weights(self) -> dict[str, int]:
        """Bytes of the weights, by reward."""
        return {
            f"weights: reward {name}": sum(
                tensor.numel() * tensor.element_size()
                for tensor in (*outline.module.parameters(), *outline.module.buffers())
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
