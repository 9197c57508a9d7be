"""Samples of an adapter that is trained on the undistilled base are made with another denoiser of the family."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.PeftAdapter import attach
from modules.model.Model import Model
from modules.modelSetup import training
from modules.modelSetup.SampleDenoiser import SampleDenoiser
from modules.trainer.memory.memory_plan import plan_memory
from modules.util.config.load import load_config
from modules.util.config.SampleConfig import SampleConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UserError
from scripts.train import main
from tests.contracts.test_family_training import family_config
from tests.house.acts.case import shared_folder
from tests.tiny import SIZE, small_folder, tiny_setup
from tests.tiny.batches import images
from tests.trainer.builders import run_here, same_weights
from tests.usual import usual

KEY, SD = "FLUX_2", "STABLE_DIFFUSION_15"
NAME = "black-forest-labs/FLUX.2-klein-4B"
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (KEY, {}, {}),
    (KEY, {}, {"transformer": {"weight_dtype": "FLOAT_8", "offload_fraction": 0.5}}),
    (SD, {"decompose": True}, {}),
    (SD, {"decompose": True, "decompose_outputs": False}, {}),
    (SD, {"kind": "LOHA"}, {}),
    (SD, {}, {"force_circular_padding": True}),
]


@cache
def distilled(key: str) -> Path:
    """Other weights of the denoiser, and a noise schedule of its own."""

    def write(folder: Path) -> None:
        shutil.copytree(small_folder(key), folder, dirs_exist_ok=True)
        for path in (folder / tiny_setup(key).spec.denoiser).glob("*.safetensors"):
            save_file(
                {name: 1.3 * tensor for name, tensor in load_file(path).items()}, path, {"format": "pt"}
            )
        place = folder / "scheduler" / "scheduler_config.json"
        config = json.loads(place.read_text(encoding="utf-8"))
        config |= {"beta_end": 0.02} if key == SD else {}
        place.write_text(json.dumps(config), encoding="utf-8")
        index = folder / "model_index.json"
        index.write_text(json.dumps(json.loads(index.read_text("utf-8")) | {"_name_or_path": NAME}), "utf-8")

    return shared_folder(f"distilled-{key}", write)


def config_of(key: str, **changes: Any) -> TrainConfig:
    given = {"model_type": key, "base_model_name": str(small_folder(key)), "train_dtype": "FLOAT_32"}
    return TrainConfig.from_dict({**given, **changes})


def adapted(model: Model, options: dict[str, Any]) -> None:
    handle = attach(model, AdapterOptions(rank=2, alpha=4.0, parts=(model.spec.denoiser,), **options))
    source = torch.Generator().manual_seed(3)
    for _, parameter in handle.named_parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=source)


def loaded(key: str, base: Path, **changes: Any) -> Model:
    return training.load_model(tiny_setup(key), config_of(key, base_model_name=str(base), **changes))


def picture(model: Model) -> torch.Tensor:
    return images(tiny_setup(model.spec.key), model, ["a red circle"], seeds=[3], steps=3, cfg=2.0, size=SIZE)


def trained(key: str, options: dict[str, Any], name: str, **changes: Any) -> Model:
    """A model with an adapter that was trained on the base, and with the denoiser of samples."""
    model = loaded(key, small_folder(key), **changes)
    config = config_of(key, sample_model_name=name, **changes)
    model.sample_denoiser = SampleDenoiser.load(tiny_setup(key), model, config)
    adapted(model, options)
    return model


@pytest.mark.parametrize(("key", "options", "changes"), usual(CASES, CASES[0], CASES[-1]))
def test_a_sample_is_that_of_the_other_model_with_the_adapter(
    key: str, options: dict[str, Any], changes: dict[str, Any]
) -> None:
    wanted = loaded(key, distilled(key), **changes)
    bare = picture(wanted)
    adapted(wanted, options)
    model = trained(key, options, str(distilled(key)), **changes)
    before = {name: tensor.clone() for name, tensor in model.denoiser.state_dict().items()}
    kept = [parameter for _, parameter in model.adapter.named_parameters()]
    made = picture(model)
    if options:
        # the magnitudes of DoRA begin as those of the model they were trained on
        for layer, own in zip(wanted.adapter.layers.values(), model.adapter.layers.values(), strict=True):
            layer.load_state_dict(
                {n: t for n, t in own.state_dict().items() if "base_layer" not in n}, strict=False
            )
    assert torch.equal(made, picture(wanted))
    assert not torch.allclose(made, bare, atol=1e-3)
    # what is trained is as it was
    assert all(torch.equal(before[name], tensor) for name, tensor in model.denoiser.state_dict().items())
    assert all(one is other for one, (_, other) in zip(kept, model.adapter.named_parameters(), strict=True))
    model.sample_denoiser = None
    assert not torch.allclose(picture(model), made, atol=1e-3)


@pytest.mark.slow
def test_a_file_has_the_noise_schedule_of_the_base() -> None:
    (file,) = (distilled(SD) / "unet").glob("*.safetensors")
    model, whole = trained(SD, {}, str(file)), trained(SD, {}, str(distilled(SD)))
    made = picture(model)
    assert not torch.equal(made, picture(whole))
    whole.sample_denoiser.loaded.parts["scheduler"] = model.parts["scheduler"]
    whole.sample_denoiser.loaded.schedule = model.schedule
    assert torch.equal(made, picture(whole))


def test_what_a_sample_leaves_open_is_of_the_other_model() -> None:
    model = trained(KEY, {}, str(distilled(KEY)))
    assert model.published is None
    with model.as_sampled():
        assert model.published is not None and model.published.name == NAME
        filled = SampleConfig(prompt="a cat").filled(model.spec, model.published)
    assert (filled.diffusion_steps, filled.cfg_scale) == (4, 1.0)
    assert model.published is None


def test_samples_are_named_after_the_model_that_makes_them(tmp_path: Path) -> None:
    (weights,) = (distilled(SD) / "unet").glob("*.safetensors")
    file = shutil.copy(weights, tmp_path / "my.fast one.safetensors")
    folder = Path(shutil.copytree(distilled(SD) / "unet", tmp_path / "my.fast unet"))
    model = loaded(SD, small_folder(SD))
    assert model.sampled_name == model.short_name == small_folder(SD).name
    for place, name in ((distilled(SD), distilled(SD).name), (file, "my.fast one"), (folder, "my.fast unet")):
        config = config_of(SD, sample_model_name=str(place))
        model.sample_denoiser = SampleDenoiser.load(tiny_setup(SD), model, config)
        assert (model.sampled_name, model.short_name) == (name, small_folder(SD).name)


def run_config(folder: Path, **changes: Any) -> Path:
    given = {"learning_rate": 1e-2, "epochs": 1, "sample_before_training": True, "sample_image_format": "PNG"}
    return family_config(folder, KEY, **{**given, **changes})


def pictures_of(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.rglob("*training-sample*.png"))]


def test_a_run_trains_the_same_weights_and_makes_other_samples(tmp_path: Path) -> None:
    run_here(run_config(tmp_path / "without"))
    run_here(run_config(tmp_path / "with", sample_model_name=str(distilled(KEY))))
    assert same_weights(tmp_path / "with" / "out.safetensors", tmp_path / "without" / "out.safetensors")
    one, other = (pictures_of(tmp_path / name) for name in ("with", "without"))
    assert len(one) == len(other) == 1 and one != other
    named = [
        f"Model: {path.name}".encode() in image
        for path in (distilled(KEY), small_folder(KEY))
        for image in one
    ]
    assert named == [True, False] and f"Model: {small_folder(KEY).name}".encode() in other[0]


def test_another_family_is_refused_before_anything_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = run_config(tmp_path, sample_model_name=str(small_folder("Z_IMAGE")))
    assert main(["--config-path", str(wrong), "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert "sample_model_name" in said and "FLUX.2 klein" in said
    monkeypatch.setattr(training, "load_model", lambda *_: pytest.fail("a model was loaded"))
    with pytest.raises(UserError, match="FLUX.2 klein") as caught:
        run_here(wrong)
    assert caught.value.field == "sample_model_name"


def test_another_size_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "larger"
    shutil.copytree(small_folder(KEY), folder)
    from diffusers import Flux2Transformer2DModel

    config = json.loads((folder / "transformer" / "config.json").read_text(encoding="utf-8"))
    config["num_single_layers"] += 1
    Flux2Transformer2DModel.from_config(config).save_pretrained(folder / "transformer")
    with pytest.raises(UserError, match="single_transformer_blocks.*instead of nothing") as caught:
        plan_memory(load_config(run_config(tmp_path, sample_model_name=str(folder))))
    assert caught.value.field == "sample_model_name"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"training_method": "FINE_TUNE", "rlhf_enabled": False}, "works only with adapters and embeddings"),
        ({"training_adapter": {"model_name": "a.safetensors"}}, "cannot be combined with a training adapter"),
    ],
)
def test_what_it_cannot_be_combined_with(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = run_config(tmp_path, sample_model_name=str(distilled(KEY)))
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")
    with pytest.raises(UserError, match=words):
        load_config(path)


def test_the_forecast_counts_its_weights(tmp_path: Path) -> None:
    own = {"gradient_checkpointing": True, "offload_fraction": 0.5}
    config = load_config(run_config(tmp_path, sample_model_name=str(distilled(KEY)), transformer=own))
    counted = {phase.name: phase.items for phase in plan_memory(config).phases}
    weights = loaded(KEY, distilled(KEY)).denoiser
    size = sum(t.numel() * t.element_size() for t in (*weights.parameters(), *weights.buffers()))
    there = counted["denoising samples"]
    # without the half that stays in main memory
    assert 0 < there["weights: sample_model_name"] == there["weights: transformer"] < size
    assert there["working memory"] > 0
