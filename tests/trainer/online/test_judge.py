"""Rewards that fail in a run of online training: what is left out, and what ends the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from modules.model.Model import Model
from modules.reward.base import RewardBatch, RewardError, RewardUnavailable
from modules.reward.builtin import ImageStatistic
from modules.reward.combine import RewardSet
from modules.reward.person import Judged, PersonReward, Shown
from modules.trainer.distributed import Processes
from modules.trainer.online import judge as online_rewards
from modules.trainer.online.judge import Judge, member_id
from modules.trainer.resume.checkpoint import list_backups
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import ConfigError
from tests.trainer.builders import run_here, same_weights
from tests.trainer.online.builders import Listening, write_online


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


def test_what_was_learnt_before_a_reward_failed_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewards = {"rlhf_rewards": [{"reward": "brightness", "normalise": True}, {"reward": "contrast"}]}
    rewards |= {"rlhf_rollout_steps": 2}
    run_here(write_online(tmp_path / "whole", **rewards))
    calls: list[int] = []

    def fails(batch: RewardBatch) -> Exception | None:
        # two rewards score each epoch
        calls.append(1)
        return RewardUnavailable("the server is gone") if len(calls) == 4 else None

    failing(monkeypatch, fails)
    config = write_online(tmp_path / "cut", **rewards)
    with pytest.raises(RewardUnavailable):
        run_here(config)
    (backup,) = list_backups(tmp_path / "cut" / "run" / "backup")
    assert "-backup-2-1-0" in backup.name
    run_here(config, "continue_last_backup=true")
    assert same_weights(tmp_path / "whole" / "out.safetensors", tmp_path / "cut" / "out.safetensors")


class Made(SimpleNamespace):
    def __len__(self) -> int:
        return len(self.ids)


class Desk:
    """Gets votes on some groups only."""

    def __init__(self, *answered: int) -> None:
        self.answered = answered

    def show(self, shown: Shown) -> None:
        pass

    def wait(self, groups: Sequence[int]) -> dict[int, tuple[int, ...] | None]:
        return {group: (1, 0) if group in self.answered else None for group in groups}

    def earlier(self, epoch: int) -> list[Judged]:
        return []

    def voted(self, group: int, levels: Sequence[int] | None, teaches: bool) -> None:
        pass


@pytest.mark.parametrize(("answered", "advantages"), [((0,), [1, -1, 0, 0]), ((), [0, 0, 0, 0])])
def test_prompts_without_votes_are_left_out_whatever_other_rewards_say(
    answered: tuple[int, ...], advantages: list[float]
) -> None:
    config = TrainConfig.from_dict(
        {"rlhf_enabled": True, "rlhf_mode": "GRPO", "rlhf_group_size": 2, "rlhf_reward": "person, brightness"}
    )
    model: Any = None
    judge = Judge(config, model, Processes(0, 1, 0, torch.device("cpu")))
    person = judge.rewards.terms[0].reward
    assert isinstance(person, PersonReward)
    person.ask_through(Desk(*answered), 1.0, None)
    ids = [member_id(0, group, member) for group in (0, 1) for member in (0, 1)]
    made: Any = Made(ids=ids, prompts=["a", "a", "b", "b"], group_N=torch.tensor([0, 0, 1, 1]))
    light_N = torch.tensor([0.5, 0.5, 0.1, 0.9])
    judged = judge.judge(made, light_N[:, None, None, None].expand(4, 3, 8, 8).contiguous())
    assert judged.kept_N.tolist() == [0 in answered, 0 in answered, False, False]
    # over the standard deviation of the judged ones alone
    assert judged.adv_N.tolist() == pytest.approx(advantages, abs=1e-3)
    assert judged.facts["rl/dropped_groups"] == 2 - len(answered)


def test_exhausted_memory_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # one prompt of two: the other one could be trained on
    def fails(batch: RewardBatch) -> Exception | None:
        return torch.OutOfMemoryError("CUDA out of memory") if (batch.groups % 2 == 0).any() else None

    failing(monkeypatch, fails)
    heard = Listening()
    with pytest.raises(torch.OutOfMemoryError):
        run_here(skipping(tmp_path), callback=heard)
    assert not heard.metrics


@pytest.mark.slow
def test_rewards_and_denoiser_take_turns_on_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[str] = []

    def watch(owner: Any, name: str, said: Any) -> None:
        act = getattr(owner, name)

        def watched(*args: Any, **options: Any) -> Any:
            turns.append(said(*args))
            return act(*args, **options)

        monkeypatch.setattr(owner, name, watched)

    (tmp_path / "plain").mkdir()
    run_here(write_online(tmp_path / "plain", epochs=1))
    path = write_online(tmp_path / "swapped", epochs=1, rlhf_reward_swap=True)
    watch(RewardSet, "score", lambda *_: "scored")
    watch(RewardSet, "to", lambda _rewards, device: f"rewards to {device}")
    watch(Model, "to", lambda _model, part, device: f"{part} to {device}")
    watch(online_rewards, "give_back", lambda device: "given back")
    score = ["unet to cpu", "given back", "rewards to cpu", "scored"]
    run_here(path)
    first = turns.index("scored")
    assert turns[first - 3 : first + 4] == [*score, "rewards to cpu", "given back", "unet to cpu"]
    assert same_weights(tmp_path / "plain" / "out.safetensors", tmp_path / "swapped" / "out.safetensors")


@pytest.mark.parametrize("swap", [False, True])
def test_a_device_for_rewards_that_is_not_here_is_an_error_before_the_model_is_loaded(
    swap: bool, tmp_path: Path
) -> None:
    path = write_online(tmp_path, rlhf_reward_swap=swap, rlhf_reward_device="cuda:99")
    heard = Listening()
    with pytest.raises(ConfigError, match="cuda:99") as caught:
        run_here(path, callback=heard)
    assert caught.value.field == "rlhf_reward_device"
    assert not heard.phases
