"""A training adapter is on while training, and off in samples and in the saved file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.formats import save_adapter
from modules.adapter.PeftAdapter import attach
from modules.model.Model import Model
from modules.modelSetup import training
from modules.modelSetup.converting import convert_adapter
from modules.trainer.callbacks import Callback
from modules.util.config.load import load_config
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import ConfigError, UserError
from modules.weights.hub_file import find_file
from scripts.train import main
from tests.contracts.test_family_training import family_config
from tests.house.acts.case import shared_folder
from tests.tiny import SIZE, small_folder, tiny_model, tiny_setup
from tests.tiny.batches import images
from tests.trainer.builders import run_and_go_back, run_here, same_weights
from tests.usual import usual

KEY = "FLUX_2"
OTHERS = ("Z_IMAGE", "FLUX_SCHNELL_1", "KREA_2")
"""Further families of which a distilled model is published with a training adapter."""
LAYOUTS = ("KOHYA_LORA", "COMFY_LORA", "DIFFUSERS_LORA", "LEGACY_LORA")


def _write(folder: Path) -> None:
    """An adapter that changes images, in every layout; those of other families and kinds."""
    for key, options, layouts in (
        (KEY, {}, LAYOUTS),
        *((other, {}, ("COMFY_LORA",)) for other in OTHERS),
        (KEY, {"decompose": True}, ("LEGACY_LORA",)),
        (KEY, {"parts": ("transformer", "text_encoder")}, ("COMFY_LORA",)),
    ):
        model = tiny_model(key)
        given: dict[str, Any] = {"rank": 2, "alpha": 4.0, "parts": ("transformer",), **options}
        handle = attach(model, AdapterOptions(**given))
        source = torch.Generator().manual_seed(3)
        for _, parameter in handle.named_parameters():
            parameter.data += 0.2 * torch.randn(parameter.shape, generator=source)
        name = f"{key}-{'-'.join(options)}"
        for layout in layouts:
            save_adapter(handle, folder / f"{name}{layout}.safetensors", layout)


@cache
def adapter_file(name: str = f"{KEY}-KOHYA_LORA") -> str:
    return str(shared_folder("training-adapters", _write) / f"{name}.safetensors")


class Losses(Callback):
    """Keeps the loss of every step."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def step(self, progress: object, metrics: Mapping[str, float], total: int, eta: float | None) -> None:
        self.losses.append(metrics["loss/train_step"])


def file_of(key: str) -> str:
    return adapter_file() if key == KEY else adapter_file(f"{key}-COMFY_LORA")


def run_config(folder: Path, key: str = KEY, **changes: Any) -> Path:
    given: dict[str, Any] = {"training_adapter": {"model_name": file_of(key)}, "epochs": 1}
    return family_config(folder, key, **{**given, **changes})


def loaded(key: str = KEY, **changes: Any) -> Model:
    given: dict[str, Any] = {
        "model_type": key,
        "base_model_name": str(small_folder(key)),
        "train_dtype": "FLOAT_32",
        "training_adapter": {"model_name": file_of(key)},
    }
    return training.load_model(tiny_setup(key), TrainConfig.from_dict({**given, **changes}))


def picture(model: Model) -> torch.Tensor:
    setup = tiny_setup(model.spec.key)
    return images(setup, model, ["a red circle"], seeds=[3], steps=3, cfg=1.0, size=SIZE)


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_is_added_to_the_weights_whatever_its_layout(layout: str) -> None:
    path = adapter_file(f"{KEY}-{layout}")
    before, after = tiny_model(KEY), loaded(training_adapter={"model_name": path, "strength": 0.5})
    handle = attach(before, AdapterOptions(), training.read_adapter(path, before))
    changed = 0
    own = dict(after.denoiser.named_parameters())
    for place, layer in handle.layers.items():
        expected = layer.get_base_layer().weight + 0.5 * layer.get_delta_weight("default")
        found = own[f"{place.partition('.')[2]}.weight"]
        assert torch.allclose(found, expected, atol=1e-6)
        changed += not torch.equal(found, layer.get_base_layer().weight)
    assert changed == len(handle.layers) > 0


