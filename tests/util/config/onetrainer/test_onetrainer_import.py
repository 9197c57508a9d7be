from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.load import check_config, find_problems, load_config
from modules.util.config.onetrainer.onetrainer_import import (
    _defaults,
    import_onetrainer_concepts,
    import_onetrainer_samples,
)
from modules.util.config.onetrainer.onetrainer_migrations import upgrade_concept, upgrade_train
from modules.util.config.SampleConfig import SampleConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import Optimizer
from modules.util.enum.ModelType import ModelType
from modules.util.errors import UserError
from scripts import import_config as script
from tests.util.config.onetrainer.reading import import_onetrainer

SHARED = Path(__file__).parents[4] / ".." / "shared" / "data" / "onetrainer"
LISTS = {"concepts": [], "samples": []}


def load(tmp_path: Path, data: Any) -> tuple[TrainConfig, list[str]]:
    path = tmp_path / "onetrainer.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return import_onetrainer(path)


def about(notes: list[str]) -> list[str]:
    return sorted(note.partition(" = ")[0].partition(":")[0] for note in notes)


def test_missing_keys_have_the_defaults_of_onetrainer(tmp_path: Path) -> None:
    config, notes = load(tmp_path, {"__version": 11, **LISTS})
    assert config.training_method == "FINE_TUNE"
    assert (config.learning_rate, config.learning_rate_warmup_steps, config.epochs) == (3e-6, 200.0, 100)
    assert (config.lora_alpha, config.layer_filter_preset, config.train_dtype) == (1.0, "full", "FLOAT_16")
    assert (config.sample_after, config.sample_after_unit) == (10, "MINUTE")
    assert config.text_encoder.train is True
    assert config.train_device == "auto"
    assert config.rlhf_enabled is False
    assert about(notes) == []
    assert (config.text_encoder.stop_training_after, config.text_encoder.stop_training_after_unit) == (
        30,
        "EPOCH",
    )


@pytest.mark.parametrize(
    ("after", "unit", "expected", "said"),
    [
        (7, "EPOCH", (True, 7, "EPOCH"), []),
        (100, "EPOCH", (True, 0, "NEVER"), []),
        (7, "NEVER", (True, 0, "NEVER"), []),
        (9, "STEP", (True, 4, "STEP"), []),
        (1, "STEP", (True, 1, "STEP"), []),
        (0, "EPOCH", (False, 0, "NEVER"), []),
        (2, "HOUR", (True, 0, "NEVER"), ["unet.stop_training_after"]),
    ],
)
def test_the_end_of_the_training_of_a_part(
    tmp_path: Path, after: int, unit: str, expected: tuple[bool, int, str], said: list[str]
) -> None:
    unet = {"train": True, "stop_training_after": after, "stop_training_after_unit": unit}
    data = {"__version": 11, "gradient_accumulation_steps": 2, "learning_rate_warmup_steps": 0, **LISTS}
    config, notes = load(tmp_path, {**data, "unet": unet})
    made = config.unet
    assert (made.train, made.stop_training_after, made.stop_training_after_unit) == expected
    assert about(notes) == said


@pytest.mark.parametrize(
    ("epochs", "used", "stops"),
    [(5, 5, 0), ("5", 5, 0), (5.0, 5, 0), (0, 100, 7), (-3, 100, 7), ("many", 100, 7), (8, 8, 7)],
)
def test_the_end_of_a_part_is_judged_by_the_epochs_that_are_used(
    tmp_path: Path, epochs: object, used: int, stops: int
) -> None:
    unet = {"train": True, "stop_training_after": 7, "stop_training_after_unit": "EPOCH"}
    config, _ = load(tmp_path, {"__version": 11, "epochs": epochs, **LISTS, "unet": unet})
    assert (config.epochs, config.unet.stop_training_after) == (used, stops)


@pytest.mark.parametrize(("family", "expected"), [("FLUX_DEV_1", "MASKED"), ("QWEN", "FAMILY")])
def test_a_mask_of_padding_is_carried_where_there_is_padding(
    tmp_path: Path, family: str, expected: str
) -> None:
    masked = {"__version": 11, "model_type": family, "training_method": "LORA", **LISTS}
    masked |= {"transformer": {"attention_mask": True}}
    masked |= {
        "text_encoder": {"attention_mask": True, "train": False},
        "text_encoder_2_sequence_length": 512,
    }
    config, notes = load(tmp_path, masked)
    assert config.transformer.attention_mask == expected
    assert about([note for note in notes if "text_encoder_2" not in note]) == []


