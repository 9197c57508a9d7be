"""From a config to a prepared model and back to files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from modules.adapter.formats import read_adapter
from modules.adapter.reference import Reference
from modules.model.Model import Model
from modules.model.noising.noise import NoiseOptions
from modules.model.noising.schedule import FlowSchedule
from modules.modelSetup import training
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import ConfigError
from tests.tiny import SIZE, tiny_folder, tiny_model, tiny_setup
from tests.tiny.batches import image_batch, images, train_pairs
from tests.usual import usual

SETUP = tiny_setup()


def config(**values: Any) -> TrainConfig:
    """Defaults with the tiny model, full precision and these values."""
    base = {"base_model_name": str(tiny_folder()), "train_dtype": "FLOAT_32", "lora_rank": 4}
    return TrainConfig.from_dict(base | values)


def prepared(**values: Any) -> tuple[Model, TrainConfig]:
    made = config(**values)
    model = training.load_model(SETUP, made)
    training.prepare(SETUP, model, made)
    return model, made


def names(model: Model, made: TrainConfig) -> dict[str, list[str]]:
    groups = training.trainable_parameters(model, made)
    return {group: [name for name, _ in found] for group, _, found in groups}


def step(model: Model, made: TrainConfig) -> None:
    """One supervised optimizer step on everything trainable."""
    groups = training.trainable_parameters(model, made)
    parameters = [p for _, _, found in groups for _, p in found]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    batch = image_batch(SETUP, model, ["a", "b"], encoded=not model.trains_text)
    draw = SETUP.draw_noise(model, batch, training.noise_options(made), made.seed)
    model.set_mode("train")
    SETUP.calculate_loss(model, batch, draw, training.loss_options(made)).mean().backward()
    optimizer.step()


def image(model: Model) -> torch.Tensor:
    return images(SETUP, model, ["a red cat"], seeds=[2], steps=2, cfg=2.0, size=SIZE)


def test_lora_of_the_denoiser() -> None:
    model, made = prepared(layer_filter_preset="attn-only")
    found = names(model, made)
    assert list(found) == ["unet_lora"]
    assert all("attn" in name for name in found["unet_lora"])
    assert not model.trains_text
    assert model.denoiser.is_gradient_checkpointing


def test_lora_of_both_with_learning_rates() -> None:
    parts = {"unet": {"learning_rate": 1e-3}, "text_encoder": {"train": True}}
    model, made = prepared(**parts)
    groups = training.trainable_parameters(model, made)
    assert [(group, lr) for group, lr, _ in groups] == [("unet_lora", 1e-3), ("text_encoder_lora", None)]
    assert model.trains_text


def test_lora_of_the_text_encoder_alone() -> None:
    model, made = prepared(unet={"train": False}, text_encoder={"train": True})
    assert list(names(model, made)) == ["text_encoder_lora"]


def test_nothing_to_train_is_an_error() -> None:
    off = config(unet={"train": False}, text_encoder={"train": False})
    with pytest.raises(ConfigError, match="every part is switched off"):
        training.trained_parts(off, SETUP.spec)


def test_a_custom_filter_that_matches_nothing() -> None:
    made = config(layer_filter_preset="custom", layer_filter="attn1,nonsense")
    with pytest.raises(ConfigError, match="nonsense"):
        training.prepare(SETUP, tiny_model(), made)


@pytest.mark.parametrize("suffix", usual([".safetensors", ""], ".safetensors"))
def test_fine_tuning_and_saving_the_model(tmp_path: Path, suffix: str) -> None:
    from diffusers import StableDiffusionPipeline

    model, made = prepared(training_method="FINE_TUNE", text_encoder={"train": True})
    found = names(model, made)
    assert list(found) == ["unet", "text_encoder"]
    count = sum(p.numel() for p in model.denoiser.parameters())
    assert sum(p.numel() for _, _, f in training.trainable_parameters(model, made)[:1] for _, p in f) == count
    before = image(tiny_model())
    step(model, made)
    after = image(model)
    assert not torch.allclose(before, after, atol=1e-3)
    path = training.save(model, tmp_path / f"out{suffix}")
    assert path.is_file() == bool(suffix)
    if suffix:
        return  # the way back is tested with models whose shape such files can tell
    pipeline = StableDiffusionPipeline.from_pretrained(str(path))
    pipeline.set_progress_bar_config(disable=True)
    theirs = pipeline(
        "a red cat",
        num_inference_steps=2,
        guidance_scale=2.0,
        height=SIZE[0],
        width=SIZE[1],
        generator=torch.Generator().manual_seed(2),
        output_type="pt",
    ).images
    assert torch.allclose(theirs, after, atol=1e-5)


def test_families_without_single_files_are_saved_as_folders(tmp_path: Path) -> None:
    path = training.save(tiny_model("STABLE_DIFFUSION_21"), tmp_path / "model.safetensors")
    assert path == tmp_path / "model" and (path / "model_index.json").is_file()


def test_layouts_of_the_other_method_are_refused(tmp_path: Path) -> None:
    model, _ = prepared()
    with pytest.raises(ConfigError, match="layout of whole models"):
        training.save(model, tmp_path / "a.safetensors", "DIFFUSERS")
    with pytest.raises(ConfigError, match="layout of adapters"):
        training.save(tiny_model(), tmp_path / "a.safetensors", "KOHYA_LORA")


def test_continuing_from_an_adapter(tmp_path: Path) -> None:
    model, made = prepared(text_encoder={"train": True})
    step(model, made)
    path = training.save(model, tmp_path / "first.safetensors", made.output_model_format, None, {"step": 1})
    again, other = prepared(lora_model_name=str(path), lora_rank=8)
    assert again.adapter.notes and again.trains_text, "the file has a text encoder part"
    assert torch.allclose(image(again), image(model), atol=1e-6)
    reference = Reference(again.adapter, other.effective_dpo_ref_mode())
    assert reference.mode == "EXISTING_ADAPTER"
    assert read_adapter(path, tiny_model()).metadata["tastemaker.step"] == "1"


def test_caption_dropout_outlives_the_text_encoder() -> None:
    model, made = prepared(text_encoder={"dropout_probability": 1.0})
    batch = image_batch(SETUP, model, ["a", "b"])
    empty = SETUP.encode_text(model, [""])
    model.release("text_encoder", "tokenizer")
    draw = SETUP.draw_noise(model, batch, training.noise_options(made), made.seed)
    mixed = SETUP.condition(model, batch, draw)
    assert torch.equal(mixed["hidden_BLE"][0], empty["hidden_BLE"][0])


def test_noise_options_of_both_kinds_of_steps() -> None:
    made = config(
        timestep_distribution="LOGIT_NORMAL",
        noising_bias=0.5,
        noising_weight=0.1,
        offset_noise_weight=0.05,
        perturbation_noise_weight=0.1,
        text_encoder={"dropout_probability": 0.2},
        rlhf_dpo_timestep_strata=8,
    )
    supervised = training.noise_options(made)
    assert supervised == NoiseOptions(
        "LOGIT_NORMAL", 0.1, 0.5, offset_weight=0.05, perturbation_weight=0.1, caption_dropout=0.2
    )
    preference = training.noise_options(made, preference=True)
    assert preference.strata == 8 and preference.pool == 0
    assert preference.perturbation_weight == 0.0 and preference.caption_dropout == 0.0
    cached = config(rlhf_dpo_reference_cache=True, rlhf_dpo_reference_cache_draws=4)
    assert training.noise_options(cached, preference=True).pool == 4
    even = config(rlhf_dpo_timestep_sampling="UNIFORM")
    assert training.noise_options(even, preference=True).strata == 0


def test_loss_options_reach_the_loss() -> None:
    made = config(
        mse_strength=0.0, mae_strength=2.0, loss_weight_fn="MIN_SNR_GAMMA", loss_weight_strength=3.0
    )
    model = tiny_model()
    batch = image_batch(SETUP, model, ["a", "b"])
    draw = SETUP.draw_noise(model, batch, NoiseOptions(), 1)
    with torch.no_grad():
        out = SETUP.predict(model, batch.latents_BChw, batch.cond, draw, batch.size)
        loss = SETUP.calculate_loss(model, batch, draw, training.loss_options(made))
    snr = model.schedule.snr(draw.timestep_B)
    weight = snr.clamp(max=3.0) / snr
    expected = 2.0 * (out.predicted - out.target).abs().flatten(1).mean(1) * weight
    assert torch.allclose(loss, expected, rtol=1e-5)


def test_sample_weights_scale_the_loss() -> None:
    from dataclasses import replace

    model = tiny_model()
    batch = image_batch(SETUP, model, ["a", "b"])
    draw = SETUP.draw_noise(model, batch, NoiseOptions(), 1)
    with torch.no_grad():
        plain = SETUP.calculate_loss(model, batch, draw)
        heavy = replace(batch, loss_weight_B=torch.tensor([1.0, 3.0]))
        assert torch.allclose(SETUP.calculate_loss(model, heavy, draw), plain * torch.tensor([1.0, 3.0]))


def test_dtypes_and_predictions_from_the_config() -> None:
    made = config(train_dtype="BFLOAT_16", unet={"weight_dtype": "BFLOAT_16"}, force_v_prediction=True)
    model = training.load_model(SETUP, made)
    assert next(model.denoiser.parameters()).dtype == torch.bfloat16
    assert model.compute_dtype == torch.bfloat16
    assert model.schedule.prediction == "v_prediction"
    assert training.prediction_override(config(force_epsilon_prediction=True)) == "epsilon"
    assert training.prediction_override(config()) is None


def test_dropout_never_reaches_preference_steps() -> None:
    from modules.objective.preference import ObjectiveOptions, get_preference_loss
    from tests.tiny.batches import pair_batch

    model, made = prepared(dropout_probability=0.9, layer_filter_preset="full")
    for _, parameter in model.adapter.named_parameters():
        parameter.data += 0.05
    pair = pair_batch(SETUP, model, ["p"])
    draws = SETUP.draw_pair_noise(model, pair, NoiseOptions(), 1)
    losses = []
    for _ in range(2):
        model.set_mode("train")
        out = train_pairs(
            SETUP,
            model,
            pair,
            draws,
            Reference(model.adapter, "NEW_ADAPTER"),
            get_preference_loss("SIGMOID"),
            ObjectiveOptions(),
            "SEQUENTIAL",
            strategy="THREE_FORWARD",
            parameters=[p for _, _, found in training.trainable_parameters(model, made) for _, p in found],
        )
        losses.append(out.margin_B)
    assert torch.equal(losses[0], losses[1])
    model.set_mode("train")
    with torch.no_grad():
        noisy = [SETUP.calculate_loss(model, pair.chosen, draws[0]) for _ in range(2)]
    assert not torch.equal(noisy[0], noisy[1]), "supervised steps do have dropout"


def test_timesteps_are_shifted_by_the_size_of_each_image() -> None:
    flux = tiny_setup("FLUX_DEV_1")
    model = SimpleNamespace(
        schedule=FlowSchedule(), latent_factor=8, device=torch.device("cpu"), parts={"scheduler": {}}
    )
    options = training.noise_options(config(model_type="FLUX_DEV_1", dynamic_timestep_shifting=True))
    for pixels, shift in ((512, 1.878), (768, 2.332), (1024, 3.158)):
        side = pixels // 8
        batch = SimpleNamespace(latents_BChw=torch.zeros(1, 1, side, side), ids=["a"], visits=[0])
        drawn = flux.draw_noise(model, batch, options, 1)
        plain = flux.draw_noise(model, batch, NoiseOptions(), 1)
        level = float(plain.timestep_B) / 1000
        assert float(drawn.timestep_B) / 1000 == pytest.approx(
            shift * level / (1 + (shift - 1) * level), abs=1e-4
        )
        assert torch.equal(drawn.noise_BChw, plain.noise_BChw)
