"""Rewards that fail in a run of online training: what is left out, and what ends the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.reward.base import RewardBatch, RewardError
from modules.reward.builtin import ImageStatistic
from tests.trainer.making import run_here
from tests.trainer.online_making import Listening, write_online


def failing(monkeypatch: pytest.MonkeyPatch, fails: Callable[[RewardBatch], Exception | None]) -> None:
    score = ImageStatistic._score

    def broken(self: ImageStatistic, batch: RewardBatch) -> torch.Tensor:
        if (error := fails(batch)) is not None:
            raise error
        return score(self, batch)

    monkeypatch.setattr(ImageStatistic, "_score", broken)


def skipping(folder: Path, **changes: Any) -> Path:
    return write_online(folder, rlhf_reward_on_error="SKIP_GROUP", rlhf_rollout_steps=2, **changes)


def test_a_prompt_whose_images_cannot_be_scored_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, lambda batch: RewardError("odd") if (batch.groups % 2 == 0).any() else None)
    heard = Listening()
    run_here(skipping(tmp_path), callback=heard)
    assert [m["rl/dropped_groups"] for m in heard.metrics] == [1.0, 1.0]
    assert [m["rl/images"] for m in heard.metrics] == [4.0, 4.0]


def test_an_epoch_without_a_score_ends_the_run_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, lambda batch: RewardError("the judge is blind"))
    with pytest.raises(RewardError, match="all 2 groups .* brightness: the judge is blind") as caught:
        run_here(skipping(tmp_path))
    assert caught.value.hint


def test_exhausted_memory_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # one prompt of two: the other one could be trained on
    def fails(batch: RewardBatch) -> Exception | None:
        return torch.OutOfMemoryError("CUDA out of memory") if (batch.groups % 2 == 0).any() else None

    failing(monkeypatch, fails)
    heard = Listening()
    with pytest.raises(torch.OutOfMemoryError):
        run_here(skipping(tmp_path), callback=heard)
    assert not heard.metrics
