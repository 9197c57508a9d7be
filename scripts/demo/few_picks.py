"""From few answers to an adapter: a head learns the taste from the answers, and the adapter from the head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CAUTION = 0.5
"""Standard deviations of the head's uncertainty that are subtracted from a reward."""


def learning_settings(
    weights: Path, prompts: Path, caution: float = CAUTION, guard: float = 0.0
) -> dict[str, Any]:
    """Settings of an online run (on the preset of NFT) that learns from a head of ``scripts/train_reward.py``.

    Args:
        weights: the head.
        prompts: one per line; images are made for them while training, and nobody looks at these.
        caution, guard: see ``PreferenceReward``; 0 for a head that is not on the denoiser's features.
    """
    reward = {
        "reward": "preference_head",
        "name": "taste",
        "params": {"weights": str(weights), "caution": caution, "guard": guard, "batch_size": 16},
    }
    return {"rlhf_prompts_file": str(prompts), "rlhf_rewards": [reward]}