@pytest.mark.parametrize(
    ("family", "given", "expected", "said"),
    [
        ("FLUX_DEV_1", {}, (None, 77), []),
        ("FLUX_DEV_1", {"text_encoder_2_sequence_length": 512}, (None, None), []),
        ("FLUX_DEV_1", {"text_encoder_2_sequence_length": 600}, (None, None), ["text_encoder_2_sequence_length"]),
        ("CHROMA_1", {}, (None, None), []),
        ("CHROMA_1", {"text_encoder_sequence_length": 256}, (256, None), []),
        ("PIXART_SIGMA", {"text_encoder_sequence_length": 256}, (None, None), ["text_encoder_sequence_length"]),
    ],
)  # fmt: skip
def test_lengths_of_prompts(
    tmp_path: Path, family: str, given: dict[str, int], expected: tuple[Any, Any], said: list[str]
) -> None:
    data = {"__version": 11, "model_type": family, "training_method": "LORA", **given, **LISTS}
    config, notes = load(tmp_path, data)
    assert (config.text_encoder.sequence_length, config.text_encoder_2.sequence_length) == expected
    assert about([note for note in notes if "sequence" in note]) == said


def test_fields_of_text_encoders_that_are_not_offered_are_noted(tmp_path: Path) -> None:
    data = {"__version": 11, "model_type": "STABLE_DIFFUSION_XL_10_BASE", **LISTS}
    data |= {
        "text_encoder_layer_skip": 1,
        "text_encoder_2_layer_skip": 2,
        "text_encoder_sequence_length": 300,
    }
    data |= {"text_encoder_2": {"dropout_probability": 0.1, "train": False}}
    config, notes = load(tmp_path, data)
    assert {"text_encoder_sequence_length", "text_encoder_2.dropout_probability"} <= set(about(notes))
    assert (config.text_encoder.layer_skip, config.text_encoder_2.layer_skip) == (1, 2)


def test_a_current_config_is_carried_over(tmp_path: Path) -> None:
    data = {
        "__version": 11,
        "training_method": "LORA",
        "model_type": "STABLE_DIFFUSION_21",
        "base_model_name": "somewhere/model",
        "learning_rate": 1e-4,
        "resolution": "512,768",
        "optimizer": {
            "__version": 0,
            "optimizer": "PRODIGY",
            "d_coef": 0.5,
            "beta1": 0.8,
            "use_bias_correction": True,
        },
        "unet": {"__version": 0, "train": True, "learning_rate": 5e-5, "weight_dtype": "BFLOAT_16"},
        "text_encoder": {"__version": 0, "train": False, "dropout_probability": 0.1},
        "output_model_format": "KOHYA_LORA",
        "lora_rank": 8,
        "peft_type": "LOHA",
        "ema": "CPU",
        "timestep_distribution": "LOGIT_NORMAL",
        "noising_weight": 0.5,
        "train_device": "cuda:1",
        **LISTS,
    }
    config, notes = load(tmp_path, data)
    assert about(notes) == []
    assert config.model_type is ModelType.STABLE_DIFFUSION_21
    assert config.optimizer.to_dict() == {
        "optimizer": "PRODIGY",
        "beta1": 0.8,
        "beta2": None,
        "eps": None,
        "weight_decay": None,
        "momentum": None,
        "fused_back_pass": False,
        "stochastic_rounding": False,
        "params": {"d_coef": 0.5, "bias_correction": True},
    }
    assert config.unet.learning_rate == 5e-5
    assert config.text_encoder.dropout_probability == 0.1
    assert (config.lora_rank, config.peft_type, config.ema) == (8, "LOHA", "CPU")
    assert (config.output_model_format, config.train_device) == ("KOHYA_LORA", "cuda:1")
    check_config(config)
    config.save(tmp_path / "ours.json")
    assert load_config(tmp_path / "ours.json") == config


