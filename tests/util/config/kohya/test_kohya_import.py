"""Training files and dataset files of kohya's scripts: the fields that matter, and nothing changed in silence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from modules.model.noising.noise import NoiseOptions, noise_level
from modules.pipeline.nodes.collect import collect_items
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.foreign.importing import CHANGED, DONE, import_file
from modules.util.config.foreign.Notes import Notes
from modules.util.config.load import find_problems, load_config
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UserError
from scripts import import_config as script

XL = "stabilityai/stable-diffusion-xl-base-1.0"


def draw_images(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    for number in range(count):
        Image.new("RGB", (64, 64), (number, 0, 0)).save(folder / f"{number}.png")


def toml(values: dict[str, Any]) -> str:
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())


def read(folder: Path, text: str = "", **values: Any) -> tuple[TrainConfig, Notes]:
    path = folder / "train.toml"
    path.write_text(toml({"pretrained_model_name_or_path": XL, **values}) + text, encoding="utf-8")
    imported = import_file(path)
    assert isinstance(imported.made, TrainConfig)
    return imported.made, imported.notes


def concepts(folder: Path, text: str) -> tuple[list[ConceptConfig], Notes]:
    path = folder / "data.toml"
    path.write_text(text, encoding="utf-8")
    imported = import_file(path)
    assert isinstance(imported.made, list)
    return imported.made, imported.notes  # type: ignore[return-value]


LORA = {"network_module": "networks.lora", "network_dim": 32, "network_alpha": 16}


def test_a_lora_of_sdxl(tmp_path: Path) -> None:
    config, notes = read(
        tmp_path, **LORA, unet_lr=1e-4, text_encoder_lr=[5e-5, 2e-5], optimizer_type="AdamW8bit",
        optimizer_args=["weight_decay=0.1", "betas=0.9,0.99"], lr_scheduler="cosine_with_restarts",
        lr_warmup_steps=100, lr_scheduler_num_cycles=3, max_train_epochs=10, mixed_precision="bf16",
        save_precision="fp16", noise_offset=0.0357, ip_noise_gamma=0.05, min_snr_gamma=5, train_batch_size=4,
        gradient_checkpointing=True, cache_latents=True, seed=42, output_dir="out", output_name="mine",
        network_dropout=0.1, max_grad_norm=0.5, save_every_n_epochs=2, resolution="1024,1024", enable_bucket=True,
        max_token_length=225,
    )  # fmt: skip
    assert notes.listed() == []
    assert find_problems(config).errors == []
    assert (config.model_type, config.training_method, config.lora_rank, config.lora_alpha) == (
        "STABLE_DIFFUSION_XL_10_BASE", "LORA", 32, 16.0,
    )  # fmt: skip
    assert (config.layer_filter_preset, config.layer_filter) == ("custom", "attentions")
    assert [config.unet.learning_rate, config.text_encoder.learning_rate] == [1e-4, 5e-5]
    assert (config.text_encoder_2.learning_rate, config.text_encoder_2.train) == (2e-5, True)
    assert (config.optimizer.optimizer, config.optimizer.weight_decay) == ("ADAMW_8BIT", 0.1)
    assert (config.optimizer.beta1, config.optimizer.beta2) == (0.9, 0.99)
    assert (config.learning_rate_scheduler, config.learning_rate_cycles) == ("COSINE_WITH_HARD_RESTARTS", 3)
    assert (config.learning_rate_warmup_steps, config.epochs, config.max_steps) == (100, 10, 0)
    assert (config.train_dtype, config.output_dtype, config.unet.weight_dtype) == (
        "BFLOAT_16", "FLOAT_16", "BFLOAT_16",
    )  # fmt: skip
    assert (config.offset_noise_weight, config.perturbation_noise_weight) == (0.0357, 0.05)
    assert config.perturbation_on_target is False
    assert (config.loss_weight_fn, config.loss_weight_strength) == ("MIN_SNR_GAMMA", 5)
    assert (config.batch_size, config.seed, config.clip_grad_norm) == (4, 42, 0.5)
    assert (config.dropout_probability, config.max_prompt_chunks, config.resolution) == (0.1, 3, "1024")
    assert (config.save_every, config.save_every_unit) == (2, "EPOCH")
    assert config.output_model_destination == "out/mine.safetensors"


def test_their_defaults_hold_where_the_file_says_nothing(tmp_path: Path) -> None:
    config, notes = read(tmp_path, network_module="networks.lora")
    assert notes.listed() == []
    assert (config.lora_rank, config.lora_alpha, config.max_steps) == (4, 1.0, 1600)
    assert (config.learning_rate, config.optimizer.optimizer, config.batch_size) == (2e-6, "ADAMW", 1)
    assert (config.unet.train, config.text_encoder.train, config.text_encoder_2.train) == (True, True, True)
    assert config.unet.gradient_checkpointing is False
    assert (config.train_dtype, config.learning_rate_warmup_steps) == ("FLOAT_32", 0)


def test_a_lora_of_flux(tmp_path: Path) -> None:
    config, notes = read(
        tmp_path, pretrained_model_name_or_path="flux1-dev.safetensors", clip_l="clip_l.safetensors",
        t5xxl="t5xxl.safetensors", ae="ae.safetensors", network_module="networks.lora_flux", network_dim=4,
        network_alpha=4, network_train_unet_only=True, fp8_base=True, blocks_to_swap=18, mixed_precision="bf16",
        timestep_sampling="flux_shift", sigmoid_scale=1.2, model_prediction_type="raw", guidance_scale=1.0,
        optimizer_type="adafactor", optimizer_args=["relative_step=False", "scale_parameter=False"],
        learning_rate=1e-3, gradient_checkpointing=True, sdpa=True, cache_text_encoder_outputs=True,
    )  # fmt: skip
    assert notes.listed() == []
    assert find_problems(config).errors == []
    assert (config.model_type, config.layer_filter_preset) == ("FLUX_DEV_1", "blocks")
    assert (config.text_encoder.model_name, config.text_encoder_2.model_name, config.vae.model_name) == (
        "clip_l.safetensors", "t5xxl.safetensors", "ae.safetensors",
    )  # fmt: skip
    assert (config.text_encoder.train, config.text_encoder_2.train) == (False, False)
    assert (config.transformer.weight_dtype, config.transformer.offload_fraction) == ("FLOAT_8", 18 / 57)
    assert (config.timestep_distribution, config.dynamic_timestep_shifting) == ("LOGIT_NORMAL", True)
    assert (config.noising_weight, config.transformer.guidance_scale) == (pytest.approx(0.2), 1.0)
    assert config.optimizer.params == {"relative_step": False, "scale_parameter": False}


def test_swapped_blocks_of_a_whole_model_are_trained_in_main_memory(tmp_path: Path) -> None:
    config, notes = read(
        tmp_path, pretrained_model_name_or_path="black-forest-labs/FLUX.1-dev", blocks_to_swap=18,
        gradient_checkpointing=True, optimizer_type="adafactor", full_bf16=True, mixed_precision="bf16",
        optimizer_args=["relative_step=False", "scale_parameter=False"], cache_text_encoder_outputs=True,
    )  # fmt: skip
    assert [note for note in notes.listed() if "swap" in note] == []
    assert (config.training_method, config.transformer.offload_fraction) == ("FINE_TUNE", 18 / 57)
    assert config.trains_in_main_memory()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"timestep_sampling": "uniform"}, ("UNIFORM", 0.0, 1.0)),
        ({"timestep_sampling": "sigmoid"}, ("LOGIT_NORMAL", 0.0, 1.0)),
        ({"timestep_sampling": "shift", "discrete_flow_shift": 3.1}, ("LOGIT_NORMAL", 0.0, 3.1)),
        ({}, ("UNIFORM", 0.0, 3.0)),
        (
            {"weighting_scheme": "logit_normal", "logit_mean": 0.5, "logit_std": 1.5},
            ("LOGIT_NORMAL", 0.5, 3.0),
        ),
        ({"weighting_scheme": "mode"}, ("HEAVY_TAIL", 1.29, 3.0)),
    ],
)
def test_noise_levels_of_flow_models(
    given: dict[str, Any], expected: tuple[Any, ...], tmp_path: Path
) -> None:
    config, notes = read(tmp_path, network_module="networks.lora_flux", model_prediction_type="raw", **given)
    assert notes.listed() == []
    kind, weight, shift = expected
    assert (config.timestep_distribution, config.timestep_shift) == (kind, shift)
    assert config.noising_weight == weight


def test_how_cosmap_differs_is_noted(tmp_path: Path) -> None:
    def noted(**given: Any) -> tuple[TrainConfig, list[str]]:
        config, notes = read(tmp_path, **{"network_module": "networks.lora_flux", **given})
        found = [note for note in notes.listed() if note.place == "weighting_scheme"]
        assert all(note.changes_weights for note in found)
        return config, [str(note) for note in found]

    config, (said,) = noted(weighting_scheme="cosmap", discrete_flow_shift=1.0)
    assert (config.timestep_distribution, config.timestep_shift) == ("COS_MAP", 1.0)
    assert "draws timesteps here" in said and "weights the loss" in said
    config, (said,) = noted(weighting_scheme="cosmap", model_prediction_type="raw")
    assert config.timestep_distribution == "COS_MAP" and "no effect with raw" in said
    sd3 = {"network_module": "networks.lora_sd3", "pretrained_model_name_or_path": "sd3.5_medium.safetensors"}
    _, (said,) = noted(weighting_scheme="cosmap", **sd3)
    assert "weights the loss" in said
    for weighting in ("cosmap", "sigma_sqrt"):
        config, (said,) = noted(weighting_scheme=weighting, timestep_sampling="sigmoid")
        assert config.timestep_distribution == "LOGIT_NORMAL" and "the loss has no weights" in said
        raw = {"timestep_sampling": "sigmoid", "model_prediction_type": "raw"}
        assert noted(weighting_scheme=weighting, **raw)[1] == []


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"network_module": "networks.oft"}, "network_module"),
        ({"network_module": "lycoris.kohya", "network_args": ["algo=boft"]}, "network_module"),
        ({"optimizer_type": "somebody.Special"}, "optimizer_type"),
        ({"optimizer_type": "mine.AdamW"}, "optimizer_type"),
        ({"lr_scheduler": "polynomial", "lr_scheduler_power": 2}, "lr_scheduler"),
        ({"lr_scheduler": "inverse_sqrt"}, "lr_scheduler"),
        ({"mixed_precision": "fp4"}, "mixed_precision"),
        ({"loss_type": "lpips"}, "loss_type"),
        ({"pretrained_model_name_or_path": "nobody/knows"}, "pretrained_model_name_or_path"),
    ],
)
def test_what_is_not_offered_is_refused_and_nothing_is_written(
    given: dict[str, Any], field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, target = tmp_path / "train.toml", tmp_path / "out.json"
    path.write_text(toml({"pretrained_model_name_or_path": XL, **LORA, **given}))
    assert script.main([str(path), str(target)]) == 2
    assert not target.exists()
    assert field in capsys.readouterr().err


def test_what_trains_otherwise_is_noted_and_ends_with_3(tmp_path: Path) -> None:
    path, target = tmp_path / "train.toml", tmp_path / "out.json"
    lost = {
        "scale_weight_norms": 1.0,
        "multires_noise_iterations": 6,
        "made_up": 1,
        "seed": "often",
        "in_json": "meta.json",
        "apply_t5_attn_mask": True,
    }
    path.write_text(toml({"pretrained_model_name_or_path": "runwayml/stable-diffusion-v1-5", **LORA, **lost}))
    assert script.main([str(path), str(target)]) == CHANGED
    noted = (tmp_path / "out.json.notes.txt").read_text()
    assert all(name in noted for name in lost)
    assert load_config(target).model_type == "STABLE_DIFFUSION_15"
    assert script.main([str(path), str(target), "--strict"]) == 2
    path.write_text(toml({"pretrained_model_name_or_path": XL, **LORA, "xformers": True, "clip_skip": 1}))
    assert script.main([str(path), str(target), "--overwrite"]) == DONE


@pytest.mark.parametrize(
    ("family", "skipped"), [("STABLE_DIFFUSION_15", 1), ("STABLE_DIFFUSION_XL_10_BASE", 0)]
)
def test_clip_skip_counts_from_1_and_acts_on_one_clip(family: str, skipped: int, tmp_path: Path) -> None:
    read(tmp_path, **LORA, clip_skip=2)
    imported = import_file(tmp_path / "train.toml", family=family)
    assert isinstance(imported.made, TrainConfig)
    assert imported.made.text_encoder.layer_skip == skipped
    assert imported.notes.listed() == []


def test_convolutions_and_other_adapters(tmp_path: Path) -> None:
    config, notes = read(tmp_path, **LORA, network_args=["conv_dim=8", "conv_alpha=4"])
    assert notes.listed() == []
    assert config.layer_filter == "attentions,resnets,downsamplers,upsamplers"
    assert config.rank_patterns()["conv1"] == 8
    assert config.alpha_patterns()["upsamplers"] == 4
    config, _ = read(tmp_path, **{**LORA, "network_module": "lycoris.kohya"}, network_args=["algo=lokr"])
    assert config.peft_type == "LOKR"


def test_adafactor_finds_its_own_rate_unless_it_is_told_not_to(tmp_path: Path) -> None:
    config, notes = read(tmp_path, **LORA, optimizer_type="AdaFactor", learning_rate=1e-3, unet_lr=1e-3)
    assert config.optimizer.params == {"relative_step": True, "scale_parameter": True}
    assert config.learning_rate_scheduler == "ADAFACTOR"
    found = find_problems(config)
    assert found.errors == [] and not [warning for warning in found.warnings if "no effect" in str(warning)]
    assert (config.unet.learning_rate, config.learning_rate) == (None, TrainConfig().learning_rate)
    said = [str(note) for note in notes.listed() if "no effect, there or here" in note.why]
    assert len(said) == 2 and not any(note.changes_weights for note in notes.listed())
    assert "unet.learning_rate" in said[0] and "learning_rate = 0.001" in said[1]


@pytest.mark.parametrize(
    ("key", "shape", "family"),
    [
        ("conditioner.embedders.1.model.ln_final.weight", (4,), "STABLE_DIFFUSION_XL_10_BASE"),
        ("cond_stage_model.transformer.text_model.final_layer_norm.weight", (4,), "STABLE_DIFFUSION_15"),
        ("vector_in.in_layer.weight", (4, 4), "FLUX_SCHNELL_1"),
    ],
)
def test_the_family_is_read_from_the_file(
    key: str, shape: tuple[int, ...], family: str, tmp_path: Path
) -> None:
    model = tmp_path / "model.safetensors"
    save_file({key: torch.zeros(shape)}, model)
    config, _ = read(tmp_path, pretrained_model_name_or_path=str(model), **LORA)
    assert config.model_type == family
    shared = tmp_path / "shared.safetensors"
    save_file({"double_blocks.0.img_attn.qkv.weight": torch.zeros(4, 4)}, shared)
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(b"\xff" * 64)
    for unclear in (shared, damaged):
        with pytest.raises(UserError, match="--family"):
            read(tmp_path, pretrained_model_name_or_path=str(unclear), **LORA)
    path = tmp_path / "train.toml"
    made = import_file(path, family="SANA").made
    assert isinstance(made, TrainConfig)
    assert made.model_type == "SANA"


SETS = """
[general]
shuffle_caption = true
caption_extension = ".txt"
keep_tokens = 1
flip_aug = true

