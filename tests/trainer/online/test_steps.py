"""Optimizer steps of online training: equal gradients whichever way they are computed, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from modules.trainer.online.EpochMaker import EpochMaker
from modules.util.errors import ConfigError, DataError, UnsupportedError
from tests.tiny import small_folder, tiny_folder
from tests.trainer.builders import run_here
from tests.trainer.online.builders import SGD, Listening, write_online
from tests.usual import usual


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {n: t for n, t in load_file(folder / "out.safetensors").items() if "alpha" not in n}


def gap(first: Path, second: Path) -> float:
    """Largest difference of two adapters, relative to the largest of what was learned (lora_up starts at 0)."""
    one, other = weights(first), weights(second)
    names = [name for name in one if "lora_up" in name]
    learned = max(float(one[name].abs().max()) for name in names)
    assert learned > 0
    return max(float((one[name] - other[name]).abs().max()) for name in names) / learned


GSPO = {"rlhf_rollout_steps": 4, "rlhf_clip_range_low": 1e-5, "rlhf_clip_range_high": 1e-5}
WAYS: dict[str, tuple[str, dict[str, Any], list[dict[str, Any]]]] = {
    "gspo": (
        "GSPO",
        GSPO,
        [{"rlhf_gspo_strategy": name} for name in ("EXACT", "TWO_PASS", "STASH")],
    ),
    "gspo_kl": (
        "GSPO",
        {**GSPO, "rlhf_kl_beta": 0.5, "rlhf_gspo_weighting": "DOCUMENT"},
        [{"rlhf_gspo_strategy": name} for name in ("EXACT", "TWO_PASS")],
    ),
    "dgpo": (
        "DGPO",
        {"rlhf_ema_ref_ramp_rate": 0.2},
        [
            {"rlhf_dgpo_group_strategy": "EXACT"},
            {"batch_size": 2, "gradient_accumulation_steps": 2, "rlhf_dgpo_group_strategy": "STASH"},
            {"batch_size": 1, "gradient_accumulation_steps": 4, "rlhf_dgpo_group_strategy": "TWO_PASS"},
        ],
    ),
    "dgpo_kl": (
        "DGPO",
        {"rlhf_kl_beta": 0.3, "rlhf_kl_type": "V", "rlhf_dgpo_kl_cfg": 2.0, "rlhf_dgpo_clip_kl": True},
        [{}, {"batch_size": 2, "gradient_accumulation_steps": 2}],
    ),
    "grpo": (
        "GRPO",
        {"rlhf_kl_beta": 0.5, "rlhf_kl_type": "FLOW_GRPO", "rlhf_rollout_cfg_scale": 2.0},
        [{}, {"batch_size": 1, "rlhf_docs_per_step": 4}],
    ),
    "pairs": (
        "ONLINE_DPO",
        {"rlhf_online_dpo_pairs": "ALL", "rlhf_online_dpo_beta": 50.0},
        [{}, {"batch_size": 2, "gradient_accumulation_steps": 2}],
    ),
    "nft": ("NFT", {}, [{}, {"batch_size": 2, "gradient_accumulation_steps": 2}]),
    "nft_held": (
        "NFT",
        {"rlhf_norm_guard": 100.0, "rlhf_kl_beta": 0.3, "rlhf_kl_type": "V"},
        [{}, {"batch_size": 2, "gradient_accumulation_steps": 2}],
    ),
    "awm": (
        "AWM",
        {"rlhf_norm_guard": 100.0, "rlhf_kl_beta": 0.3, "rlhf_kl_type": "V"},
        [{}, {"batch_size": 1, "gradient_accumulation_steps": 4}],
    ),
}
MORE: dict[str, tuple[str, dict[str, Any], list[dict[str, Any]]]] = {
    "dgpo_more": (
        "DGPO",
        {"rlhf_ema_ref_ramp_rate": 0.2},
        [
            *({"rlhf_dgpo_group_strategy": name} for name in ("EXACT", "TWO_PASS", "STASH")),
            {"batch_size": 2, "gradient_accumulation_steps": 2},
        ],
    ),
    "grpo_more": (
        *WAYS["grpo"][:2],
        [{}, {"batch_size": 1, "gradient_accumulation_steps": 4}, {"batch_size": 2, "rlhf_docs_per_step": 4}],
    ),
    "awm_more": (*WAYS["awm"][:2], [{}, {"batch_size": 2, "gradient_accumulation_steps": 2}]),
}
"""Other pairs of a strategy and a size of the micro-batches. The usual run has the strategies of a group and each kind
of steps; AWM takes those of NFT.
"""
WAYS |= MORE
USUAL_WAYS = ("gspo", "dgpo", "grpo", "pairs", "nft_held")


@pytest.mark.parametrize("name", usual(WAYS, *USUAL_WAYS))
def test_all_ways_give_the_same_gradient(tmp_path: Path, name: str) -> None:
    mode, common, ways = WAYS[name]
    curves = []
    for number, way in enumerate(ways):
        heard = Listening()
        run_here(
            write_online(tmp_path / str(number), mode, **{**SGD, "epochs": 1, **common, **way}),
            callback=heard,
        )
        curves.append(heard.metrics)
    for number in range(1, len(ways)):
        assert gap(tmp_path / "0", tmp_path / str(number)) < 2e-3, ways[number]
        for ours, theirs in zip(curves[0], curves[number], strict=True):
            assert ours.keys() == theirs.keys()
            assert theirs["loss/train_step"] == pytest.approx(ours["loss/train_step"], rel=1e-3, abs=1e-5)


def test_first_ratio_is_exactly_one_and_its_check_sees_what_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Listening()
    run_here(write_online(tmp_path / "one", rlhf_rollout_steps=2, rlhf_rollout_cfg_scale=3.0), callback=heard)
    fresh = [m["rl/ratio_error"] for m in heard.metrics if "rl/reward_mean" in m]
    assert fresh == [0.0, 0.0]
    assert any(m["rl/ratio_error"] > 0 for m in heard.metrics)

    old = EpochMaker._old_values

    def moved(self: EpochMaker, batch: Any, *rest: Any) -> Any:
        made = old(self, batch, *rest)
        return made.with_old(made.rollouts.logp_NS + 1e-5, None)

    monkeypatch.setattr(EpochMaker, "_old_values", moved)
    with pytest.raises(DataError, match="ratios differ from 1"):
        run_here(write_online(tmp_path / "two", rlhf_rollout_steps=2))
    heard = Listening()
    few: dict[str, Any] = {"rlhf_rollout_steps": 2, "epochs": 1}
    run_here(write_online(tmp_path / "three", rlhf_ratio_check="WARN", **few), callback=heard)
    assert len(heard.warnings) == 1 and "ratios differ" in heard.warnings[0]
    heard = Listening()
    run_here(write_online(tmp_path / "four", rlhf_rollout_batch_size=8, **few), callback=heard)
    assert heard.warnings == [], "a quarter of the clip range is allowed where batches differ"


def test_a_guided_reference_is_guided_as_the_images_of_its_family_are(tmp_path: Path) -> None:
    """LUMINA_2 scales every row of a guided prediction back to its length without guidance, so that it stays near."""
    distance = {}
    for cfg in (20.0, 80.0):
        heard = Listening(stop_at=1)
        changes = {
            "model_type": "LUMINA_2", "base_model_name": str(small_folder("LUMINA_2")),
            "layer_filter_preset": "attn-only", "rlhf_rollout_steps": 2, "rlhf_num_train_timesteps": 1,
            "rlhf_group_size": 2, "batch_size": 2, "rlhf_kl_beta": 0.1, "rlhf_kl_type": "V", "rlhf_dgpo_kl_cfg": cfg,
        }  # fmt: skip
        run_here(write_online(tmp_path / f"{cfg:g}", "DGPO", **changes), callback=heard)
        # the policy is the reference without guidance
        distance[cfg] = heard.metrics[0]["rl/kl_div"]
    assert 0 < distance[80.0] < 4 * distance[20.0]


@pytest.mark.slow
def test_images_kept_for_review(tmp_path: Path) -> None:
    changes = {"rlhf_keep_images": 3, "rlhf_keep_image_epochs": 2, "epochs": 3, "rlhf_rollout_steps": 2}
    run_here(write_online(tmp_path, **changes))
    folder = tmp_path / "run" / "rollouts"
    assert sorted(path.name for path in folder.iterdir()) == ["epoch-1", "epoch-2"]
    assert len(list((folder / "epoch-2").glob("*.png"))) == 3
    listed = json.loads((folder / "epoch-2" / "images.json").read_text(encoding="utf-8"))["images"]
    with Image.open(folder / "epoch-2" / listed[0]["file"]) as image:
        assert image.size == (32, 32)
        text = image.info["parameters"]
    assert text.startswith(listed[0]["prompt"] + "\n")
    assert f"Seed: {listed[0]['seed']}" in text and "Reward: " in text


def test_old_images_that_cannot_be_removed_are_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rmdir = os.rmdir

    def held(path: Any, *arguments: Any, **named: Any) -> None:
        if Path(path).name == "epoch-0":
            raise PermissionError(13, "Permission denied", str(path))
        rmdir(path, *arguments, **named)

    monkeypatch.setattr(os, "rmdir", held)
    heard = Listening()
    config = write_online(
        tmp_path,
        rlhf_keep_images=1,
        rlhf_keep_image_epochs=1,
        epochs=4,
        rlhf_rollout_steps=2,
        rlhf_group_size=2,
        batch_size=2,
    )
    run_here(config, callback=heard)
    [told] = [text for text in heard.warnings if "rlhf_keep_image_epochs" in text]
    assert "epoch-0: Permission denied" in told
    # the others were removed nevertheless
    assert sorted(path.name for path in (tmp_path / "run" / "rollouts").iterdir()) == ["epoch-0", "epoch-3"]


@pytest.mark.parametrize("kind", usual(["GRPO", "DGPO"], "DGPO"))
def test_what_teaches_nothing_is_left_out(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from modules.reward.combine import RewardSet

    score = RewardSet.score

    def flat_first(self: RewardSet, batch: Any) -> Any:
        made = score(self, batch)
        made.raw_RN[:, batch.groups % 2 == 0] = 0.5
        return made

    monkeypatch.setattr(RewardSet, "score", flat_first)
    heard = Listening()
    run_here(write_online(tmp_path, kind, rlhf_skip_zero_advantage=True), callback=heard)
    # a step of each epoch is gone with its prompt
    assert len(heard.metrics) == 2
    assert [m["rl/zero_std_ratio"] for m in heard.metrics] == [0.5, 0.5]
    assert [m["rl/images"] for m in heard.metrics] == [4.0, 4.0]


def learned(folder: Path) -> torch.Tensor:
    """What the only step changed, in one row: ``lora_up`` begins at 0."""
    return torch.cat([t.flatten() for name, t in sorted(weights(folder).items()) if "lora_up" in name])


@pytest.mark.slow
def test_the_norm_guard_acts_in_nft_once_predictions_have_grown(tmp_path: Path) -> None:
    def run(name: str, **changes: Any) -> list[float]:
        heard = Listening()
        given = {**SGD, "learning_rate": 100.0, "epochs": 4, "rlhf_rollout_steps": 2, **changes}
        run_here(write_online(tmp_path / name, "NFT", **given), callback=heard)
        return [one.get("rl/norm_guard", -1.0) for one in heard.metrics]

    assert set(run("free")) == {-1.0}, "nothing is compared where it is off"
    guarded = run("held", rlhf_norm_guard=1000.0)
    assert guarded[0] == 0.0, "a new adapter predicts as the reference does"
    assert max(guarded) > 0.0, guarded
    assert gap(tmp_path / "free", tmp_path / "held") > 1e-4


@pytest.mark.slow
def test_ratios_of_awm_leave_1_with_the_old_policy_behind_and_are_clipped(tmp_path: Path) -> None:
    """The old policy is the trained one at first; where it stays behind, images are taken out of the loss."""
    behind = {"rlhf_ema_ref_ramp_rate": 1.0, "rlhf_ema_ref_max_decay": 0.99, "max_steps": 3}
    for name, clip in (("tight", 0.0), ("wide", 0.9)):
        heard = Listening()
        clips = {"rlhf_clip_range_low": clip, "rlhf_clip_range_high": clip}
        changes = {**SGD, **behind, **clips, "learning_rate": 10.0}
        run_here(write_online(tmp_path / name, "AWM", **changes), callback=heard)
        first, *_, last = heard.metrics
        assert first["rl/ratio_error"] == 0.0 and first["rl/clipfrac"] == 0.0
        assert last["rl/ratio_error"] > 0.0
        assert (last["rl/clipfrac"] > 0.0) == (name == "tight")
    assert gap(tmp_path / "tight", tmp_path / "wide") > 1e-4


@pytest.mark.slow
def test_skipped_images_count_as_images_without_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from modules.reward.combine import RewardSet

    score = RewardSet.score

    def graded(self: RewardSet, batch: Any) -> Any:
        made = score(self, batch)
        made.raw_RN[:, batch.groups == 0] = torch.tensor([0.0, 0.5, 0.5, 1.0])
        made.raw_RN[:, batch.groups == 1] = torch.tensor([0.0, 1.0, 0.0, 1.0])
        return made

    monkeypatch.setattr(RewardSet, "score", graded)

    def run(name: str, heard: Listening | None = None, **changes: Any) -> torch.Tensor:
        given = {**SGD, "batch_size": 4, "gradient_accumulation_steps": 2, "max_steps": 1, **changes}
        run_here(write_online(tmp_path / name, **given), callback=heard)
        return learned(tmp_path / name)

    def like(one: torch.Tensor, other: torch.Tensor) -> bool:
        return bool((one - other).abs().max() < 1e-4 * other.abs().max())

    skip = {"rlhf_skip_zero_advantage": True}
    count = {**skip, "rlhf_count_skipped": True}
    heard = Listening()
    everything = run("all")
    by_image, by_prompt = (
        run("image", heard=heard, **count),
        run("prompt", rlhf_loss_aggregation="PROMPT_MEAN", **count),
    )
    # two of eight images have no advantage, both of the first prompt
    assert heard.metrics[0]["rl/images"] == 6.0 and heard.metrics[0]["rl/ratio_mean"] == pytest.approx(1.0)
    assert like(by_image, everything), "an image without an advantage has no gradient"
    assert like(run("step", rlhf_loss_aggregation="STEP_MEAN", **count), by_image * 8 / 6)
    assert float(torch.cosine_similarity(by_prompt, by_image, 0)) < 0.9999, (
        "the first prompt counts twice as much"
    )


def test_nothing_to_learn_at_all_ends_the_run(tmp_path: Path) -> None:
    rewards = [{"reward": "brightness", "clip_low": 5.0, "clip_high": 6.0}]
    with pytest.raises(DataError, match="8 epochs in a row had no image to learn from"):
        run_here(
            write_online(
                tmp_path,
                rlhf_rewards=rewards,
                rlhf_skip_zero_advantage=True,
                max_steps=3,
                rlhf_rollout_steps=2,
                rlhf_group_size=2,
                batch_size=2,
            )
        )


@pytest.mark.parametrize(
    ("mode", "changes", "field", "kind"),
    [
        ("GRPO", {"rlhf_reward": "beauty"}, "rlhf_reward", ConfigError),
        ("GRPO", {"rlhf_prompts_per_epoch": 5}, "rlhf_prompts_per_epoch", ConfigError),
        ("GRPO", {"rlhf_prompts_per_epoch": 3, "batch_size": 8}, "rlhf_prompts_per_epoch", ConfigError),
        ("GRPO", {"rlhf_prompts_file": "nowhere.txt"}, "rlhf_prompts_file", DataError),
        ("DGPO", {"batch_size": 1}, "gradient_accumulation_steps", ConfigError),
        (
            "DGPO",
            {"batch_size": 1, "gradient_accumulation_steps": 4, "rlhf_dgpo_group_strategy": "EXACT"},
            "rlhf_dgpo_group_strategy",
            UnsupportedError,
        ),
        (
            "GSPO",
            {"rlhf_gspo_strategy": "STASH", "rlhf_kl_beta": 0.1},
            "rlhf_gspo_strategy",
            UnsupportedError,
        ),
        (
            "GRPO",
            {"rlhf_loss_aggregation": "PROMPT_MEAN", "batch_size": 2},
            "gradient_accumulation_steps",
            ConfigError,
        ),
        (
            "GRPO",
            {"rlhf_calculate_per_step_loss": True, "rlhf_pg_loss_divisor": 3.0},
            "rlhf_calculate_per_step_loss",
            ConfigError,
        ),
        (
            "GRPO",
            {"batch_size": 1, "rlhf_docs_per_step": 5, "rlhf_docs_per_step_multiple": 5},
            "rlhf_docs_per_step_multiple",
            ConfigError,
        ),
        (
            "GRPO",
            {"batch_size": 1, "rlhf_docs_per_step": 5, "rlhf_short_step": "ERROR"},
            "rlhf_short_step",
            DataError,
        ),
        ("GRPO", {"acceleration": {"rollout": "diffusers_cache"}}, "acceleration.rollout[0]", ConfigError),
        ("GRPO", {"acceleration": {"shared": "cache_dit"}}, "acceleration.shared[0]", ConfigError),
    ],
)
def test_refused_before_a_model_is_loaded(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    changes: dict[str, Any],
    field: str,
    kind: type,
) -> None:
    from modules.modelSetup import training

    def loaded(*_: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(training, "load_model", loaded)
    with pytest.raises(kind) as caught:
        run_here(write_online(tmp_path, mode, **changes))
    assert caught.value.field == field


@pytest.mark.parametrize("mode", usual(["GRPO", "GSPO", "DGPO", "NFT", "ONLINE_DPO", "AWM"], "GRPO"))
def test_images_move_to_where_the_reward_is(tmp_path: Path, mode: str) -> None:
    """Two runs with the same noise and opposite rewards: after an epoch one is brighter than the other."""
    changes: dict[str, Any] = {
        "base_model_name": str(tiny_folder(prediction="v_prediction")),
        "batch_size": 16,
        "rlhf_prompts_per_epoch": 4,
        "rlhf_inner_epochs": 2,
        # of the second epoch only the images matter
        "max_steps": 3,
        "layer_filter_preset": "attn-mlp",
        "learning_rate": 0.02,
        "rlhf_timestep_range_high": 1.0,
        "rlhf_online_dpo_beta": 100.0,
        "rlhf_keep_images": 0,
    }
    found = []
    for name, weight in (("up", 1.0), ("down", -1.0)):
        heard = Listening()
        rewards = [{"reward": "brightness", "weight": weight}]
        run_here(write_online(tmp_path / name, mode, **changes, rlhf_rewards=rewards), callback=heard)
        found.append([m["reward/brightness/mean"] for m in heard.metrics if "rl/reward_mean" in m])
    assert found[0][0] == found[1][0]
    assert found[0][1] > found[1][1] + 5e-5


@pytest.mark.parametrize(
    ("mode", "what"), usual([("GRPO", "log-probability"), ("DGPO", "dsm_B")], ("GRPO", "log-probability"))
)
def test_a_number_that_is_none_ends_the_run_with_a_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, what: str
) -> None:
    from modules.modelSetup.families.StableDiffusionSetup import StableDiffusionSetup
    from modules.trainer.resume.checkpoint import find_backup, read_backup

    denoise = StableDiffusionSetup.denoise
    heard = Listening()

    def broken(*arguments: Any, **named: Any) -> torch.Tensor:
        made = denoise(*arguments, **named)
        return made * torch.nan if heard.metrics and torch.is_grad_enabled() else made

    monkeypatch.setattr(StableDiffusionSetup, "denoise", broken)
    with pytest.raises(DataError, match=what):
        run_here(write_online(tmp_path, mode), callback=heard)
    path, _ = find_backup(tmp_path / "run" / "backup")
    assert path is not None
    backup = read_backup(path)
    assert backup.progress.global_step == 1
    assert all(bool(t.isfinite().all()) for t in backup.tensors["weights"].values())
