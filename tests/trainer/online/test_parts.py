"""Prompts, the old policy, metrics and hooks of online training."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

from modules.accelerator.plan import build_plan
from modules.objective.advantages import group_advantages
from modules.objective.policy_gradient import PolicyOut
from modules.objective.policy_gradient.online_dpo import rank_pairs
from modules.trainer.distributed import Processes
from modules.trainer.online.acceleration import hooks_of
from modules.trainer.online.OldPolicy import OldPolicy, decay_at
from modules.trainer.online.OnlineMetrics import OnlineMetrics
from modules.trainer.online.prompts import OnlinePrompt, digest_of
from modules.trainer.online.settings import advantage_options
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import DataError
from modules.util.prompts_file import read_prompts_file


def test_prompts_file(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes("\ufeff# comment\n\n  a cat  \r\na dog\n   # also one\na cat\nü\n".encode())
    assert read_prompts_file(file) == ["a cat", "a dog", "a cat", "ü"]
    for content, what in (
        (b"\n# nothing\n", "holds no prompt"),
        (b"\xff\xfe\x00a", "not UTF-8"),
        (b"a\0b", "is not a text file"),
        (b"x" * 20_001, "line 1: the prompt has 20001 characters"),
    ):
        file.write_bytes(content)
        with pytest.raises(DataError, match=what) as caught:
            read_prompts_file(file)
        assert caught.value.field == "rlhf_prompts_file"
    with pytest.raises(DataError, match="cannot be read"):
        read_prompts_file(tmp_path)
    plain = digest_of([OnlinePrompt("ab"), OnlinePrompt("c")], {})
    assert plain != digest_of([OnlinePrompt("a"), OnlinePrompt("bc")], {})
    # as earlier versions wrote it into backups
    assert plain == hashlib.blake2b(b"2:ab1:c", digest_size=16).hexdigest()
    edits = [OnlinePrompt("ab", ("x.png",)), OnlinePrompt("c", ("y.png",))]
    one, other = (digest_of(edits, {"x.png": "1", "y.png": name}) for name in ("2", "3"))
    assert len({plain, one, other}) == 3


def test_pairs_are_of_the_best_and_the_worst_image_however_far_apart_rewards_are() -> None:
    config = TrainConfig.from_dict({"rlhf_mode": "ONLINE_DPO", "rlhf_advantage_scale": "NONE"})
    group_K = torch.zeros(4, dtype=torch.int64)
    # thousands of bytes, as some rewards count: all are further from the mean than the limit of advantages
    made = group_advantages(torch.tensor([80.0, 60.0, 110.0, 40.0]), group_K, advantage_options(config))
    pairs = rank_pairs(made.adv_N, group_K)
    assert (pairs.chosen_P.tolist(), pairs.rejected_P.tolist()) == ([2], [3])


def test_old_policy_is_the_trained_one_at_first_and_lags_later() -> None:
    assert [decay_at(step, 0.3, 0.1) for step in (0, 1, 2, 9)] == pytest.approx([0.0, 0.1, 0.2, 0.3])
    weight = torch.nn.Parameter(torch.zeros(2))
    old = OldPolicy([("w", weight)], 0.3, 0.1, "cpu")
    with torch.no_grad():
        weight.fill_(1.0)
    old.update(0)
    assert torch.equal(old.state_dict()["w"], torch.ones(2))
    with torch.no_grad():
        weight.fill_(2.0)
    old.update(1)
    assert old.state_dict()["w"].tolist() == pytest.approx([1.9, 1.9])
    place = weight.data_ptr()
    with pytest.raises(ZeroDivisionError), old.active():
        assert weight.tolist() == pytest.approx([1.9, 1.9])
        with pytest.raises(RuntimeError, match="inside itself"), old.active():
            pass
        raise ZeroDivisionError
    assert weight.tolist() == [2.0, 2.0]
    assert weight.data_ptr() == place
    other = OldPolicy([("w", weight)], 0.3, 0.1, "cpu")
    other.load_state_dict(old.state_dict())
    assert torch.equal(other.state_dict()["w"], old.state_dict()["w"])
    with pytest.raises(DataError):
        other.load_state_dict({"v": torch.zeros(2)})


def test_shares_add_up_and_maxima_compare() -> None:
    metrics = OnlineMetrics(Processes(0, 1, 0, torch.device("cpu")))
    metrics.clear({"rl/reward_mean": 0.5})
    for loss, top in ((1.0, 1.5), (0.25, -torch.inf)):
        value = torch.tensor(loss, requires_grad=True)
        metrics.add(PolicyOut(value, {}, {"loss": value.detach()}, {"ratio_max": torch.tensor(top)}))
    assert metrics.tags() == {
        "loss/train_step": 1.25,
        "rl/loss": 1.25,
        "rl/ratio_max": 1.5,
        "rl/reward_mean": 0.5,
    }
    metrics.clear({})
    assert "rl/reward_mean" not in metrics.tags()


def test_denoiser_calls_belong_to_an_open_rollout() -> None:
    plan = build_plan(None, "coupled")
    plan.setup({"unet": torch.nn.Linear(1, 1)})
    hooks = hooks_of(plan)
    with pytest.raises(RuntimeError, match="none is open"):
        hooks.branch("cond", 1.0)
    with hooks.rollout_context(), hooks.branch("cond", 1.0):
        assert not torch.is_grad_enabled()
    with pytest.raises(RuntimeError, match="none is open"):
        hooks.branch("cond", 1.0)