[[datasets]]
resolution = [512, 512]
batch_size = 4
keep_tokens = 2

  [[datasets.subsets]]
  image_dir = "a"
  num_repeats = 3
  class_tokens = "a dog"

  [[datasets.subsets]]
  image_dir = "b"
  keep_tokens = 3
  flip_aug = false
  is_reg = true
  prior_loss_weight = 0.5
  caption_tag_dropout_rate = 0.2
  caption_prefix = "photo of"
"""


@pytest.mark.parametrize(
    ("sizes", "more", "noted"),
    [
        ("resolution = [768, 512]", {}, ["resolution"]),
        ('resolution = "512,512"', {}, []),
        ("resolution = [768, 512]\nenable_bucket = true", {}, ["enable_bucket"]),
        ("resolution = [768, 512]", {"enable_bucket": True}, []),
        ("batch_size = 2", {}, ["batch_size"]),
        ("batch_size = 2", {"train_batch_size": 2}, []),
        ("", {"resolution": "768,512"}, ["resolution"]),
        ("", {"resolution": "768,512", "enable_bucket": True}, []),
    ],
)
def test_shapes_and_batches_of_data_sets_that_are_not_kept_are_noted(
    sizes: str, more: dict[str, Any], noted: list[str], tmp_path: Path
) -> None:
    """Without buckets, kohya crops all images to the shape of the resolution. Each data set has its own batches."""
    subset = '[[datasets.subsets]]\nimage_dir = "a"\nclass_tokens = "a dog"\n'
    (tmp_path / "sets.toml").write_text(f"[[datasets]]\n{sizes}\n{subset}[[datasets]]\n{subset}")
    given = {"dataset_config": "sets.toml"} if sizes else {"train_data_dir": str(tmp_path)}
    _, notes = read(tmp_path, **LORA, **given, **more)
    assert [note.place for note in notes.listed() if note.changes_weights] == noted


def test_inner_settings_of_a_data_set_win(tmp_path: Path) -> None:
    (one, two), notes = concepts(tmp_path, SETS)
    assert [note for note in notes.listed() if note.changes_weights] == []
    assert (one.path, one.balancing, one.text.keep_tags_count, one.image.enable_random_flip) == (
        "a",
        3,
        2,
        True,
    )
    assert (two.path, two.balancing, two.text.keep_tags_count, two.image.enable_random_flip) == (
        "b",
        1,
        3,
        False,
    )
    assert (one.loss_weight, two.loss_weight) == (1, 0.5)
    assert (one.text.missing_caption, one.text.caption_extension) == ("a dog", ".txt")
    assert (two.text.tag_dropout_enable, two.text.tag_dropout_probability) == (True, 0.2)
    assert (two.text.caption_prefix, two.text.tag_dropout_mode) == ("photo of", "RANDOM")
    assert one.image.resolution_override == "512"
    assert one.text.enable_tag_shuffling
    (tmp_path / "sets.toml").write_text(SETS)
    config, _ = read(tmp_path, **LORA, dataset_config="sets.toml", caption_dropout_rate=0.1)
    assert (config.batch_size, [concept.path for concept in config.concepts or []]) == (4, ["a", "b"])
    assert config.text_encoder.dropout_probability == 0.1


def test_folders_named_by_their_repeats_give_that_many_items(tmp_path: Path) -> None:
    for name, count in (("10_sks dog", 2), ("3_cat", 4), ("notes", 1)):
        draw_images(tmp_path / "images" / name, count)
    (tmp_path / "images" / "3_cat" / "0.caption").write_text("a cat on a mat")
    config, notes = read(tmp_path, **LORA, train_data_dir=str(tmp_path / "images"))
    assert notes.listed() == []
    items, visits = [], 0
    for index, concept in enumerate(config.concepts or []):
        found = collect_items(concept, index, str(index))
        assert found.faults == []
        items += found.items
        visits += len(found.items) * int(concept.balancing)
    assert visits == 10 * 2 + 3 * 4
    assert sorted({prompt for item in items for prompt in item.prompts}) == [
        "a cat on a mat",
        "cat",
        "sks dog",
    ]


def test_a_whole_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "configs"
    source.mkdir()
    (source / "a.toml").write_text(toml({"pretrained_model_name_or_path": XL, **LORA}))
    (source / "sets.toml").write_text(SETS)
    (source / "pyproject.toml").write_text('[project]\nname = "x"\n')
    (source / "bad.toml").write_text("a = [")
    assert script.main([str(source), str(tmp_path / "ours")]) == 2
    out = capsys.readouterr().out
    assert "bad.toml: refused" in out
    assert "pyproject" not in out
    assert load_config(tmp_path / "ours" / "a.toml.json").lora_rank == 32
    assert json.loads((tmp_path / "ours" / "sets.toml.json").read_text())[0]["path"] == "a"


MASKS = {"masked_training": True, "unmasked_weight": 0.0, "unmasked_probability": 0.0}


@pytest.mark.parametrize(
    ("run", "subset", "source", "noted"),
    [
        ({"masked_loss": True}, 'conditioning_data_dir = "masks"', "FOLDER", []),
        ({"masked_loss": True}, "alpha_mask = true", "ALPHA", []),
        ({}, "alpha_mask = true", "ALPHA", []),
        ({}, 'conditioning_data_dir = "masks"', None, []),
        ({"masked_loss": True}, "", None, ["masked_loss"]),
    ],
)
def test_masks_come_from_the_subsets(
    run: dict[str, Any], subset: str, source: str | None, noted: list[str], tmp_path: Path
) -> None:
    draw_images(tmp_path / "pets", 1)
    (tmp_path / "data.toml").write_text(
        f'[[datasets]]\n[[datasets.subsets]]\nimage_dir = "{tmp_path / "pets"}"\n{subset}\n', encoding="utf-8"
    )
    config, notes = read(tmp_path, **LORA, **run, dataset_config=str(tmp_path / "data.toml"))
    assert [note.place for note in notes.listed() if "mask" in note] == noted
    assert config.masked_training is (source is not None)
    if source is not None:
        assert {name: getattr(config, name) for name in MASKS} == MASKS
        assert config.mask_source == source and not config.normalize_masked_area_loss
    assert config.concepts is not None
    assert config.concepts[0].mask_path == ("masks" if "conditioning" in subset else "")


def test_two_sources_of_masks_and_those_of_a_lone_data_set_are_noted(tmp_path: Path) -> None:
    draw_images(tmp_path / "pets", 1)
    place = tmp_path / "pets"
    text = f'[[datasets]]\n[[datasets.subsets]]\nimage_dir = "{place}"\nalpha_mask = true\n'
    _, notes = concepts(tmp_path, text)
    (line,) = [note for note in notes.listed() if "mask" in note]
    assert "set masked_training and mask_source ALPHA" in line
    both = f'[[datasets.subsets]]\nimage_dir = "{place}"\nconditioning_data_dir = "masks"\n'
    (tmp_path / "data.toml").write_text(text + both)
    config, notes = read(tmp_path, **LORA, masked_loss=True, dataset_config=str(tmp_path / "data.toml"))
    assert config.mask_source == "ALPHA"
    assert [note for note in notes.listed() if "one source of masks" in note and note.changes_weights]


def test_steps_are_optimizer_steps_in_both_programs(tmp_path: Path) -> None:
    """In ``train_network.py`` of sd-scripts, ``global_step`` grows only if ``accelerator.sync_gradients``, that is with
    each optimizer step. ``max_train_steps``, ``save_every_n_steps`` and ``sample_every_n_steps`` are compared with it.
    """
    config, notes = read(
        tmp_path, **LORA, gradient_accumulation_steps=4, max_train_steps=1000, save_every_n_steps=100,
        sample_every_n_steps=50, lr_scheduler="cosine", lr_warmup_steps=80, mixed_precision="bf16",
    )  # fmt: skip
    assert (config.gradient_accumulation_steps, config.max_steps) == (4, 1000)
    assert (config.save_every, config.save_every_unit) == (100, "STEP")
    assert (config.sample_after, config.sample_after_unit) == (50, "STEP")
    assert config.learning_rate_warmup_steps == 80
    assert not [note for note in notes.listed() if "step" in note]


def test_a_separator_of_kept_tokens_is_noted(tmp_path: Path) -> None:
    text = '[[datasets]]\n[[datasets.subsets]]\nimage_dir = "a"\nkeep_tokens_separator = "|||"\n'
    _, notes = concepts(tmp_path, text)
    assert [note for note in notes.listed() if note.changes_weights and "keep_tokens_separator" in note]


@pytest.mark.parametrize(("name", "least"), [("cosine_with_min_lr", 0.1), ("cosine", 0), ("cosine_with_restarts", 0)])
def test_only_one_schedule_has_a_lowest_rate(name: str, least: float, tmp_path: Path) -> None:
    config, notes = read(tmp_path, **LORA, lr_scheduler=name, lr_scheduler_min_lr_ratio=0.1)
    assert config.learning_rate_min_factor == least
    assert notes.listed() == []


def test_levels_of_a_logit_normal_lie_on_the_side_they_lie_there(tmp_path: Path) -> None:
    config, _ = read(
        tmp_path, pretrained_model_name_or_path="black-forest-labs/FLUX.1-dev", network_module="networks.lora_flux",
        weighting_scheme="logit_normal", logit_mean=0.8, logit_std=0.7,
    )  # fmt: skip
    uniform = (torch.arange(4000) + 0.5) / 4000
    # what is drawn is an index into timesteps that fall from 1000, shifted by 3
    drawn = torch.sigmoid(0.8 + 0.7 * torch.special.ndtri(uniform))
    there = 3 * (1 - drawn) / (1 + 2 * (1 - drawn))
    options = NoiseOptions(config.timestep_distribution, weight=config.noising_weight, bias=config.noising_bias)
    here = noise_level(uniform, options, config.timestep_shift)
    assert torch.sort(here).values == pytest.approx(torch.sort(there).values, abs=1e-3)


@pytest.mark.parametrize(
    ("module", "base", "trained"),
    [
        ("networks.lora_sd3", "stabilityai/stable-diffusion-3.5-large", ["text_encoder", "text_encoder_2"]),
        ("networks.lora_flux", "black-forest-labs/FLUX.1-dev", ["text_encoder"]),
        ("networks.lora", XL, ["text_encoder", "text_encoder_2"]),
    ],
)
def test_the_clips_are_trained_and_no_larger_encoder(
    module: str, base: str, trained: list[str], tmp_path: Path
) -> None:
    config, _ = read(tmp_path, pretrained_model_name_or_path=base, network_module=module)
    assert [name for name in config.model_type.text_encoders if getattr(config, name).train] == trained
    config, _ = read(
        tmp_path, pretrained_model_name_or_path=base, network_module=module, network_train_unet_only=True
    )
    assert not [name for name in config.model_type.text_encoders if getattr(config, name).train]


@pytest.mark.parametrize(("given", "shift"), [({}, 1.0), ({"training_shift": 2.5, "discrete_flow_shift": 3.0}, 2.5)])
def test_the_shift_of_stable_diffusion_3_has_its_own_name(
    given: dict[str, float], shift: float, tmp_path: Path
) -> None:
    base = "stabilityai/stable-diffusion-3.5-large"
    config, _ = read(tmp_path, pretrained_model_name_or_path=base, network_module="networks.lora_sd3", **given)
    assert (config.timestep_distribution, config.timestep_shift) == ("UNIFORM", shift)


LISTED = """
[[datasets]]
  [[datasets.subsets]]
  image_dir = {folder}
  metadata_file = {file}
  num_repeats = 2
  caption_separator = ";"
