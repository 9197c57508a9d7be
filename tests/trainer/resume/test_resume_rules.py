"""What may change between a backup and the run that resumes from it."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from modules.trainer.resume.resume_rules import FREE, LENGTH, PART_FREE, check_resumable, check_same_start
from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.embedding.EmbeddingConfig import EmbeddingConfig
from modules.util.config.faults import unwrap
from modules.util.config.section.RewardConfig import AcceleratorConfig, RewardConfig
from modules.util.config.setting import setting
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import ConfigError


def config(**changes: Any) -> TrainConfig:
    return TrainConfig.from_dict(changes)


def refused(before: TrainConfig, now: TrainConfig) -> list[str]:
    """The lines of the refusal; none if the run may resume."""
    try:
        check_resumable(now, before.to_dict())
    except ConfigError as error:
        head, *lines = error.message.splitlines()
        assert head == "the run cannot resume from its backup with other settings:"
        assert error.hint
        return [line.strip() for line in lines]
    return []


def another(value: Any) -> Any:
    """A different value of the same kind."""
    if isinstance(value, Enum):
        return next(member for member in type(value) if member is not value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, str):
        return f"{value}x"
    if isinstance(value, list):
        return value[:-1]
    return 0.5  # empty until now


def leaves() -> list[tuple[str, str | None]]:
    """(field, field inside it) of every setting."""
    made: list[tuple[str, str | None]] = []
    default = TrainConfig()
    for name in TrainConfig.model_fields:
        value = getattr(default, name)
        inner = getattr(type(value), "model_fields", None)
        made += [(name, key) for key in inner] if inner else [(name, None)]
    return made


def changed(name: str, inner: str | None) -> tuple[TrainConfig, str]:
    """A config with one other value, and that value as JSON has it."""
    made = TrainConfig().copy_of()
    holder, key = (made, name) if inner is None else (getattr(made, name), inner)
    filled: dict[str, Any] = {
        "params": {"amsgrad": True},
        "rlhf_rewards": [RewardConfig()],
        "additional_embeddings": [EmbeddingConfig()],
        "shared": [AcceleratorConfig(name="attention_backend")],
        "rollout": [AcceleratorConfig(name="diffusers_cache")],
    }
    fresh = filled.get(key) or another(getattr(holder, key))
    if name in ("concepts", "samples"):
        fresh = []
    object.__setattr__(holder, key, fresh)
    plain = made.to_dict()[name]
    return made, str(plain if inner is None else plain[inner])


def test_the_lists_name_real_settings_and_no_setting_twice() -> None:
    known = TrainConfig().to_dict().keys()
    assert known >= FREE | LENGTH
    assert not FREE & LENGTH
    parts = {
        key for name in ("unet", "text_encoder", "vae", "remote") for key in TrainConfig().to_dict()[name]
    }
    assert parts >= PART_FREE


@pytest.mark.parametrize(("name", "inner"), leaves(), ids=lambda value: value or "")
def test_every_setting_is_free_or_compared(name: str, inner: str | None) -> None:
    before, (now, value) = TrainConfig(), changed(name, inner)
    lines = refused(before, now)
    if name in FREE | LENGTH or inner in PART_FREE:
        assert lines == []
    else:
        former = before.to_dict()[name]
        former = former if inner is None else former[inner]
        label = name if inner is None else f"{name}.{inner}"
        assert lines == [f"{label}: {former} in the backup, {value} now"]


def test_the_same_settings_may_resume() -> None:
    assert refused(config(seed=3), config(seed=3)) == []


def test_all_changed_settings_are_listed_and_free_ones_are_not() -> None:
    before = config(seed=1, rlhf_dpo_beta=100.0, workspace_dir="a", optimizer={"beta1": 0.9})
    now = config(
        seed=2,
        rlhf_dpo_beta=200.0,
        workspace_dir="b",
        optimizer={"optimizer": "LION", "beta1": 0.8, "params": {"cautious": True}},
        unet={"gradient_checkpointing": False, "learning_rate": 0.5},
        rlhf_dpo_validation_draws=2,
    )
    assert refused(before, now) == [
        "seed: 1 in the backup, 2 now",
        "unet.learning_rate: None in the backup, 0.5 now",
        "optimizer.beta1: 0.9 in the backup, 0.8 now",
        "optimizer.optimizer: ADAMW in the backup, LION now",
        "optimizer.params: {} in the backup, {'cautious': True} now",
        "rlhf_dpo_beta: 100.0 in the backup, 200.0 now",
    ]


CONSTANT: dict[str, Any] = {"learning_rate_scheduler": "CONSTANT"}


@pytest.mark.parametrize(
    ("settings", "free"),
    [
        (CONSTANT, True),
        ({**CONSTANT, "learning_rate_warmup_steps": 20.0}, True),
        ({**CONSTANT, "learning_rate_warmup_steps": 0.1}, False),
        ({**CONSTANT, "learning_rate_warmup_steps": 1.0}, False),
        ({"learning_rate_scheduler": "LINEAR"}, False),
        ({"learning_rate_scheduler": "COSINE", "learning_rate_warmup_steps": 20.0}, False),
        ({"learning_rate_scheduler": "REX"}, False),
    ],
)
def test_the_length_may_change_where_the_rate_does_not_depend_on_it(
    settings: dict[str, Any], free: bool
) -> None:
    before, now = config(**settings, epochs=5), config(**settings, epochs=9, max_steps=100)
    lines = ["epochs: 5 in the backup, 9 now", "max_steps: 0 in the backup, 100 now"]
    assert refused(before, now) == ([] if free else lines)


def test_rates_that_the_optimizer_ignores_may_be_emptied() -> None:
    relative = {"optimizer": "ADAFACTOR", "params": {"relative_step": True, "scale_parameter": False}}
    given: dict[str, Any] = {
        "learning_rate": 3e-4, "embedding_learning_rate": 1e-3, "unet": {"learning_rate": 1e-3},
        "text_encoder": {"learning_rate": 1e-5, "train": True},
    }  # fmt: skip
    empty: dict[str, Any] = {"text_encoder": {"train": True}}
    assert refused(config(**given, optimizer=relative), config(**empty, optimizer=relative)) == []
    fixed = {**relative, "params": {"scale_parameter": False}}
    assert len(refused(config(**given, optimizer=fixed), config(**empty, optimizer=fixed))) == 4


def concepts(*given: dict[str, Any], **changes: Any) -> TrainConfig:
    return config(concepts=list(given), **changes)


def test_settings_of_concepts_that_change_the_training_are_refused() -> None:
    plain: dict[str, Any] = {"name": "cats", "path": "there/cats", "image": {"enable_crop_jitter": False}}
    held_back = {"path": "there/validation", "type": "VALIDATION"}
    before = concepts(plain, held_back)
    for changes, line in (
        ({"balancing": 2.0}, "balancing: 1.0 in the backup, 2.0 now"),
        ({"loss_weight": 0.5}, "loss_weight: 1.0 in the backup, 0.5 now"),
        ({"type": "PRIOR_PREDICTION"}, "type: STANDARD in the backup, PRIOR_PREDICTION now"),
        ({"seed": 7}, "seed: 0 in the backup, 7 now"),
        ({"image": {**plain["image"], "enable_fixed_flip": True}},
         "image.enable_fixed_flip: False in the backup, True now"),
        ({"text": {"enable_tag_shuffling": True}}, "text.enable_tag_shuffling: False in the backup, True now"),
    ):  # fmt: skip
        assert refused(before, concepts({**plain, **changes}, held_back)) == [f"concept 'cats': {line}"]
    # images and captions are compared by content, and what is only measured may be another
    moved = {**plain, "path": "here/cats", "text": {"prompt_path": "cats.txt", "prompt_source": "concept"}}
    assert refused(before, concepts(moved, {**held_back, "loss_weight": 2.0})) == []
    assert refused(before, concepts({**plain, "name": "dogs"}, {"path": "more", "enabled": False}, held_back)) == []


def test_augmentations_do_not_matter_for_pairs() -> None:
    sides = [{"path": kind, "type": f"DPO_{kind}"} for kind in ("CHOSEN", "REJECTED")]
    other = [{**side, "seed": 3, "image": {"enable_random_flip": True}, "image_variations": 5} for side in sides]
    before = concepts(*sides, rlhf_enabled=True)
    assert refused(before, concepts(*other, rlhf_enabled=True, latent_caching=False)) == []
    repeated = concepts({**sides[0], "balancing": 2.0}, sides[1], rlhf_enabled=True)
    assert refused(before, repeated) == ["concept 'CHOSEN': balancing: 1.0 in the backup, 2.0 now"]


@pytest.mark.parametrize(
    ("side", "changes", "more", "told"),
    [
        (0, {"loss_weight": 2.0}, {}, False),
        (0, {"loss_weight": 2.0}, {"rlhf_supervised_mix": 0.5}, True),
        (1, {"loss_weight": 2.0}, {"rlhf_supervised_mix": 0.5}, False),
        (1, {"balancing": 2.0}, {}, False),
        (1, {"balancing": 2.0}, {"rlhf_dpo_objective": "KTO"}, True),
        (1, {"image": {"resolution_override": "640"}}, {}, False),
    ],
)
def test_settings_of_pairs_that_have_no_effect_may_change(
    side: int, changes: dict[str, Any], more: dict[str, Any], told: bool
) -> None:
    sides = [{"path": kind, "type": f"DPO_{kind}"} for kind in ("CHOSEN", "REJECTED")]
    other = [{**one, **(changes if number == side else {})} for number, one in enumerate(sides)]
    before, now = (concepts(*given, rlhf_enabled=True, **more) for given in (sides, other))
    assert len(refused(before, now)) == told


@pytest.mark.parametrize(
    "changes",
    [
        {"image_variations": 4},
        {"image": {"enable_crop_jitter": False, "random_rotate_max_angle": 30.0}},
        {"image": {"enable_crop_jitter": False, "resolution_override": "640"}},
        {"text": {"tag_dropout_probability": 0.5}},
    ],
)
def test_settings_of_images_whose_switch_is_off_may_change(changes: dict[str, Any]) -> None:
    plain: dict[str, Any] = {"path": "cats", "image": {"enable_crop_jitter": False}}
    assert refused(concepts(plain), concepts({**plain, **changes})) == []


def test_caching_may_change_where_every_visit_of_an_image_is_the_same() -> None:
    plain: dict[str, Any] = {"path": "cats", "image": {"enable_crop_jitter": False}}
    assert refused(concepts(plain), concepts(plain, latent_caching=False)) == []
    line = "latent_caching: True in the backup, False now"
    for random in ({"image": {}}, {"text": {"tag_dropout_enable": True}}):
        varied = {**plain, **random}
        assert refused(concepts(varied), concepts(varied, latent_caching=False)) == [line]


def test_a_list_of_concepts_in_a_file_is_compared(tmp_path: Path) -> None:
    file = tmp_path / "concepts.json"
    now = config(concept_file_name=str(file))
    before = concepts({"path": "cats"}, concept_file_name=str(file))
    file.write_text('[{"path": "cats", "balancing": 3.0}]')
    assert refused(before, now) == ["concept 'cats': balancing: 1.0 in the backup, 3.0 now"]
    file.write_text('[{"path": "cats"}]')
    assert refused(before, now) == []


def test_a_backup_of_before_a_setting_existed_has_its_default() -> None:
    saved = config(seed=3).to_dict()
    del saved["rlhf_dpo_beta"]
    check_resumable(config(seed=3), saved)
    default = TrainConfig().rlhf_dpo_beta
    with pytest.raises(ConfigError, match=f"rlhf_dpo_beta: {default} in the backup, 7.0 now"):
        check_resumable(config(seed=3, rlhf_dpo_beta=7.0), saved)


@pytest.mark.parametrize("mode", ["GRPO", "NFT", "DGPO"])
def test_noise_levels_that_an_online_mode_does_not_apply_may_change(mode: str) -> None:
    """Built-in presets of these modes once set them."""
    online = {"model_type": "FLUX_DEV_1", "rlhf_enabled": True, "rlhf_mode": mode}
    former = {"timestep_distribution": "LOGIT_NORMAL", "timestep_shift": 3.0}
    assert refused(config(**online, **former), config(**online)) == []
    pairs = {**online, "rlhf_mode": "DPO"}
    for before in (config(**pairs, **former), config(**online, **former)):
        lines = refused(before, config(**pairs))
        assert "timestep_shift: 3.0 in the backup, 1.0 now" in lines
        assert "timestep_distribution: LOGIT_NORMAL in the backup, UNIFORM now" in lines


@pytest.mark.parametrize("names", [("", "a.safetensors"), ("a.safetensors", "")])
def test_a_preference_run_keeps_its_kind_of_reference(names: tuple[str, str]) -> None:
    before, now = (config(lora_model_name=name, rlhf_enabled=True) for name in names)
    check_same_start(before, before.to_dict(), {}, 1)
    with pytest.raises(ConfigError, match="the reference was"):
        check_same_start(now, before.to_dict(), {}, 1)
    check_same_start(config(lora_model_name=names[1]), before.to_dict(), {}, 1)


def test_a_run_keeps_its_number_of_processes() -> None:
    same = config()
    check_same_start(same, same.to_dict(), {"processes": 2}, 2)
    with pytest.raises(ConfigError, match="started with 2 processes and cannot resume with 1"):
        check_same_start(same, same.to_dict(), {"processes": 2}, 1)


def undecided(model: type[BaseConfig], prefix: str = "") -> list[str]:
    """Settings that do not say whether they may change before a run is resumed."""
    found: list[str] = []
    for name, field in model.model_fields.items():
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        if not isinstance(extra.get("free"), bool):
            found.append(f"{prefix}{name}")
        plain, _ = unwrap(field.annotation)
        if isinstance(plain, type) and issubclass(plain, BaseConfig):
            assert extra.get("free") is False, "a group is not free as a whole: its members say it"
            found += undecided(plain, f"{prefix}{name}.")
    return found


def test_every_setting_says_whether_it_may_change() -> None:
    assert undecided(TrainConfig) == []


def test_a_setting_that_does_not_say_is_found() -> None:
    class Extended(TrainConfig):
        sparkle: bool = setting(False, title="Sparkle", tip="Whether images glitter.")

    assert undecided(Extended) == ["sparkle"]


def test_rewards_whose_files_moved_with_the_run_are_the_same(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    for folder in (there, here):
        folder.mkdir()
        (folder / "taste.safetensors").touch()

    def judged(folder: Path, **params: object) -> TrainConfig:
        weights = str(folder / str(params.pop("file", "taste.safetensors")))
        given = {"weights": weights, "source": str(folder / "base"), "guard": 10.0, **params}
        rewards = [{"reward": "preference_head", "name": "taste", "params": given}]
        return TrainConfig.from_dict({"base_model_name": str(folder / "base"), "rlhf_rewards": rewards})

    before = judged(there).to_dict()
    with pytest.raises(ConfigError, match="rlhf_rewards"):
        check_resumable(judged(here), before)
    (there / "taste.safetensors").unlink()
    check_resumable(judged(here), before)
    (here / "other.safetensors").touch()
    for other in (
        judged(here, file="other.safetensors"),
        judged(here, file="none.safetensors"),
        judged(here, guard=1.0),
        judged(here, source="elsewhere"),
    ):
        with pytest.raises(ConfigError, match="rlhf_rewards"):
            check_resumable(other, before)