def test_an_old_config_comes_through_all_migrations(tmp_path: Path) -> None:
    data = {
        "training_method": "LORA",
        "optimizer": "ADAMW_8BIT",
        "optimizer_weight_decay": 0.05,
        "train_unet": True,
        "unet_learning_rate": 2e-5,
        "unet_weight_dtype": "FLOAT_16",
        "train_text_encoder": True,
        "train_text_encoder_epochs": 7,
        "min_snr_gamma": 4.0,
        "noising_weight": 3.0,
        "noising_bias": 0.75,
        "gradient_checkpointing": False,
        "save_after": 5,
        "save_after_unit": "EPOCH",
        "lora_layers": "attn1",
        "lora_layer_preset": "custom",
        "weight_dtype": "BFLOAT_16",
        "output_model_format": "SAFETENSORS",
        "concepts": [{"path": "a", "repeats": 2.5, "validation_concept": True}],
        "samples": [{"prompt": "cat"}],
    }
    config, notes = load(tmp_path, data)
    assert about(notes) == []
    assert (config.text_encoder.stop_training_after, config.text_encoder.stop_training_after_unit) == (
        7,
        "EPOCH",
    )
    assert (config.optimizer.optimizer, config.optimizer.weight_decay) == ("ADAMW_8BIT", 0.05)
    assert (config.unet.learning_rate, config.unet.weight_dtype) == (2e-5, "FLOAT_16")
    assert (config.text_encoder.weight_dtype, config.vae.weight_dtype) == ("BFLOAT_16", "BFLOAT_16")
    assert (config.unet.gradient_checkpointing, config.text_encoder.gradient_checkpointing) == (False, False)
    assert (config.loss_weight_fn, config.loss_weight_strength) == ("MIN_SNR_GAMMA", 4.0)
    assert (config.timestep_distribution, config.noising_weight, config.noising_bias) == (
        "SIGMOID",
        3.0,
        0.25,
    )
    assert (config.save_every, config.save_every_unit) == (5, "EPOCH")
    assert (config.layer_filter, config.layer_filter_preset) == ("attn1", "custom")
    assert config.output_model_format == "LEGACY_LORA"
    assert config.concepts is not None
    assert (config.concepts[0].balancing, config.concepts[0].type) == (2.5, "VALIDATION")
    assert config.samples is not None
    assert (config.samples[0].noise_scheduler, config.samples[0].cfg_scale) == ("EULER_A", 7.5)


@pytest.mark.parametrize("version", range(12))
def test_short_configs_of_every_version(tmp_path: Path, version: int) -> None:
    config, _ = load(tmp_path, {"__version": version, "batch_size": 3, **LISTS})
    assert config.batch_size == 3
    config, _ = load(tmp_path, {"__version": version, **LISTS})
    assert config.epochs == 100


def test_newer_configs_are_read_as_far_as_known(tmp_path: Path) -> None:
    data = {"__version": 12, "image_caching": False, "caching_threads": 5, "batch_size": 2, **LISTS}
    config, notes = load(tmp_path, data)
    assert (config.latent_caching, config.dataloader_threads, config.batch_size) == (False, 5, 2)
    assert "__version" in about(notes)


def test_offloading_of_the_whole_model_goes_to_the_parts() -> None:
    made = upgrade_train(
        {"__version": 9, "gradient_checkpointing": "CPU_OFFLOADED", "layer_offload_fraction": 0.5}
    )
    assert made["unet"] == {
        "gradient_checkpointing": True,
        "activation_offloading": True,
        "offload_fraction": 0.5,
    }


def test_transformer_takes_the_settings_of_prior() -> None:
    assert upgrade_train({"__version": 8, "prior": {"train": False}})["transformer"] == {"train": False}
    assert "transformer" not in upgrade_train({"__version": 8, "prior": {}, "model_type": "WUERSTCHEN_2"})
    assert "transformer" not in upgrade_train({"__version": 8})


def test_concept_migrations() -> None:
    assert upgrade_concept({"repeats": 3}) == {"balancing": 3}
    assert upgrade_concept({"__version": 1, "validation_concept": True}) == {"type": "VALIDATION"}
    assert upgrade_concept({"__version": 1, "validation_concept": False}) == {}
    assert upgrade_concept({"__version": 2, "type": "STANDARD"}) == {"type": "STANDARD"}


