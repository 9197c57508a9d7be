"""Configs that cases begin with: small runs in which as many settings as possible act at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.house.acts.case import shared_folder
from tests.tiny import small_folder

CAPTIONS = (
    "red circle, blue square, small dog",
    "large cat, green triangle, left",
    "photo, red square",
    "Blue dog, right, small",
)
PROMPTS = "a red circle\na blue square\na green triangle\na large cat\n"
SAMPLE = {"prompt": "a red circle", "width": 64, "height": 64, "diffusion_steps": 2, "cfg_scale": 2.0}


def _images(folder: Path) -> None:
    """Noise, brighter in ``chosen``, in two shapes; one more image in a folder within ``chosen``."""
    rng = np.random.default_rng(1)
    for side, low in (("chosen", 100), ("rejected", 0), ("chosen/within", 50)):
        (folder / side).mkdir()
        for number, caption in enumerate(CAPTIONS if "/" not in side else CAPTIONS[:1]):
            width, height = ((32, 32), (64, 32))[number % 2]
            pixels = rng.integers(low, low + 150, (height, width, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / side / f"{number:03d}.png")
            (folder / side / f"{number:03d}.txt").write_text(caption, encoding="utf-8")
    Image.fromarray(rng.integers(0, 255, (40, 56, 3), dtype=np.uint8)).save(folder / "chosen/within/odd.png")
    (folder / "chosen/within/odd.txt").write_text("photo", encoding="utf-8")
    sure = {"000": 0.99, "001": 0.6, "002": 0.75, "003": 0.5}
    (folder / "chosen/confidence.json").write_text(json.dumps(sure), encoding="utf-8")
    # what the chosen images were made from: the images of one folder, or of the other
    for name, low in (("before", 0), ("before-other", 120)):
        (folder / name).mkdir()
        for number in range(len(CAPTIONS)):
            width, height = ((32, 32), (64, 32))[number % 2]
            pixels = rng.integers(low, low + 100, (height, width, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number:03d}.png")
    (folder / "edited").mkdir()
    for number, caption in enumerate(CAPTIONS):
        pixels = np.array(Image.open(folder / "chosen" / f"{number:03d}.png"))
        pixels[:8, :8] = 255 - pixels[:8, :8] // 2
        Image.fromarray(pixels).save(folder / "edited" / f"{number:03d}.png")
        (folder / "edited" / f"{number:03d}.txt").write_text(caption, encoding="utf-8")
    for masks, across in (("masks", 2), ("other-masks", 4)):
        (folder / masks).mkdir()
        for number in range(4):
            width, height = ((32, 32), (64, 32))[number % 2]
            levels = np.zeros((height, width), dtype=np.uint8)
            levels[:, : width // across] = 255
            Image.fromarray(levels).save(folder / masks / f"{number:03d}.png")
            if across == 4:
                Image.fromarray(255 - levels).save(folder / "chosen" / f"{number:03d}-masklabel.png")
                Image.fromarray(levels).save(folder / "chosen" / f"{number:03d}-condlabel.png")
    (folder / "emphasis.txt").write_text("a (red:1.5) circle\n", encoding="utf-8")
    (folder / "long.txt").write_text("a red circle on the left of a blue square " * 3, encoding="utf-8")
    (folder / "lines.txt").write_text("a green dog\n", encoding="utf-8")
    (folder / "prompts.txt").write_text(PROMPTS, encoding="utf-8")
    (folder / "other.txt").write_text("a cat\na dog\n", encoding="utf-8")


def image_folder() -> Path:
    """What all configs train on; only to be read."""
    return shared_folder("images", _images)


def concept(kind: str = "STANDARD", side: str = "chosen", **more: Any) -> dict[str, Any]:
    return {"name": f"{side} {kind}", "path": str(image_folder() / side), "type": kind, **more}


def pictures(folder: Path) -> dict[str, Any]:
    """Supervised training of a LoRA; nothing in it hides the size of a gradient."""
    return {
        "rlhf_enabled": False,
        "concepts": [concept()],
        "batch_size": 2,
        "epochs": 2,
        "optimizer.optimizer": "SGD",
        "learning_rate": 0.5,
        "clip_grad_norm": 0.0,
        "learning_rate_scheduler": "COSINE_WITH_RESTARTS",
        "learning_rate_warmup_steps": 1.5,
        "learning_rate_cycles": 1.7,
        "learning_rate_min_factor": 0.25,
        "ema": "CPU",
        "ema_update_step_interval": 1,
        "ema_decay": 0.5,
        "huber_strength": 0.5,
        "loss_weight_fn": "MIN_SNR_GAMMA",
        "timestep_distribution": "LOGIT_NORMAL",
        "layer_filter_preset": "custom",
        "layer_filter": "attn2.to_q,attn1.to_q",
        "unet.gradient_checkpointing": False,
    }


def masked(folder: Path) -> dict[str, Any]:
    """Training on parts of images."""
    own = concept(mask_path=str(image_folder() / "masks"))
    return {**pictures(folder), "concepts": [own], "masked_training": True, "unmasked_probability": 0.0}


def inpainted(folder: Path) -> dict[str, Any]:
    """Training of a model that paints into images."""
    key = "STABLE_DIFFUSION_15_INPAINTING"
    return {**masked(folder), "model_type": key, "base_model_name": str(small_folder(key))}


def concepts(folder: Path) -> dict[str, Any]:
    """What training sees of a concept whose captions and images are changed at random."""
    own = concept(
        seed=3,
        image_variations=3,
        text_variations=3,
        text={"tag_dropout_enable": True, "tag_dropout_mode": "RANDOM", "tag_dropout_probability": 0.5},
    )
    return {**pictures(folder), "concepts": [own], "batch_size": 1, "epochs": 3}


def sampled(folder: Path) -> dict[str, Any]:
    """One step, then a sample."""
    return {
        **pictures(folder),
        "max_steps": 1,
        "samples": [SAMPLE],
        "sample_after": 1,
        "sample_after_unit": "STEP",
    }


def pairs(folder: Path) -> dict[str, Any]:
    """DPO on pairs."""
    return {
        **pictures(folder),
        "rlhf_enabled": True,
        "concepts": [concept("DPO_CHOSEN"), concept("DPO_REJECTED", "rejected")],
        "rlhf_dpo_beta": 50.0,
        "ema": "OFF",
        "loss_weight_fn": "CONSTANT",
    }


def masked_pairs(folder: Path) -> dict[str, Any]:
    """DPO on images and their edited versions."""
    own = [concept("DPO_CHOSEN"), concept("DPO_REJECTED", "edited")]
    return {**pairs(folder), "concepts": own, "rlhf_dpo_mask": "DIFFERENCE"}


def validated_pairs(folder: Path) -> dict[str, Any]:
    """DPO with a validation after every step.

    The steps are so long that the loss gets better in the second validation and worse in the third, the accuracy in
    neither, and both by far more than rounding.
    """
    return {
        **pairs(folder),
        "learning_rate": 50.0,
        "rlhf_dpo_validation": True,
        "rlhf_dpo_validation_percentage": 40.0,
        "rlhf_dpo_validation_draws": 2,
        "rlhf_dpo_patience_enabled": True,
        "rlhf_dpo_patience_value": 1,
        "rlhf_dpo_patience_metrics": ["val_loss"],
        "validate_after": 1,
        "validate_after_unit": "STEP",
    }


def _online(mode: str) -> dict[str, Any]:
    return {
        "base_model_name": str(small_folder(prediction="v_prediction")),
        "concepts": [],
        "rlhf_enabled": True,
        "rlhf_mode": mode,
        "rlhf_prompts_file": str(image_folder() / "prompts.txt"),
        "rlhf_prompts_per_epoch": 2,
        "rlhf_group_size": 4,
        "rlhf_rollout_steps": 3,
        "rlhf_reward": "brightness",
        "rlhf_clip_range_low": 1e-3,
        "rlhf_clip_range_high": 1e-3,
        "rlhf_timestep_range_high": 1.0,
        "batch_size": 4,
        "epochs": 1,
        "optimizer.optimizer": "SGD",
        "learning_rate": 1.0,
        "clip_grad_norm": 0.0,
        "rlhf_keep_images": 2,
        "layer_filter_preset": "custom",
        "layer_filter": "attn2.to_q,attn1.to_q",
        "unet.gradient_checkpointing": False,
    }


def _flowing(key: str, mode: str) -> dict[str, Any]:
    made = _online(mode)
    made.pop("unet.gradient_checkpointing")
    return {
        **made,
        "model_type": key,
        "base_model_name": str(small_folder(key)),
        "layer_filter": "to_q,to_k",
        "transformer.gradient_checkpointing": False,
    }


def grpo_flow(folder: Path) -> dict[str, Any]:
    """GRPO on a flow-matching model."""
    return _flowing("STABLE_DIFFUSION_3", "GRPO")


def nft_flow(folder: Path) -> dict[str, Any]:
    """NFT on a transformer that accelerators take."""
    return {
        **_flowing("FLUX_DEV_1", "NFT"),
        "rlhf_rollout_steps": 6,
        "max_steps": 1,
        "acceleration.shared": [{"name": "attention_backend", "params": {"backend": "native"}}],
        "acceleration.rollout": [{"name": "diffusers_cache", "params": {"threshold": 10.0}}],
    }


def rewarded(folder: Path) -> dict[str, Any]:
    """GRPO with two rewards."""
    rewards = [
        {"reward": "brightness", "weight": 1.0, "params": {}},
        {"reward": "contrast", "weight": 1.0, "params": {}},
    ]
    return {**_online("GRPO"), "rlhf_rewards": rewards, "max_steps": 1}


def grpo(folder: Path) -> dict[str, Any]:
    return _online("GRPO")


def gspo(folder: Path) -> dict[str, Any]:
    return _online("GSPO")


def dgpo(folder: Path) -> dict[str, Any]:
    return _online("DGPO")


def nft(folder: Path) -> dict[str, Any]:
    return _online("NFT")


def online_dpo(folder: Path) -> dict[str, Any]:
    return _online("ONLINE_DPO")


def _family(key: str, denoiser: str, size: str = "32") -> dict[str, Any]:
    made = pictures(Path())
    made.pop("unet.gradient_checkpointing")
    return {
        **made,
        "model_type": key,
        "base_model_name": str(small_folder(key)),
        "resolution": size,
        "max_steps": 1,
        "loss_weight_fn": "CONSTANT",
        "layer_filter": "to_q,to_k",
        f"{denoiser}.gradient_checkpointing": False,
    }


def stable_diffusion_xl(folder: Path) -> dict[str, Any]:
    return _family("STABLE_DIFFUSION_XL_10_BASE", "unet")


def stable_diffusion_3(folder: Path) -> dict[str, Any]:
    return _family("STABLE_DIFFUSION_3", "transformer")


def hidream(folder: Path) -> dict[str, Any]:
    return _family("HI_DREAM_FULL", "transformer")


def pixart(folder: Path) -> dict[str, Any]:
    return _family("PIXART_ALPHA", "transformer")


def chroma(folder: Path) -> dict[str, Any]:
    return _family("CHROMA_1", "transformer")


def paints(folder: Path) -> dict[str, Any]:
    """Training a model that paints into images, and a sample that is painted into one."""
    shown = {"base_image_path": "chosen/000.png", "mask_image_path": "masks/000.png"}
    return {
        **inpainted(folder),
        "samples": [{**SAMPLE, **{name: str(image_folder() / path) for name, path in shown.items()}}],
        "sample_after": 1,
        "sample_after_unit": "STEP",
    }


def edits(folder: Path) -> dict[str, Any]:
    """Training a model that edits images, and a sample of it."""
    before = image_folder() / "before"
    return {
        **_family("FLUX_KONTEXT_DEV_1", "transformer"),
        "concepts": [concept(source_path=str(before))],
        "samples": [{**SAMPLE, "source_path": str(before / "000.png")}],
        "sample_after": 1,
        "sample_after_unit": "STEP",
    }


def flux(folder: Path) -> dict[str, Any]:
    return _family("FLUX_DEV_1", "transformer")