@pytest.mark.parametrize("key", usual([KEY, *OTHERS], KEY, "Z_IMAGE"))
def test_a_sample_is_that_of_the_distilled_model(key: str) -> None:
    distilled, model = tiny_model(key), loaded(key)
    wanted = picture(distilled)
    assert difference(picture(model), wanted) < 1e-4
    # with it, images are others
    model.training_adapter = None
    assert difference(picture(model), wanted) > 0.01


@pytest.mark.slow
def test_a_sample_in_eight_bits_is_nearly_that_of_the_distilled_model() -> None:
    eight = {"transformer": {"weight_dtype": "FLOAT_8"}}
    wanted = picture(loaded(training_adapter={"model_name": ""}, **eight))
    model = loaded(**eight)

    def psnr() -> float:
        return -10.0 * math.log10(float(((picture(model) - wanted) ** 2).mean()))

    taken_back = psnr()
    model.training_adapter = None
    assert taken_back > 30.0 > psnr()


def test_it_is_added_before_weights_are_rounded() -> None:
    """The rounded weights are those of the sum, not the sum of rounded ones."""
    from modules.model.compact import FrozenLinear, quantize

    model, summed = loaded(transformer={"weight_dtype": "FLOAT_8"}), loaded()
    quantize(summed.denoiser, "FLOAT_8", torch.float32)
    other = dict(summed.denoiser.named_modules())
    rounded = [(n, m) for n, m in model.denoiser.named_modules() if isinstance(m, FrozenLinear)]
    assert rounded
    for name, layer in rounded:
        assert torch.equal(layer.weight.float(), other[name].weight.float())
        assert torch.equal(layer.scale_O1, other[name].scale_O1)


def test_training_starts_at_log_two_and_the_file_has_no_key_of_it(tmp_path: Path) -> None:
    seen = Losses()
    run_here(run_config(tmp_path / "with", learning_rate=1e-2), callback=seen)
    run_here(run_config(tmp_path / "without", learning_rate=1e-2, training_adapter={}))
    assert seen.losses[0] == pytest.approx(math.log(2.0), abs=1e-5)
    one, other = (load_file(tmp_path / side / "out.safetensors") for side in ("with", "without"))
    assert {name: t.shape for name, t in one.items()} == {name: t.shape for name, t in other.items()}
    assert any(not torch.equal(one[name], other[name]) for name in one)
    model = loaded()
    assert metadata(tmp_path / "with")["tastemaker.training_adapter_hash"] == model.training_adapter.digest
    assert "tastemaker.training_adapter_hash" not in metadata(tmp_path / "without")


def metadata(folder: Path) -> Mapping[str, str]:
    with safe_open(str(folder / "out.safetensors"), "pt") as file:
        return dict(file.metadata())


def test_a_stopped_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    broken = run_config(tmp_path, epochs=2)
    run_and_go_back(broken, 1)
    with pytest.raises(ConfigError, match=r"training_adapter.strength: 1.0 in the backup, 0.5 now"):
        run_here(broken, "continue_last_backup=true", "training_adapter.strength=0.5")
    other = changed_copy(tmp_path / "other.safetensors")
    with pytest.raises(UserError, match="same model and training adapter"):
        run_here(broken, "continue_last_backup=true", f"training_adapter.model_name={other}")
    run_here(broken, "continue_last_backup=true")
    assert same_weights(tmp_path / "whole.safetensors", tmp_path / "out.safetensors")


def peft_folder(folder: Path) -> Path:
    """A LoRA as peft writes it, with an alpha of five times its rank in the settings next to it. Returns its file."""
    made = get_peft_model(tiny_model(KEY).denoiser, LoraConfig(r=2, lora_alpha=10, target_modules=["to_q", "to_v"]))
    source = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "lora_" in name:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=source))
    made.save_pretrained(str(folder))
    return folder / "adapter_model.safetensors"