MASKS = {"enable_random_circular_mask_shrink": True, "enable_random_mask_rotate_crop": False}


def test_what_is_not_offered_is_listed_once_and_only_where_it_differs(tmp_path: Path) -> None:
    data = {
        "__version": 11,
        "training_method": "LORA",
        "future_loss": True,
        "compile": False,
        "learning_rate_scheduler": "CUSTOM",
        "resolution": "512x768",
        "output_model_format": "ORIGINAL_LORA",
        "unet": {
            "train": True,
            "weight_dtype": "FLOAT_8",
            "offload_fraction": 0.4,
            "stop_training_after": 0,
        },
        "text_encoder": {"train": False},
        "quantization": {"svd_dtype": "BFLOAT_16", "svd_rank": 32, "layer_filter": ""},
        "cloud": {"enabled": True},
        "secrets": {"huggingface_token": "hf_secret"},
        "made_up": 1,
        "concepts": [
            {
                "path": "x",
                "image": MASKS,
                "text": {"tag_dropout_mode": "RANDOM WEIGHTED"},
                "concept_stats": {"image_count": 3},
            },
            3,
        ],
        "samples": [{"frames": 25, "height": 500, "sample_inpainting": False}],
    }
    config, notes = load(tmp_path, data)
    assert about(notes) == sorted(
        [
            "future_loss",
            "custom_learning_rate_scheduler",
            "resolution",
            "output_model_format",
            "quantization.svd_dtype",
            "quantization.svd_rank",
            "cloud",
            "secrets",
            "made_up",
            "concepts[1]",
            "samples[0].frames",
            "samples[0].height",
        ]
    )
    assert not [note for note in notes if "hf_secret" in note]
    assert "hf_secret" not in json.dumps(config.to_dict())
    assert (config.unet.weight_dtype, config.unet.offload_fraction) == ("FLOAT_8", 0.4)
    assert config.concepts is not None
    assert config.concepts[0].text.tag_dropout_mode == "RANDOM_WEIGHTED"
    assert config.concepts[0].image.enable_random_circular_mask_shrink
    assert not config.concepts[0].image.enable_random_mask_rotate_crop


def test_numbers_written_as_text_or_float_are_read(tmp_path: Path) -> None:
    config, notes = load(tmp_path, {"__version": 11, "learning_rate": "3e-4", "batch_size": 2.0, **LISTS})
    assert (config.learning_rate, config.batch_size) == (3e-4, 2)
    assert about(notes) == []


@pytest.mark.parametrize("name", [*Optimizer.__members__, "AdEMAMix", "AdEMAMix_8BIT", "CAME_8BIT"])
def test_imported_optimizers_take_their_numbers(tmp_path: Path, name: str) -> None:
    from modules.trainer.optim.optimizers import optimizer_arguments

    floats = {"beta1": 0.5, "beta2": 0.6, "eps": 1e-6, "weight_decay": 0.1, "momentum": 0.3, "d_coef": 2.0}
    others = {
        "nesterov": True,
        "r": 0.5,
        "lr_decay": 0.1,
        "centered": True,
        "amsgrad": True,
        "clip_threshold": 2.0,
    }
    given = {"optimizer": name, **floats, **others, "alpha": 0.9, "growth_rate": "inf", "dampening": 0.0}
    config, notes = load(tmp_path, {"__version": 11, "optimizer": given, **LISTS})
    made = optimizer_arguments(config.optimizer)
    assert made["weight_decay"] == 0.1
    assert ("optimizer.optimizer" in about(notes)) is (
        name in ("CAME_8BIT", "LAMB", "LAMB_8BIT", "LARS", "DADAPT_ADAN")
    )
    changed = [note for note in notes if "optimizer.optimizer" in note and note.changes_weights]
    assert bool(changed) is (name == "DADAPT_ADAN")
    if name == "PRODIGY":
        assert (made["d_coef"], made["growth_rate"], made["betas"][:2]) == (2.0, math.inf, (0.5, 0.6))


