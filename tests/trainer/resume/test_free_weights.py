"""Settings that may change when a run is resumed leave the weights of every further step equal to the last bit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from modules.trainer.resume.resume_rules import FREE, PART_FREE
from modules.util.config.BaseConfig import VERSION_KEY
from tests.house.acts.bases import SAMPLE, concept, grpo, image_folder, nft, pairs, pictures
from tests.house.acts.case import Base, as_data, fresh_folder, write
from tests.house.acts.model_cases import other_model
from tests.house.acts.outcomes import Outcome, run
from tests.house.acts.run_cases import lists
from tests.house.acts.training_cases import adapter
from tests.tiny import small_folder, tiny_folder
from tests.trainer.builders import run_here, write_config, write_pairs
from tests.usual import usual

BACKED_UP = {"backup_after": 2, "backup_after_unit": "STEP", "epochs": 2}
"""Four steps, and a backup after the second."""


@dataclass(frozen=True)
class Group:
    """Settings that change together when a run is resumed.

    Args:
        name: for people.
        base, given: the run.
        changes: their other values.
        before: done in the run's folder before it is resumed.
        steps: how many further steps are taken.
    """

    name: str
    base: Base
    given: dict[str, Any]
    changes: dict[str, Any]
    before: Callable[[Path], None] = lists
    steps: int = 2


def copied(name: str, make: Callable[[], Path | str]) -> Callable[[Path], str]:
    """A copy of a file or folder, under another name, in the run's folder."""

    def copy(folder: Path) -> str:
        source, target = Path(make()), folder / name
        if not target.exists():
            (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)
        return str(target)

    return copy


def moved(folder: Path) -> None:
    lists(folder)
    shutil.move(folder / "run", folder / "moved")


def _plain(folder: Path) -> list[dict[str, Any]]:
    return [{**concept(), "image": {"enable_crop_jitter": False}}]


def _validated(folder: Path) -> list[dict[str, Any]]:
    return [concept(), concept("VALIDATION", "rejected")]


def _listed_again(folder: Path) -> str:
    return str(shutil.copyfile(folder / "one.json", folder / "again.json"))


def _pairs_elsewhere(folder: Path) -> list[dict[str, Any]]:
    copy = Path(copied("copy", image_folder)(folder))
    sides = (("DPO_CHOSEN", "chosen"), ("DPO_REJECTED", "rejected"))
    return [{**concept(kind, side), "path": str(copy / side)} for kind, side in sides]


LEFT_BEHIND = {
    "backup_after": 1,
    "backup_after_unit": "EPOCH",
    "backup_each_tenth": False,
    "rolling_backup_count": 1,
    "backup_before_save": True,
    "save_every": 1,
    "save_every_unit": "STEP",
    "save_skip_first": 1,
    "save_filename_prefix": "mine-",
    "samples": [SAMPLE],
    "sample_after": 1,
    "sample_after_unit": "STEP",
    "sample_skip_first": 1,
    "sample_image_format": "PNG",
    "sample_model_name": lambda folder: other_model("STABLE_DIFFUSION_15"),
    "non_ema_sampling": True,
    "tensorboard": True,
    "tensorboard_port": 6007,
    **{
        f"remote.{name}": "elsewhere"
        for name in ("host", "user", "key_file", "directory", "python", "proxy_jump")
    },
    "remote.port": 2222,
    "output_model_destination": lambda folder: str(folder / "other.safetensors"),
    "output_model_format": "DIFFUSERS_LORA",
    "output_dtype": "BFLOAT_16",
    "bundle_additional_embeddings": False,
    "prevent_overwrites": True,
    "nan_patience": 3,
}
GROUPS = [
    Group("what is left behind", pictures, {}, LEFT_BEHIND),
    Group("how it computes", pictures, {"text_encoder.train": True, "concepts": _plain}, {
        "unet.gradient_checkpointing": True,
        "unet.activation_offloading": True,
        "text_encoder.gradient_checkpointing": False,
        "dataloader_threads": 3,
        "latent_caching": False,
        "cache_batch_size": 1,
        "train_device": "auto",
        "rolling_backup": False,
        "sample_before_training": True,
    }),
    Group("another workspace", pictures, {"samples": None}, {
        "workspace_dir": lambda folder: str(folder / "moved"),
        "sample_definition_file_name": lambda folder: str(folder / "sample.json"),
        "unet.model_name": copied("unet", lambda: small_folder() / "unet"),
        "text_encoder.model_name": copied("text", lambda: small_folder() / "text_encoder"),
    }, moved),
    Group("validation", pictures, {"concepts": _validated}, {
        "validation": True,
        "validate_after": 2,
        "validate_after_unit": "STEP",
        "validation_draws": 2,
    }),
    Group("the same elsewhere", pairs, {
        "lora_model_name": lambda folder: adapter(),
        "training_adapter.model_name": lambda folder: adapter(),
    }, {
        "base_model_name": copied("base", small_folder),
        "vae.model_name": copied("vae", lambda: small_folder() / "vae"),
        "training_adapter.model_name": copied("undo.safetensors", adapter),
        "lora_model_name": copied("start.safetensors", adapter),
        "concepts": _pairs_elsewhere,
        "cache_dir": lambda folder: str(folder / "other-cache"),
    }),
    Group("a list of concepts in another file", pictures, {
        "concepts": None,
        "concept_file_name": lambda folder: str(folder / "one.json"),
    }, {"concept_file_name": _listed_again}),
    Group("validated pairs", pairs, {
        "rlhf_dpo_validation": True,
        "rlhf_dpo_validation_percentage": 40.0,
        "validate_after": 1,
        "validate_after_unit": "STEP",
        "rlhf_dpo_patience_enabled": True,
        "rlhf_dpo_patience_value": 20,
    }, {
        "rlhf_dpo_validation_draws": 2,
        "rlhf_dpo_save_best": False,
        "rlhf_dpo_patience_value": 30,
        "rlhf_dpo_patience_mode": "BOTH",
        "rlhf_dpo_patience_metrics": ["val_loss"],
        "rlhf_dpo_timestep_margin_logging": True,
    }),
    Group("stopping early", pairs, {
        # one that stops after four steps
        "base_model_name": lambda folder: str(tiny_folder()),
        "rlhf_dpo_validation": True,
        "rlhf_dpo_validation_percentage": 40.0,
        "validate_after": 1,
        "validate_after_unit": "STEP",
        "rlhf_dpo_patience_metrics": ["val_loss"],
        "epochs": 3,
    }, {"rlhf_dpo_patience_enabled": True, "rlhf_dpo_patience_value": 1}),
    Group("only the cache", pictures, {}, {"only_cache": True}, steps=0),
    Group("places of online training", nft, {}, {
        "rlhf_ema_ref_device": "CPU",
        "rlhf_reward_swap": True,
        "rlhf_reward_device": "cpu",
        "rlhf_keep_images": 1,
        "rlhf_keep_image_epochs": 1,
        "rlhf_prompts_file": copied("prompts.txt", lambda: image_folder() / "prompts.txt"),
        "unet.gradient_checkpointing": True,
    }),
    Group("checks of ratios", grpo, {}, {"rlhf_ratio_check": "OFF", "rlhf_ratio_tolerance": 0.5}),
]  # fmt: skip
NO_PROOF = {
    VERSION_KEY: "of the file's format, not a setting",
    "continue_last_backup": "what resuming is: changed in every case here",
    "rlhf_dpo_ref_mode": "worked out of lora_model_name, and compared as what it means",
}