"""


def write_captions(folder: Path, captions: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "captions.json"
    path.write_text(json.dumps(captions), encoding="utf-8")
    return path


def prompts_of(concept: ConceptConfig) -> dict[str, tuple[str, ...]]:
    found = collect_items(concept, 0, "")
    assert found.faults == [] and found.warnings == []
    return {item.id.removeprefix("/"): item.prompts for item in found.items}


def test_captions_of_a_metadata_file_are_read(tmp_path: Path) -> None:
    images = tmp_path / "images"
    draw_images(images, 2)
    draw_images(images / "more", 1)
    file = write_captions(
        tmp_path,
        {"0": {"caption": "a dog", "tags": "grass, ball"}, "1.png": {"tags": "cat"}, "more/0": {"caption": "a fox"}},
    )
    before = sorted(images.rglob("*"))
    text = LISTED.format(folder=json.dumps(str(images)), file=json.dumps(str(file)))
    (one,), notes = concepts(tmp_path, text)
    assert notes.listed() == [] and one.balancing == 2
    assert prompts_of(one) == {"0.png": ("a dog;grass, ball",), "1.png": ("cat",), "more/0.png": ("a fox",)}
    assert sorted(images.rglob("*")) == before
    # what is written means the same when it is read again
    assert script.main([str(tmp_path / "data.toml"), str(tmp_path / "ours.json")]) == DONE
    (again,) = ConceptConfig.load_all(tmp_path / "ours.json")
    assert prompts_of(again) == prompts_of(one)


def test_full_paths_of_a_metadata_file_name_the_folder(tmp_path: Path) -> None:
    draw_images(tmp_path / "images", 2)
    file = write_captions(
        tmp_path, {str(tmp_path / "images" / f"{number}.png"): {"caption": f"no {number}"} for number in range(2)}
    )
    config, notes = read(tmp_path, **LORA, in_json=str(file), dataset_repeats=3)
    assert notes.listed() == []
    (one,) = config.concepts or []
    assert (one.path, one.balancing, one.include_subdirectories) == (str(tmp_path / "images"), 3, False)
    assert prompts_of(one) == {"0.png": ("no 0",), "1.png": ("no 1",)}
    config, notes = read(tmp_path, **LORA, in_json=str(file), train_data_dir=str(tmp_path))
    assert [one.path for one in config.concepts or []] == [str(tmp_path)]
    assert [one.include_subdirectories for one in config.concepts or []] == [True]


def test_lines_of_captions_next_to_images_are_noted(tmp_path: Path) -> None:
    folder = tmp_path / "images" / "2_dog"
    draw_images(folder, 3)
    for name, text in (("0", "a dog\na cat\n"), ("1", "a fox\n\n"), ("2", "a hen"), ("readme", "not a\ncaption")):
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    given = {**LORA, "train_data_dir": str(tmp_path / "images")}
    _, notes = read(tmp_path, **given, caption_extension=".txt")
    (note,) = notes.listed()
    assert note.changes_weights and "1 caption has several lines" in str(note)
    _, notes = read(tmp_path, **given)
    assert notes.listed() == [], "captions end in .caption by default"
    _, notes = read(tmp_path, **given, caption_extension=".txt", enable_wildcard=True)
    assert "several lines" not in "\n".join(str(note) for note in notes.listed())


def test_captions_that_cannot_be_looked_at_keep_nothing_from_being_imported(tmp_path: Path) -> None:
    draw_images(tmp_path / "images", 1)
    for folder, extension in (("x" * 300, ".txt"), ("none\0", ".txt"), ("images", "../txt"), ("images", "y" * 300)):
        subset = {"image_dir": str(tmp_path / folder), "caption_extension": extension}
        text = "[[datasets]]\nresolution = 512\n[[datasets.subsets]]\n" + toml(subset)
        found, notes = concepts(tmp_path, text)
        assert len(found) == 1
        assert "several lines" not in "\n".join(map(str, notes.listed()))


def test_lines_of_a_listed_caption_and_a_missing_file_are_noted(tmp_path: Path) -> None:
    file = write_captions(tmp_path, {"0": {"caption": "a dog\na cat"}, "1": {"caption": "a fox"}})
    _, notes = read(tmp_path, **LORA, in_json=str(file), train_data_dir=str(tmp_path))
    (note,) = notes.listed()
    assert note.changes_weights and "1 caption has several lines" in str(note)
    _, notes = read(tmp_path, **LORA, in_json="no.json", train_data_dir="images")
    (note,) = notes.listed()
    assert not note.changes_weights and "no.json does not exist" in str(note)
    _, notes = read(tmp_path, **LORA, in_json=str(file))
    assert "the folder of its images is unknown" in "\n".join(str(note) for note in notes.listed())