def test_rates_that_adafactor_ignores_are_left_out(tmp_path: Path) -> None:
    given = {"optimizer": "ADAFACTOR", "relative_step": True, "scale_parameter": True, "warmup_init": True}
    data = {
        "__version": 11, "model_type": "STABLE_DIFFUSION_XL_10_BASE", "training_method": "LORA", "optimizer": given,
        "learning_rate": 3e-4, "learning_rate_warmup_steps": 50, "learning_rate_scheduler": "ADAFACTOR",
        "unet": {"train": True, "learning_rate": 1e-3}, "text_encoder": {"train": True, "learning_rate": 1e-5}, **LISTS,
    }  # fmt: skip
    config, notes = load(tmp_path, data)
    found = find_problems(config)
    assert found.errors == [] and not [line for line in found.warnings if "no effect" in str(line)]
    assert (config.unet.learning_rate, config.text_encoder.learning_rate) == (None, None)
    assert (config.learning_rate, config.learning_rate_warmup_steps) == (TrainConfig().learning_rate, 0.0)
    said = "\n".join(str(note) for note in notes if "no effect, there or here" in note.why)
    assert "unet" in said and "text_encoder" in said and "0.0003" in said
    assert not [note for note in notes if note.changes_weights]
    # another rule keeps its rates
    config, _ = load(tmp_path, {**data, "optimizer": {**given, "relative_step": False}})
    assert (config.unet.learning_rate, config.learning_rate) == (1e-3, 3e-4)


def test_lists_are_found_beside_the_config_and_missing_ones_are_listed(tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "c.json").write_text('[{"__version": 2, "path": "pictures", "seed": 5}]')
    data = {
        "__version": 11,
        "concept_file_name": "lists/c.json",
        "sample_definition_file_name": "lists/none.json",
    }
    config, notes = load(tmp_path, data)
    assert config.concepts == [ConceptConfig(path="pictures", seed=5)]
    assert config.samples is None
    assert "sample_definition_file_name" in about(notes)


def test_values_that_cannot_be_read_become_the_defaults_of_onetrainer(tmp_path: Path) -> None:
    """As OneTrainer itself does, and unlike there, each is listed."""
    wrong = {"learning_rate": "abc", "lora_alpha": [1], "train_dtype": "FLOAT_17", "epochs": 0}
    config, notes = load(tmp_path, {"__version": 11, "training_method": "LORA", **LISTS, **wrong})
    assert (config.learning_rate, config.lora_alpha, config.train_dtype) == (3e-6, 1.0, "FLOAT_16")
    assert config.epochs == 100
    assert about(notes) == sorted(wrong)
    assert all("instead, the default there" in note for note in notes)
    config, _ = load(tmp_path, {"training_method": "LORA", **LISTS, "peft_type": "OFT_2", "oft_block_size": "abc"})
    assert config.lora_rank == 32
    samples, _ = import_onetrainer_samples([{"prompt": "a", "width": "abc"}], ModelType.STABLE_DIFFUSION_21)
    assert samples[0].width == 768


def test_sample_defaults_depend_on_the_model(tmp_path: Path) -> None:
    samples, notes = import_onetrainer_samples([{"prompt": "a"}], ModelType.STABLE_DIFFUSION_21)
    assert (samples[0].width, samples[0].noise_scheduler) == (768, "DDIM")
    assert notes == []


def test_samples_keep_how_they_read_their_prompts(tmp_path: Path) -> None:
    given = {
        "prompt": "a", "text_encoder_1_layer_skip": 1, "text_encoder_2_layer_skip": 0, "text_encoder_3_layer_skip": 2,
        "text_encoder_2_sequence_length": 77, "transformer_attention_mask": True,
    }  # fmt: skip
    (one,), notes = import_onetrainer_samples([given], ModelType.STABLE_DIFFUSION_3)
    assert one.reading() == {"text_encoder": {"layer_skip": 1}, "transformer": {"attention_mask": "MASKED"}}
    assert about(notes) == ["samples[0].text_encoder_2_sequence_length", "samples[0].text_encoder_3_layer_skip"]
    (one,), notes = import_onetrainer_samples([given], ModelType.FLUX_DEV_1)
    assert one.reading() == {
        "text_encoder_2": {"sequence_length": 77},
        "transformer": {"attention_mask": "MASKED"},
    }
    assert len(notes) == 2
    # what nobody set is the run's there too
    (one,), notes = import_onetrainer_samples([{"prompt": "a"}], ModelType.STABLE_DIFFUSION_3)
    assert one.reading() == {} and notes == []
    (one,), notes = import_onetrainer_samples([{"text_encoder_1_layer_skip": True}])
    assert one.reading() == {} and len(notes) == 1


