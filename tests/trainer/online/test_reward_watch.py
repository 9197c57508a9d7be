"""Rewards that teach nothing are said while a run trains, and a run that learned nothing saves nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from modules.reward.base import RewardBatch
from modules.reward.builtin import ImageStatistic
from modules.trainer.online.RewardWatch import RewardWatch
from modules.util.errors import DataError
from scripts import train as script
from tests.trainer.builders import events, run_here, train
from tests.trainer.online.builders import Listening, write_online
from tests.usual import usual


def scoring(monkeypatch: pytest.MonkeyPatch, score: Callable[[RewardBatch], torch.Tensor]) -> None:
    monkeypatch.setattr(ImageStatistic, "_score", lambda _self, batch: score(batch))


@pytest.mark.parametrize("mode", usual(["GRPO", "NFT"], "GRPO"))
def test_a_reward_that_is_always_the_same_ends_the_run_before_it_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    scoring(monkeypatch, lambda batch: torch.ones(len(batch)))
    heard = Listening()
    changes = {"epochs": 2, "rlhf_skip_zero_advantage": False, "rlhf_kl_beta": 0.0}
    with pytest.raises(DataError, match="nothing was learned in") as caught:
        run_here(write_online(tmp_path, mode, **changes), callback=heard)
    assert caught.value.field == "rlhf_reward"
    said = [warning for warning in heard.warnings if "got the same reward" in warning]
    assert len(said) == 1
    assert not (tmp_path / "out.safetensors").exists()


def test_an_outlier_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def score(batch: RewardBatch) -> torch.Tensor:
        values = batch.images_BCHW.mean(dim=(1, 2, 3))
        values[0] = 3e38
        return values

    scoring(monkeypatch, score)
    heard = Listening()
    run_here(write_online(tmp_path, rlhf_advantage_scale="GLOBAL_STD"), callback=heard)
    said = [warning for warning in heard.warnings if "dominates what is learned" in warning]
    assert len(said) == 1 and "brightness scored the image 0/" in said[0] and "3e+38" in said[0]


def test_ordinary_scores_are_not_spoken_of() -> None:
    watch = RewardWatch()
    ids = [str(number) for number in range(8)]
    for raw in ([0.0] * 7 + [1.0], [100.0, 101, 99, 500, 98, 100, 102, 97], [-1e6, -2e6, 1e6, 0, 0, 0, 0, 0]):
        watch.see(["one"], torch.tensor([raw]), ids, False)
    watch.see(["one"], torch.ones(1, 8), ids, True)
    watch.see(["one"], torch.ones(1, 8), ids, False)
    watch.see(["one"], torch.ones(1, 8), ids, True)
    assert watch.warnings() == []


@pytest.mark.slow
def test_a_lossy_accelerator_is_said_in_the_dry_run_and_among_the_events(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = {"shared": [{"name": "torch_compile", "params": {"backend": "eager"}}]}
    config = write_online(tmp_path, acceleration=compiled, epochs=1)
    script.main(["--config-path", str(config), "--dry-run"])
    assert "warning: acceleration: torch_compile is not exact" in capsys.readouterr().out
    made = train(config)
    assert made.returncode == 0, made.stderr
    told = [event["message"] for event in events(tmp_path / "run") if event["kind"] == "warning"]
    assert len([message for message in told if "torch_compile is not exact to the last bit" in message]) == 1
