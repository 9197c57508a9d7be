"""Configs of ai-toolkit: the fields that matter, and nothing changed in silence."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from modules.pipeline.nodes.prompts import complete_prompt
from modules.trainer.optim.LearningRateSchedule import LearningRateSchedule
from modules.util.config.foreign.importing import CHANGED, DONE, Import, import_file
from modules.util.config.load import find_problems, load_config
from modules.util.config.section.ModelPartConfig import TrainingAdapterConfig
from modules.util.config.TrainConfig import TrainConfig
from scripts import import_config as script

FLUX = """
job: extension
config:
  name: my_first_lora
  process:
    - type: sd_trainer
      training_folder: output
      device: cuda:0
      trigger_word: p3r5on
      network:
        type: lora
        linear: 16
        linear_alpha: 8
      save:
        dtype: float16
        save_every: 250
        max_step_saves_to_keep: 4
      datasets:
        - folder_path: /images
          caption_ext: txt
          caption_dropout_rate: 0.05
          shuffle_tokens: false
          cache_latents_to_disk: true
          resolution: [512, 768, 1024]
      train:
        batch_size: 1
        steps: 2000
        gradient_accumulation_steps: 2
        train_unet: true
        train_text_encoder: false
        gradient_checkpointing: true
        noise_scheduler: flowmatch
        optimizer: adamw8bit
        lr: 1e-4
        ema_config: {use_ema: true, ema_decay: 0.99}
        dtype: bf16
      model:
        name_or_path: black-forest-labs/FLUX.1-dev
        is_flux: true
        quantize: true
      sample:
        sampler: flowmatch
        sample_every: 250
        width: 1024
        height: 1024
        prompts: ["[trigger] holding a sign", "a horse"]
        neg: ""
        seed: 42
        walk_seed: true
        guidance_scale: 4
        sample_steps: 20
