"""Every preset that comes with the program can be loaded, is free of faults and fits its family."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest

from modules.spec.starting_values import STARTING_VALUES
from modules.util.config.load import check_config, find_problems, load_config
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import TrainingMethod
from modules.util.enum.ModelType import ModelType
from modules.util.enum.RLHFMode import RLHFMode
from tests.usual import usual

FOLDER = Path(__file__).resolve().parents[3] / "training_presets"
PRESETS = sorted(FOLDER.glob("**/#?*.json"))


@cache
def loaded(path: Path) -> TrainConfig:
    """A preset, read once for all tests, which do not change it."""
    return load_config(path)


LEFT_OUT = {
    ModelType.STABLE_DIFFUSION_20,
    ModelType.STABLE_DIFFUSION_20_BASE,
    ModelType.STABLE_DIFFUSION_20_INPAINTING,
    ModelType.STABLE_DIFFUSION_21_BASE,
}
"""Those of Stable Diffusion 2.1 do for them with another name of a model and another resolution."""


def test_every_family_has_presets_for_both_ways_of_training() -> None:
    configs = [loaded(path) for path in PRESETS if path.parent != FOLDER]
    for preferences in (False, True):
        families = {config.model_type for config in configs if config.rlhf_enabled is preferences}
        assert families == set(ModelType) - LEFT_OUT


def test_presets_for_models_that_predict_velocity() -> None:
    paths = [path for path in PRESETS if "v-prediction" in path.stem]
    assert [path.stem for path in paths] == ["#v-prediction DPO", "#v-prediction LoRA"]
    for config in map(loaded, paths):
        assert config.force_v_prediction and config.rescale_noise_scheduler_to_zero_terminal_snr


USUAL = [
    path
    for number, path in enumerate(PRESETS)
    if number % 5 == 0 or path.parent != PRESETS[number - 1].parent
]
"""The first preset of every folder and every fifth of all; who changes presets runs the slow tests of this folder."""


@pytest.mark.parametrize("path", usual(PRESETS, *USUAL), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_preset_is_right_and_sets_nothing_that_is_not_applied(path: Path) -> None:
    config = loaded(path)
    assert not find_problems(config).errors
    data = json.loads(path.read_text(encoding="utf-8"))
    parts = {part for family in ModelType for part in family.parts}
    foreign = (parts & data.keys()) - set(config.model_type.parts)
    assert not foreign, "settings of parts the family has not"
    if config.trains_online:
        assert not [one for one in check_config(config) if "is not applied" in one]
    elif config.model_type in ("KREA_2", "FLUX_2", "FLUX_2_DEV", "IDEOGRAM_4"):
        # by the size of images where the model's steps are, so that another resolution needs no other preset
        assert (config.timestep_distribution, config.dynamic_timestep_shifting) == ("LOGIT_NORMAL", True)


TABLE = re.compile(r"^\| (epsilon|v-prediction|flow matching): [^|]+\|(.+)\|$", re.MULTILINE)
COLUMNS = ("beta", "mix", "pairs", "images", "weights", "weights on pairs")


@cache
def usual_values() -> dict[str, dict[str, float]]:
    """The table in ``docs/methods.md``, by what a model predicts."""
    text = (FOLDER.parent / "docs" / "methods.md").read_text(encoding="utf-8")
    rows = {
        {"v-prediction": "v_prediction", "flow matching": "flow"}.get(kind, kind): row
        for kind, row in TABLE.findall(text)
    }
    return {kind: dict(zip(COLUMNS, map(float, row.split("|")), strict=True)) for kind, row in rows.items()}


def test_the_table_of_the_documents_is_the_one_of_the_program() -> None:
    table = usual_values()
    assert table.keys() == STARTING_VALUES.keys()
    for kind, row in table.items():
        values = STARTING_VALUES[kind]
        assert (row["beta"], row["mix"], row["pairs"]) == (values.beta, values.supervised_mix, values.rate)


EXAMPLES: dict[str, dict[str, object]] = {
    "Stable Diffusion 3.5/#DGPO.json": {
        "learning_rate": 3e-4,
        "resolution": "512",
        "rlhf_prompts_per_epoch": 8,
        "rlhf_group_size": 8,
        "rlhf_rollout_steps": 10,
        "rlhf_rollout_cfg_scale": 4.5,
        "rlhf_num_train_timesteps": 4,
        "rlhf_timestep_range_high": 0.6,
        "rlhf_dgpo_beta": 100.0,
        "rlhf_kl_beta": 0.001,
        "rlhf_clip_range_high": 0.05,
        "ema_decay": 0.9,
        "ema_update_step_interval": 8,
    },
    "FLUX.1/#dev GRPO.json": {
        "learning_rate": 3e-4,
        "resolution": "512",
        "lora_rank": 32,
        "lora_alpha": 64.0,
        "rlhf_advantage_ranked": True,
        "rlhf_prompts_per_epoch": 8,
        "rlhf_group_size": 4,
        "rlhf_rollout_steps": 10,
        "rlhf_rollout_cfg_scale": 3.5,
        "rlhf_rollout_noise_level": 0.7,
        "rlhf_sde_window": "1-3",
        "rlhf_num_sde_steps": 1,
        "rlhf_clip_range_low": 1e-4,
        "rlhf_clip_range_high": 1e-4,
        "ema_decay": 0.9,
    },
    "Stable Diffusion 3.5/#NFT.json": {
        "learning_rate": 1e-4,
        "resolution": "512",
        "rlhf_prompts_per_epoch": 8,
        "rlhf_group_size": 8,
        "rlhf_rollout_steps": 14,
        "rlhf_rollout_cfg_scale": 1.0,
        "rlhf_num_train_timesteps": 4,
        "rlhf_timestep_range_high": 0.5,
        "rlhf_nft_beta": 1.0,
        "rlhf_ema_ref_max_decay": 0.5,
    },
    "Z-Image/#NFT.json": {
        "learning_rate": 3e-4,
        "resolution": "512",
        "rlhf_prompts_per_epoch": 8,
        "rlhf_group_size": 4,
        "rlhf_rollout_steps": 10,
        "rlhf_rollout_cfg_scale": 4.0,
        "rlhf_num_train_timesteps": 2,
        "rlhf_nft_beta": 0.1,
    },
    "FLUX.2/#klein base 4B NFT.json": {
        "learning_rate": 1e-4,
        "resolution": "384",
        "rlhf_prompts_per_epoch": 8,
        "rlhf_group_size": 8,
        "rlhf_rollout_steps": 8,
        "rlhf_rollout_cfg_scale": 4.0,
        "rlhf_num_train_timesteps": 2,
        "rlhf_nft_beta": 0.1,
    },
}
"""Online presets with the values of published runs, made smaller for one card."""


@pytest.mark.parametrize(
    "path",
    usual([p for p in PRESETS if p.parent != FOLDER], *(p for p in USUAL if p.parent != FOLDER)),
    ids=lambda path: f"{path.parent.name}-{path.stem}",
)
def test_a_preset_starts_with_the_values_of_the_table(path: Path) -> None:
    config, table = loaded(path), usual_values()
    row = table["v_prediction" if config.force_v_prediction else config.model_type.spec.prediction]
    # one for a smaller card differs in the types of weights alone
    name = re.sub(r" \d+ GB\.json$", ".json", path.relative_to(FOLDER).as_posix())
    if name in EXAMPLES:
        data = json.loads(path.read_text(encoding="utf-8"))
        assert {key: data.get(key) for key in EXAMPLES[name]} == EXAMPLES[name]
        assert config.lora_alpha == 2 * config.lora_rank
        return
    if config.trains_pairs:
        found = (config.rlhf_dpo_beta, config.rlhf_supervised_mix, config.learning_rate)
        assert found == (row["beta"], row["mix"], row["pairs"])
    elif config.training_method is TrainingMethod.FINE_TUNE:
        assert config.learning_rate == row["weights"]
    else:
        assert config.learning_rate == row["images"]
    assert config.lora_alpha == config.lora_rank


ONLINE = [mode for mode in RLHFMode if mode.spec.online]


@pytest.mark.parametrize("mode", ONLINE, ids=str)
def test_every_online_mode_has_a_preset_of_a_real_family_that_passes_the_dry_run(mode: RLHFMode) -> None:
    from scripts.train import check

    found = [
        config
        for path in PRESETS
        if path.parent != FOLDER and (config := loaded(path)).trains_online and config.rlhf_mode is mode
    ]
    assert found
    for config in found:
        lines = check(config, 1)
        assert not [line for line in lines if line.startswith("warning")]
        assert config.rlhf_reward == "pickscore" and config.rlhf_group_size >= 4