def test_a_stopped_run_with_one_of_peft_ends_with_the_same_weights(tmp_path: Path) -> None:
    """Its settings are a part of it: they must be there, and the same, when the run is resumed."""
    undo = peft_folder(tmp_path / "peft")
    settings = undo.with_name("adapter_config.json")
    changes = {"training_adapter": {"model_name": str(undo)}, "learning_rate": 1e-2}
    broken = run_config(tmp_path, epochs=2, **changes)
    run_and_go_back(broken, 1)
    before = settings.read_text(encoding="utf-8")
    settings.write_text(before.replace('"lora_alpha": 10', '"lora_alpha": 2'), encoding="utf-8")
    assert settings.read_text(encoding="utf-8") != before
    with pytest.raises(UserError, match="same model and training adapter"):
        run_here(broken, "continue_last_backup=true")
    settings.unlink()
    with pytest.raises(UserError, match="same model and training adapter"):
        run_here(broken, "continue_last_backup=true")
    settings.write_text(before, encoding="utf-8")
    run_here(broken, "continue_last_backup=true")
    assert same_weights(tmp_path / "whole.safetensors", tmp_path / "out.safetensors")
    # and its strength is what it is in a file that holds it
    convert_adapter(undo, tmp_path / "kohya.safetensors", "KOHYA_LORA", KEY, small_folder(KEY))
    changes["training_adapter"] = {"model_name": str(tmp_path / "kohya.safetensors")}
    run_here(run_config(tmp_path / "kohya", epochs=2, **changes))
    one, other = (load_file(path / "out.safetensors") for path in (tmp_path, tmp_path / "kohya"))
    assert all(torch.allclose(one[name], other[name], atol=1e-6) for name in one)
    # which is not the strength of its tensors alone
    changes["training_adapter"] = {"model_name": str(undo), "strength": 0.2}
    run_here(run_config(tmp_path / "weak", epochs=2, **changes))
    weak = load_file(tmp_path / "weak" / "out.safetensors")
    assert not all(torch.allclose(one[name], weak[name], atol=1e-6) for name in one)


# its place in a run has nothing of a family; that the files of each fit is seen of samples
@pytest.mark.slow
@pytest.mark.parametrize("key", OTHERS)
def test_every_family_trains_with_one(key: str, tmp_path: Path) -> None:
    """From log 2 to a file with the keys of its own LoRA alone, the same after a stop."""
    seen = Losses()
    changes = {"learning_rate": 1e-2, "output_model_format": "COMFY_LORA"}
    path = run_config(tmp_path, key, **changes)
    run_and_go_back(path, 1, callback=seen)
    assert seen.losses[0] == pytest.approx(math.log(2.0), abs=1e-5)
    run_here(path, "continue_last_backup=true")
    out = tmp_path / "out.safetensors"
    assert same_weights(tmp_path / "whole.safetensors", out)
    config = load_config(path)
    own = attach(tiny_model(key), training.adapter_options(config, tiny_setup(key).spec))
    save_adapter(own, tmp_path / "own.safetensors", "COMFY_LORA")
    found, wanted = (load_file(path) for path in (out, tmp_path / "own.safetensors"))
    assert {name: t.shape for name, t in found.items()} == {name: t.shape for name, t in wanted.items()}


@pytest.mark.parametrize("key", usual(OTHERS, "Z_IMAGE"))
def test_that_of_another_family_is_refused(key: str) -> None:
    other = file_of(OTHERS[OTHERS.index(key) - 1])
    with pytest.raises(UserError, match=f"does not fit {tiny_setup(key).spec.label}") as caught:
        loaded(key, training_adapter={"model_name": other})
    assert caught.value.field == "training_adapter.model_name"


def changed_copy(path: Path) -> Path:
    save_file({name: 1.5 * tensor for name, tensor in load_file(adapter_file()).items()}, path)
    return path