meta: {name: "[name]", version: '1.0'}
"""


def data() -> dict[str, Any]:
    import yaml

    made: dict[str, Any] = yaml.safe_load(FLUX)
    return made


def read(folder: Path, **changes: Any) -> Import:
    """The config with other values: ``train__lr=1``."""
    made = copy.deepcopy(data())
    for place, value in changes.items():
        section: Any = made["config"]["process"][0]
        *outer, name = place.split("__")
        for one in outer:
            section = section[int(one)] if one.isdigit() else section.setdefault(one, {})
        section[name] = value
    path = folder / "config.json"
    path.write_text(json.dumps(made))
    return import_file(path)


def test_the_published_example_of_flux(tmp_path: Path) -> None:
    path, target = tmp_path / "train_lora_flux_24gb.yaml", tmp_path / "ours.json"
    path.write_text(FLUX)
    assert script.main([str(path), str(target)]) == DONE
    config = load_config(target)
    assert find_problems(config).errors == []
    assert (config.model_type, config.lora_rank, config.lora_alpha) == ("FLUX_DEV_1", 16, 8)
    assert (config.transformer.weight_dtype, config.text_encoder_2.weight_dtype) == ("FLOAT_8", "FLOAT_8")
    assert config.text_encoder.weight_dtype == "BFLOAT_16"
    assert (config.max_steps, config.gradient_accumulation_steps, config.learning_rate) == (1000, 2, 1e-4)
    assert (config.optimizer.optimizer, config.ema, config.ema_decay) == ("ADAMW_8BIT", "GPU", 0.99)
    assert (config.timestep_distribution, config.noising_weight) == ("LOGIT_NORMAL", 0)
    assert (config.transformer.train, config.text_encoder.train) == (True, False)
    assert config.text_encoder.dropout_probability == 0.05
    assert config.output_model_destination == "output/my_first_lora.safetensors"
    (concept,) = config.concepts or []
    assert (concept.path, concept.image.resolution_override) == ("/images", "512, 768, 1024")
    assert complete_prompt("a man, [trigger]", concept.text) == "a man, p3r5on"
    assert complete_prompt("a man", concept.text) == "p3r5on a man"
    assert complete_prompt("p3r5on", concept.text) == "p3r5on"
    samples = config.samples or []
    assert [(one.prompt, one.seed) for one in samples] == [("p3r5on holding a sign", 42), ("a horse", 43)]
    assert {(one.width, one.cfg_scale, one.diffusion_steps) for one in samples} == {(1024, 4, 20)}


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"train__timestep_type": "linear"}, "timestep_distribution", "UNIFORM"),
        ({"train__timestep_type": "shift"}, "dynamic_timestep_shifting", True),
        ({"train__content_or_style": "content", "train__timestep_type": "linear"}, "noising_bias", 1.0),
        ({"train__content_or_style": "style", "train__timestep_type": "linear"}, "noising_bias", -1.0),
        ({"train__max_denoising_steps": 499}, "min_noising_strength", 0.5),
        ({"train__min_denoising_steps": 200}, "max_noising_strength", 0.8),
        ({"train__loss_type": "mae"}, "mae_strength", 1.0),
        ({"train__lr_scheduler": "cosine"}, "learning_rate_scheduler", "COSINE"),
        ({"train__max_grad_norm": 0.3}, "clip_grad_norm", 0.3),
        ({"train__seed": 7}, "seed", 7),
        ({"network__conv": 8}, "lora_rank", 16),
        ({"network__type": "lokr"}, "peft_type", "LOKR"),
        ({"network__network_kwargs": {"only_if_contains": ["transformer.single"]}}, "layer_filter", "single"),
        ({"network__network_kwargs": {"ignore_if_contains": ["norm"]}}, "layer_filter_regex", True),
        ({"model__is_flux": False, "model__arch": "chroma"}, "model_type", "CHROMA_1"),
        ({"model__assistant_lora_path": "a/b"}, "training_adapter", TrainingAdapterConfig(model_name="a/b")),
    ],
)
def test_one_field(changes: dict[str, Any], field: str, value: Any, tmp_path: Path) -> None:
    imported = read(tmp_path, **changes)
    assert [note for note in imported.notes.listed() if note.changes_weights] == []
    assert getattr(imported.made, field) == pytest.approx(value)
    assert imported.outcome() == DONE


@pytest.mark.parametrize(
    ("changes", "numbers"),
    [
        ({}, {"optimizer": "ADAMW_8BIT", "eps": 1e-6}),
        ({"train__optimizer": "adamw"}, {"eps": 1e-6}),
        ({"train__optimizer": "prodigy", "train__optimizer_params": {"d_coef": 2.0}}, {"eps": 1e-6}),
        ({"train__optimizer": "lion8bit"}, {"eps": None}),
        (
            {"train__optimizer": "adafactor"},
            {"params": {"relative_step": False, "scale_parameter": False, "warmup_init": False}},
        ),
        (
            {"train__optimizer": "adafactor", "train__optimizer_params": {"scale_parameter": True}},
            {"params": {"relative_step": False, "scale_parameter": True, "warmup_init": False}},
        ),
    ],
)
def test_optimizers_have_the_numbers_of_that_program(
    changes: dict[str, Any], numbers: dict[str, Any], tmp_path: Path
) -> None:
    imported = read(tmp_path, **changes)
    assert isinstance(imported.made, TrainConfig)
    assert find_problems(imported.made).errors == []
    assert {name: getattr(imported.made.optimizer, name) for name in numbers} == numbers
    assert imported.made.learning_rate_scheduler == "CONSTANT"


def test_how_stress_on_content_or_style_differs_is_noted(tmp_path: Path) -> None:
    for stress, bias in (("content", 1.0), ("style", -1.0)):
        imported = read(tmp_path, train__content_or_style=stress)
        assert isinstance(imported.made, TrainConfig)
        assert (imported.made.timestep_distribution, imported.made.noising_bias) == ("POWER", bias)
        (note,) = [note for note in imported.notes.listed() if note.changes_weights]
        assert note.place == "train.content_or_style" and "the levels of timestep_type sigmoid" in note.why


def test_rates_that_adafactor_ignores_are_left_out(tmp_path: Path) -> None:
    steps = {"train__optimizer": "adafactor", "train__optimizer_params": {"relative_step": True}}
    imported = read(tmp_path, **steps, train__lr=3e-4, train__unet_lr=1e-3)
    assert isinstance(imported.made, TrainConfig)
    assert find_problems(imported.made).errors == [] and imported.outcome() == DONE
    assert imported.made.transformer.learning_rate is None
    ignored = [note.place for note in imported.notes.listed() if "no effect, there or here" in note.why]
    assert ignored == ["transformer.learning_rate", "learning_rate"]


@pytest.mark.parametrize(
    ("name", "params", "factors"),
    [
        # torch's LinearLR begins with a third of the rate
        ("linear", {}, {0: 1 / 3, 500: 2 / 3, 999: 1.0}),
        ("linear", {"start_factor": 1.0, "end_factor": 0.1}, {0: 1.0, 500: 0.55, 999: 0.1}),
        ("constant_with_warmup", {}, {0: 0.0, 250: 0.5, 750: 1.0}),
        ("constant_with_warmup", {"num_warmup_steps": 200}, {50: 0.5, 100: 1.0, 900: 1.0}),
        ("cosine", {"eta_min": 1e-5}, {0: 1.0, 500: 0.55, 999: 0.1}),
        ("cosine_with_restarts", {}, {0: 1.0, 500: 0.5, 999: 0.0}),
    ],
)
def test_schedules_have_the_shape_of_that_program(
    name: str, params: dict[str, Any], factors: dict[int, float], tmp_path: Path
) -> None:
    # 2000 steps there are 1000 optimizer steps
    imported = read(tmp_path, train__lr_scheduler=name, train__lr_scheduler_params=params)
    assert isinstance(imported.made, TrainConfig)
    assert imported.outcome() == DONE
    assert find_problems(imported.made).errors == []
    schedule = LearningRateSchedule.from_config(imported.made, 1000)
    assert {step: schedule.factor(step) for step in factors} == pytest.approx(factors, abs=5e-3)


def test_levels_of_models_that_are_no_flow_models_are_drawn_evenly(tmp_path: Path) -> None:
    imported = read(
        tmp_path, model__is_flux=False, model__is_xl=True, model__name_or_path="stabilityai/sdxl",
        model__quantize=False, train__noise_scheduler="ddpm",
    )  # fmt: skip
    assert isinstance(imported.made, TrainConfig)
    assert imported.made.timestep_distribution == "UNIFORM"
    assert not imported.made.force_v_prediction
    again = read(
        tmp_path, model__is_flux=False, model__is_xl=True, model__name_or_path="stabilityai/sdxl",
        model__quantize=False, model__is_v_pred=True,
    )  # fmt: skip
    assert isinstance(again.made, TrainConfig)
    assert again.made.force_v_prediction
    assert imported.made.model_type.value == "STABLE_DIFFUSION_XL_10_BASE"


def test_without_a_number_format_everything_has_32_bits(tmp_path: Path) -> None:
    imported = read(tmp_path, train__dtype=None, model__quantize=False)
    assert isinstance(imported.made, TrainConfig)
    assert (imported.made.train_dtype, imported.made.transformer.weight_dtype) == ("FLOAT_32", "FLOAT_32")


def test_samples_have_settings_of_their_own(tmp_path: Path) -> None:
    imported = read(
        tmp_path, sample__prompts=["a [trigger] fox --n blurry, dark --w 768 --h 640 --d 5 --l 3.5 --s 12 --gr 0.7"]
    )
    assert isinstance(imported.made, TrainConfig)
    (one,) = imported.made.samples or []
    assert (one.prompt, one.negative_prompt) == ("a p3r5on fox", "blurry, dark")
    assert (one.width, one.height, one.seed, one.cfg_scale, one.diffusion_steps) == (768, 640, 5, 3.5, 12)
    assert [note for note in imported.notes.listed() if "--gr" in note and not note.changes_weights]
    listed = [{"prompt": "a horse", "width": 512, "neg": "n", "seed": 9}, {"prompt": "a cow"}]
    imported = read(tmp_path, sample__samples=listed, sample__width=None)
    assert isinstance(imported.made, TrainConfig)
    found = [(one.prompt, one.width, one.negative_prompt, one.seed) for one in imported.made.samples or []]
    assert found == [("a horse", 512, "n", 9), ("a cow", 512, "", 43)]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"type": "slider"}, "type"),
        ({"type": "concept_slider"}, "type"),
        ({"model__is_flux": False, "model__arch": "wan21"}, "model.arch"),
        ({"network__type": "dora_x"}, "network.type"),
        ({"train__optimizer": "automagic"}, "train.optimizer"),
        ({"train__loss_type": "wavelet"}, "train.loss_type"),
        ({"train__dtype": "fp4"}, "train.dtype"),
        ({"model__qtype": "uint2"}, "model.qtype"),
    ],
)
def test_what_is_not_offered_is_refused(
    changes: dict[str, Any], field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Exception, match=field.replace(".", r"\.")):
        read(tmp_path, **changes)
    assert script.main([str(tmp_path / "config.json"), str(tmp_path / "out.json")]) == 2
    assert field in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"train__do_guidance_loss": True},
        {"train__made_up": 3},
        {"train__linear_timesteps": True},
        {"train__timestep_type": "weighted"},
        {"train__lr_scheduler_params__T_mult": 2, "train__lr_scheduler": "cosine_with_restarts"},
        {"datasets__0__invert_mask": True},
        {"network__lokr_factor": 8, "network__type": "lokr"},
        {"train__lr": "fast"},
        {"datasets__0__num_frames": 41},
        {"datasets__0__is_reg": True},
        {"model__model_kwargs": {"match_target_res": True}},
    ],
)
def test_what_trains_otherwise_is_noted(changes: dict[str, Any], tmp_path: Path) -> None:
    imported = read(tmp_path, **changes)
    name = next(iter(changes)).rpartition("__")[2]
    assert imported.outcome() == CHANGED
    assert [note for note in imported.notes.listed() if note.changes_weights and name in note]


@pytest.mark.parametrize(
    "text", ["a: [", "a: &x [1]\nb: *x\n", "!!python/object/apply:os.system ['true']", "- 1\n", "\x00"]
)
def test_hostile_yaml_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    assert script.main([str(path), str(tmp_path / "out.json")]) == 2
    assert "config.yaml" in capsys.readouterr().err


def test_parts_that_are_never_trained_stay_as_they_are(tmp_path: Path) -> None:
    changes = {
        "model__name_or_path": "circlestone-labs/Anima-Base-v1.0-Diffusers",
        "model__is_flux": False,
        "train__train_text_encoder": True,
    }
    config = read(tmp_path, **changes).made
    assert isinstance(config, TrainConfig) and config.model_type == "ANIMA"
    assert (config.text_encoder.train, config.text_encoder_2.train) == (True, False)
    assert not [error for error in find_problems(config).errors if "text_encoder_2" in str(error)]


def test_another_family_is_given_by_hand(tmp_path: Path) -> None:
    made = import_file(_unnamed(tmp_path), family="FLUX_DEV_1").made
    assert isinstance(made, TrainConfig)
    assert made.model_type == "FLUX_DEV_1"
    assert script.main([str(_unnamed(tmp_path)), str(tmp_path / "out.json")]) == 2


def _unnamed(folder: Path) -> Path:
    made = data()
    made["config"]["process"][0]["model"] = {"name_or_path": "/models/copy"}
    path = folder / "unnamed.json"
    path.write_text(json.dumps(made))
    return path


@pytest.mark.parametrize(
    ("changes", "source", "weight"),
    [
        ({"datasets__0__mask_path": "masks", "datasets__0__mask_min_value": 0.2}, "FOLDER", 0.2),
        ({"datasets__0__alpha_mask": True}, "ALPHA", 0.0),
    ],
)
def test_masks_are_taken_over(changes: dict[str, Any], source: str, weight: float, tmp_path: Path) -> None:
    imported = read(tmp_path, **changes)
    config = imported.made
    assert isinstance(config, TrainConfig) and config.concepts is not None
    assert config.masked_training and config.normalize_masked_area_loss
    assert (config.mask_source, config.unmasked_weight, config.unmasked_probability) == (source, weight, 0.0)
    assert config.concepts[0].mask_path == ("masks" if source == "FOLDER" else "")
    assert not [note for note in imported.notes.listed() if "mask" in note]


@pytest.mark.parametrize(
    ("accumulation", "steps"),
    [
        ({"gradient_accumulation_steps": 1}, (1, 2000, 250, 250)),
        ({"gradient_accumulation_steps": 4}, (4, 500, 63, 63)),
        ({"gradient_accumulation_steps": 1, "gradient_accumulation": 4}, (4, 2000, 250, 250)),
    ],
)
def test_steps_are_optimizer_steps(
    accumulation: dict[str, int], steps: tuple[int, ...], tmp_path: Path
) -> None:
    """In ``jobs/process/BaseSDTrainProcess.py`` of ai-toolkit, ``steps``, ``save_every`` and ``sample_every`` count
    passes of one loop. A pass takes ``gradient_accumulation`` batches. The optimizer steps once in
    ``gradient_accumulation_steps`` passes (``is_grad_accumulation_step``).
    """
    imported = read(tmp_path, **{f"train__{name}": value for name, value in accumulation.items()})
    config = imported.made
    assert isinstance(config, TrainConfig)
    found = (config.gradient_accumulation_steps, config.max_steps, config.save_every, config.sample_after)
    assert found == steps
    rounded = [note for note in imported.notes.listed() if "_every" in note]
    assert len(rounded) == (2 if 63 in steps else 0)
    expected = "250: the file counts batches, which make 62.5 optimizer steps; here it is 63"
    assert all(expected in note for note in rounded)
    assert imported.outcome() == DONE


def test_an_epoch_as_one_optimizer_step_is_noted(tmp_path: Path) -> None:
    imported = read(tmp_path, train__gradient_accumulation_steps=-1)
    assert isinstance(imported.made, TrainConfig) and imported.made.gradient_accumulation_steps == 1
    assert any("an epoch is one optimizer step" in note for note in imported.notes.listed())
    assert imported.outcome() == CHANGED


@pytest.mark.parametrize(("given", "alpha"), [({}, 8.0), ({"network__conv_alpha": 4}, 4.0)])
def test_convolutions_of_a_unet_have_a_rank_and_an_alpha_of_their_own(
    given: dict[str, Any], alpha: float, tmp_path: Path
) -> None:
    imported = read(
        tmp_path, model__is_flux=False, model__is_xl=True, model__name_or_path="stabilityai/sdxl",
        model__quantize=False, network__conv=8, network__linear_alpha=16, **given,
    )  # fmt: skip
    config = imported.made
    assert isinstance(config, TrainConfig)
    assert imported.outcome() == DONE
    names = ("conv1", "conv2", "downsamplers", "upsamplers")
    assert config.rank_patterns() == dict.fromkeys(names, 8)
    assert config.alpha_patterns() == dict.fromkeys(names, alpha)
    assert (config.lora_rank, config.lora_alpha) == (16, 16)
    assert set(config.layer_filter.split(",")) == {"attentions", "resnets", "downsamplers", "upsamplers"}
