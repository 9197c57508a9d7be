from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from modules.reward.person import Shown
from modules.rollout.generate import RolloutSource
from modules.rollout.Rollouts import Rollouts

NOTHING = RolloutSource(())


class ShowingWhileMade:
    """Offers the images of a prompt as soon as all of them are made, while the rollout continues.

    Args:
        epoch: epoch of the rollout.
        group_size: images per prompt.
        offer: called once for each prompt.
        decode: latents (N, C, h, w) to images (N, 3, H, W).
        edited: what the prompts edit, by group; none of those that edit nothing.
    """

    def __init__(
        self,
        epoch: int,
        group_size: int,
        offer: Callable[[Shown], None],
        decode: Callable[[torch.Tensor], torch.Tensor],
        edited: Mapping[int, RolloutSource],
    ) -> None:
        self._epoch, self._size, self._offer, self._decode = epoch, group_size, offer, decode
        self._edited = edited
        self._groups: dict[int, dict[str, torch.Tensor]] = {}

    def take(self, made: Rollouts) -> None:
        """Add the images of a batch."""
        rgb_BCHW = self._decode(made.final_NChw)
        for place, (one, group) in enumerate(zip(made.ids, made.group_N.tolist(), strict=True)):
            images = self._groups.setdefault(group, {})
            images[one] = rgb_BCHW[place]
            if len(images) == self._size:
                # in member order, whatever the order in which they were made
                whole_KCHW = torch.stack([images[name] for name in sorted(images)])
                source = self._edited.get(group, NOTHING)
                self._offer(
                    Shown(self._epoch, group, made.prompts[place], whole_KCHW, source.pixels, source.names)
                )

    def images(self, rollouts: Rollouts) -> torch.Tensor:
        """The images of the whole rollout, (N, 3, H, W)."""
        groups = rollouts.group_N.tolist()
        return torch.stack([self._groups[g][one] for one, g in zip(rollouts.ids, groups, strict=True)])