def test_what_is_no_onetrainer_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        import_onetrainer(tmp_path / "none.json")
    with pytest.raises(UserError, match="not a OneTrainer config"):
        load(tmp_path, [])
    (tmp_path / "c.json").write_text("{}")
    with pytest.raises(UserError, match="must be a list"):
        import_onetrainer_concepts(tmp_path / "c.json")


def test_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.json").write_text(json.dumps({"__version": 11, "future_loss": True, **LISTS}))
    assert script.main([str(tmp_path / "in.json"), str(tmp_path / "out.json")]) == 3
    assert "future_loss = true: unknown setting" in capsys.readouterr().out
    assert load_config(tmp_path / "out.json").learning_rate == 3e-6
    assert script.main([str(tmp_path / "none.json"), str(tmp_path / "out.json")]) == 2


def test_script_converts_lists(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps([{"__version": 2, "path": "a", "concept_stats": {}}]))
    (tmp_path / "s.json").write_text(json.dumps([{"prompt": "cat", "frames": 1}]))
    for name in ("c.json", "s.json"):
        assert script.main([str(tmp_path / name), str(tmp_path / f"our_{name}")]) == 0
    assert ConceptConfig.load_all("our_c.json", tmp_path) == [ConceptConfig(path="a")]
    assert SampleConfig.load_all("our_s.json", tmp_path)[0].prompt == "cat"


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_OLD_KEYS = ["train_unet", "unet_learning_rate", "weight_dtype", "gradient_checkpointing", "min_snr_gamma"]


@settings(max_examples=75, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    version=st.integers(0, 12) | st.none(),
    data=st.dictionaries(st.sampled_from(sorted(_defaults()["train"]) + _OLD_KEYS), JUNK, max_size=8),
    inner=st.dictionaries(
        st.sampled_from(["image", "text", "repeats", "seed", "type", "width"]), JUNK, max_size=3
    ),
)
def test_no_file_brings_the_import_down(tmp_path: Path, version: int | None, data: dict, inner: dict) -> None:
    data = {"concepts": [inner], "samples": [inner], **data}
    if version is not None:
        data["__version"] = version
    try:
        config, _ = load(tmp_path, data)
    except UserError as error:
        assert "not supported" in str(error) or "not an object" in str(error)
        assert not data.keys().isdisjoint(("model_type", "training_method", "peft_type", "optimizer"))
        return
    again = TrainConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config


@pytest.mark.skipif(not SHARED.is_dir(), reason="the measured defaults are not here")
def test_measured_defaults_come_through_and_our_table_is_theirs(tmp_path: Path) -> None:
    data = json.loads((SHARED / "train_config_defaults.json").read_text())
    config, notes = load(tmp_path, {**data, **LISTS})
    assert about(notes) == []
    assert config.train_device == "cpu"

    def without_versions(node: Any) -> Any:
        return (
            {k: without_versions(v) for k, v in node.items() if k != "__version"}
            if isinstance(node, dict)
            else node
        )

    ours, theirs = _defaults()["train"], without_versions(data)
    theirs["embedding"].pop("uuid")
    assert ours == {k: v for k, v in theirs.items() if k not in ("train_device", "temp_device")}
    concept = json.loads((SHARED / "concept_config_defaults.json").read_text())
    made, notes = import_onetrainer_concepts([{k: v for k, v in concept.items() if k != "seed"}])
    assert (made, notes) == ([ConceptConfig()], [])


def test_a_file_of_vectors_for_the_output_is_kept(tmp_path: Path) -> None:
    one = {"placeholder": "<w>", "model_name": "out.safetensors", "is_output_embedding": True}
    config, notes = load(
        tmp_path, {"__version": 11, "training_method": "EMBEDDING", "embedding": one, **LISTS}
    )
    assert (config.embedding.model_name, config.embedding.is_output_embedding) == ("out.safetensors", True)
    assert not any("embedding." in note for note in notes), notes