def resumed(group: Group) -> tuple[Outcome, Outcome]:
    """A whole run, and the same resumed after its second step with the settings of the group changed."""
    with fresh_folder() as folder:
        lists(folder)
        given = {**BACKED_UP, **group.given}
        whole = run(folder, write(folder, group.base, given))
        for backup in (folder / "run" / "backup").iterdir():
            if "-backup-2-" not in backup.name:
                shutil.rmtree(backup)
        group.before(folder)
        (folder / "out.safetensors").unlink()
        changes = {**given, **group.changes, "continue_last_backup": True}
        return whole, run(folder, write(folder, group.base, changes))


VALIDATED = ("validation", "validated pairs", "stopping early")
"""A validation moves no weight and no draw, see test_validation.py: these are slow tests."""


@pytest.mark.parametrize(
    "group",
    usual(GROUPS, *(group for group in GROUPS if group.name not in VALIDATED)),
    ids=lambda group: group.name,
)
def test_every_further_step_makes_the_same_weights(group: Group) -> None:
    whole, again = resumed(group)
    assert not whole.refused
    assert not again.refused
    assert whole.work.weights.keys() >= {1, 2, 3, 4}
    assert list(again.work.weights) == [3, 4][: group.steps]
    assert again.work.weights.items() <= whole.work.weights.items()


def test_weights_that_would_differ_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modules.trainer.GenericTrainer.check_resumable", lambda *_: None)
    whole, again = resumed(Group("", pictures, {}, {"learning_rate": 0.50001}))
    assert list(again.work.weights) == [3, 4]
    assert again.work.weights[4] != whole.work.weights[4]


def test_every_free_setting_is_proved_and_no_other() -> None:
    """A part stands for the others: what frees them is said in one place."""
    paths = [path for group in GROUPS for path in group.changes]
    proved = {last if (last := path.rpartition(".")[2]) in PART_FREE else path for path in paths}
    wanted = FREE | PART_FREE
    assert sorted(wanted - proved - NO_PROOF.keys()) == []
    assert sorted(proved - wanted) == []
    assert not proved & NO_PROOF.keys()


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_every_change_of_a_group_is_one(group: Group) -> None:
    with fresh_folder() as folder:
        lists(folder)
        before = as_data(write(folder, group.base, {**BACKED_UP, **group.given}))
        after = as_data(write(folder, group.base, {**BACKED_UP, **group.given, **group.changes}))
    different = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert [p for p in group.changes if not any(f"{name}.".startswith(f"{p}.") for name in different)] == []


def weights(folder: Path, concepts: list[dict[str, Any]], **changes: Any) -> dict[str, torch.Tensor]:
    run_here(write_config(folder, concepts=concepts, epochs=1, **changes))
    return load_file(folder / "out.safetensors")


def test_a_cache_that_knows_other_pairs_leaves_every_bit(tmp_path: Path) -> None:
    """Images and prompts were encoded in the company of a pair that is gone."""
    concepts = write_pairs(tmp_path / "data", 5, ((32, 32), (64, 32)))
    weights(tmp_path / "five", concepts, cache_dir=str(tmp_path / "shared"))
    for side in ("chosen", "rejected"):
        for end in ("png", "txt"):
            (tmp_path / "data" / side / f"000.{end}").unlink()
    found = weights(tmp_path / "four", concepts, cache_dir=str(tmp_path / "shared"))
    fresh = weights(tmp_path / "fresh", concepts)
    assert found.keys() == fresh.keys()
    assert all(torch.equal(found[key], tensor) for key, tensor in fresh.items())