def test_reference_scores_are_kept_apart(tmp_path: Path) -> None:
    """Scores of the reference with one training adapter are not those with another."""
    changes = {"rlhf_dpo_reference_cache": True, "cache_dir": str(tmp_path / "cache")}
    run_here(run_config(tmp_path / "one", **changes))
    kept = {path.name.partition("-")[0] for path in (tmp_path / "cache").rglob("*-0.safetensors")}
    other = {"model_name": str(changed_copy(tmp_path / "other.safetensors"))}
    run_here(run_config(tmp_path / "two", **changes, training_adapter=other))
    both = {path.name.partition("-")[0] for path in (tmp_path / "cache").rglob("*-0.safetensors")}
    assert len(kept) == 1 and len(both) == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Z_IMAGE-COMFY_LORA", "does not fit FLUX.2 klein"),
        (f"{KEY}-decomposeLEGACY_LORA", "only a plain LoRA"),
        (f"{KEY}-partsCOMFY_LORA", "also changes text_encoder"),
    ],
)
def test_what_cannot_be_one_is_refused(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        loaded(training_adapter={"model_name": adapter_file(name)})
    assert caught.value.field == "training_adapter.model_name"


def test_layers_that_the_model_lacks_are_an_error(tmp_path: Path) -> None:
    tensors = load_file(adapter_file())
    tensors["lora_unet_single_blocks_7_linear1.lora_down.weight"] = torch.zeros(2, 32)
    tensors["lora_unet_single_blocks_7_linear1.lora_up.weight"] = torch.zeros(8, 2)
    save_file(tensors, tmp_path / "more.safetensors")
    with pytest.raises(UserError, match="single_blocks_7_linear1"):
        loaded(training_adapter={"model_name": str(tmp_path / "more.safetensors")})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"training_method": "FINE_TUNE", "rlhf_enabled": False}, "works only when an adapter is trained"),
        ({"rlhf_enabled": True, "rlhf_mode": "GRPO"}, "rollouts must use exactly the weights that are trained"),
        ({"rlhf_enabled": True, "rlhf_mode": "GSPO"}, "rollouts must use exactly the weights that are trained"),
    ],
)
def test_ways_of_training_that_cannot_have_one(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = run_config(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")
    with pytest.raises(UserError, match=words):
        load_config(path)


def test_the_dry_run_reads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = run_config(tmp_path, training_adapter={"model_name": adapter_file("Z_IMAGE-COMFY_LORA")})
    assert main(["--config-path", str(wrong), "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert "training_adapter.model_name" in said and "does not fit FLUX.2 klein" in said


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing-here.safetensors", "does not exist"),
        ("owner/name/model.ckpt", "does not exist"),
        ("owner/../name.safetensors", "does not exist"),
        ("owner/name", "cannot be downloaded"),
        ("owner/name/file.safetensors", "cannot be downloaded"),
    ],
)
def test_files_that_are_not_there(name: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=words) as caught:
        find_file(name, "training_adapter.model_name")
    assert caught.value.field == "training_adapter.model_name"


def test_a_pickle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(b"x")
    with pytest.raises(UserError, match="not a safetensors file"):
        find_file(str(tmp_path / "a.pt"), "training_adapter.model_name")


@pytest.mark.slow
def test_compiled_blocks_are_those_of_the_distilled_model_in_samples() -> None:
    """torch.compile does not notice that the calculation of a layer changes for a while."""
    distilled, model = tiny_model(KEY), loaded()
    layers = [one.denoiser.transformer_blocks[0].ff for one in (distilled, model)]
    tokens_BLE = torch.randn(1, 3, 32, generator=torch.Generator().manual_seed(1))
    layers[1].compile(backend="eager")
    with torch.no_grad():
        wanted, trained = (layer(tokens_BLE) for layer in layers)
        assert difference(trained, wanted) > 1e-3
        with model.denoising_samples():
            assert difference(layers[1](tokens_BLE), wanted) < 1e-5
        assert torch.equal(layers[1](tokens_BLE), trained)