def test_an_output_of_one_encoder_is_noted_where_there_are_several(tmp_path: Path) -> None:
    one = {"placeholder": "<w>", "is_output_embedding": True}
    for family, noted in (("FLUX_DEV_1", True), ("CHROMA_1", False), ("STABLE_DIFFUSION_3", False)):
        data = {
            "__version": 11,
            "model_type": family,
            "training_method": "EMBEDDING",
            "embedding": one,
            **LISTS,
        }
        config, notes = load(tmp_path, data)
        assert config.embedding.is_output_embedding
        assert any("none for clip_l" in note for note in notes) is noted


MASKED = {
    "__version": 11,
    "training_method": "LORA",
    "masked_training": True,
    "unmasked_weight": 0.3,
    "unmasked_probability": 0.2,
    "normalize_masked_area_loss": True,
    "masked_prior_preservation_weight": 0.5,
    "custom_conditioning_image": True,
    **LISTS,
}


@pytest.mark.parametrize(
    ("more", "probability", "prior", "noted"),
    [
        ({"model_type": "STABLE_DIFFUSION_15"}, 0.0, 0.5, []),
        ({"model_type": "STABLE_DIFFUSION_15_INPAINTING"}, 0.2, 0.5, []),
        (
            {"model_type": "STABLE_DIFFUSION_15", "training_method": "FINE_TUNE"},
            0.0,
            0.0,
            ["masked_prior_preservation_weight"],
        ),
    ],
)
def test_masked_training_is_taken_over(
    tmp_path: Path, more: dict[str, Any], probability: float, prior: float, noted: list[str]
) -> None:
    config, notes = load(tmp_path, {**MASKED, **more})
    assert (config.masked_training, config.mask_source) == (True, "FILE")
    assert (config.unmasked_weight, config.normalize_masked_area_loss) == (0.3, True)
    # with other models it does nothing there
    assert config.custom_conditioning_image is config.model_type.spec.inpainting
    assert not [name for name in about(notes) if "conditioning" in name]
    assert (config.unmasked_probability, config.masked_prior_preservation_weight) == (probability, prior)
    assert [name for name in about(notes) if "mask" in name] == noted


def test_a_schedule_of_a_class_is_carried_with_its_arguments(tmp_path: Path) -> None:
    given = [
        {"key": "max_lr", "value": "%LR%"}, {"key": "betas", "value": "[0.9, 0.99]"}, {"key": " ", "value": "1"},
        {"key": "x"},
    ]  # fmt: skip
    data = {
        "__version": 11, "learning_rate_scheduler": "CUSTOM",
        "custom_learning_rate_scheduler": "torch.optim.lr_scheduler.OneCycleLR", "scheduler_params": given, **LISTS,
    }  # fmt: skip
    config, notes = load(tmp_path, data)
    assert config.learning_rate_scheduler == "CUSTOM"
    assert config.custom_learning_rate_scheduler == "torch.optim.lr_scheduler.OneCycleLR"
    assert config.scheduler_params == "max_lr=%LR%; betas=[0.9, 0.99]"
    assert about(notes) == ["scheduler_params"]


def test_another_computer_is_found_again_without_what_opens_it(tmp_path: Path) -> None:
    where = {"host": "gpu.example.org", "port": "2222", "user": "me", "key_file": "keys/gpu", "password": "hunter2",
             "api_key": "rp_key", "id": "pod"}  # fmt: skip
    data = {"model_type": "STABLE_DIFFUSION_15", "cloud": {"enabled": True}, "secrets": {"cloud": where}}
    config, notes = load(tmp_path, data)
    remote = config.remote
    assert (remote.host, remote.port, remote.user, remote.key_file) == (
        "gpu.example.org",
        2222,
        "me",
        "keys/gpu",
    )
    assert remote.directory == "/workspace/tastemaker"
    assert "cloud" in about(notes) and "train_remote.py" in str(notes)
    assert not [word for word in ("hunter2", "rp_key") if word in json.dumps(config.to_dict()) + str(notes)]
    rented, notes = load(tmp_path, {**data, "secrets": {}})
    assert (rented.remote.host, "set remote.host" in str(notes)) == ("", True)
    off, notes = load(tmp_path, {**data, "cloud": {"enabled": False}})
    assert off.remote == type(remote)() and "cloud" not in about(notes)
