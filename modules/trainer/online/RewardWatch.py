"""Detects rewards from which nothing, or nothing but one image, can be learned."""

from __future__ import annotations

from collections.abc import Sequence

import torch

EQUAL_EPOCHS = 2
"""Number of consecutive epochs with equal scores for all images of every prompt before a warning."""
FAR = 1e4
"""Factor by which an outlier is further from the median than all others, and at least than from 0."""


class RewardWatch:
    """Checks the scores of each epoch. Each warning is given only once."""

    def __init__(self) -> None:
        self._equal = 0
        self._told: set[str] = set()
        self._warnings: list[str] = []

    def see(self, rewards: Sequence[str], raw_RN: torch.Tensor, ids: Sequence[str], all_equal: bool) -> None:
        """Add an epoch.

        Args:
            rewards: names of the rewards.
            raw_RN: scores of the kept images.
            ids: ids of these images.
            all_equal: whether the images of every prompt have the same reward.
        """
        self._equal = self._equal + 1 if all_equal else 0
        if self._equal == EQUAL_EPOCHS:
            self._say(
                "equal",
                f"in {EQUAL_EPOCHS} epochs in a row all images of every prompt got the same reward: nothing is learned."
                " Check that the reward sees differences between these images",
            )
        for name, raw_N in zip(rewards, raw_RN, strict=True):
            self._look_for_outliers(name, raw_N.double(), ids)

    def warnings(self) -> list[str]:
        """Findings since the last call."""
        found, self._warnings = self._warnings, []
        return found

    def _look_for_outliers(self, name: str, raw_N: torch.Tensor, ids: Sequence[str]) -> None:
        if len(raw_N) < 3:
            return
        median = float(raw_N.median())
        far_N = (raw_N - median).abs()
        worst = int(far_N.argmax())
        others = float(torch.cat([far_N[:worst], far_N[worst + 1 :]]).max())
        if float(far_N[worst]) > FAR * max(others, abs(median), 1.0):
            self._say(
                f"outlier of {name}",
                f"the reward {name} scored the image {ids[worst]} with {float(raw_N[worst]):g}, and the others with "
                f"about {median:g}: this one image dominates what is learned. Check the reward, or limit its range",
            )

    def _say(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._warnings.append(text)
