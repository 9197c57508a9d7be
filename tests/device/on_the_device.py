"""Runs that only count on a device with its own memory; used by ``test_another_device.py`` with the plugin."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

from modules.model.batch import ImageBatch
from modules.model.noising.noise import NoiseOptions
from modules.trainer import distributed
from modules.trainer.callbacks import Callback
from modules.trainer.optim.optimizers import create_optimizer, load_optimizer_state, optimizer_state
from modules.trainer.resume.checkpoint import list_backups
from modules.util.config.section.OptimizerConfig import OptimizerConfig
from modules.util.enum.choices import Optimizer
from modules.util.TrainProgress import TrainProgress
from tests.contracts.test_family_training import CASES, family_config
from tests.device import plugin
from tests.device.plugin import NAME as DEVICE
from tests.tiny import tiny_model, tiny_setup
from tests.trainer.builders import run_here, write_config, write_pairs
from tests.usual import usual

SAMPLE = {"prompt": "a cat", "width": 64, "height": 64, "diffusion_steps": 2}
SETTINGS: dict[str, dict[str, Any]] = {
    "bfloat16": {"train_dtype": "BFLOAT_16"},
    "float16": {"train_dtype": "FLOAT_16"},
    "checkpointing": {"unet": {"gradient_checkpointing": True}, "train_dtype": "BFLOAT_16"},
    "one after the other": {"rlhf_dpo_execution_mode": "SEQUENTIAL"},
    "reference cache": {"rlhf_dpo_reference_cache": True},
    "nothing cached": {"latent_caching": False},
    "captions dropped": {"text_encoder": {"dropout_probability": 0.5}},
    "text encoder trained": {"text_encoder": {"train": True}},
    "average on the device": {"ema": "GPU", "ema_update_step_interval": 1},
    "average on the CPU": {"ema": "CPU", "ema_update_step_interval": 1},
    "float8": {
        "unet": {"weight_dtype": "FLOAT_8", "gradient_checkpointing": True},
        "train_dtype": "BFLOAT_16",
    },
    "offloaded": {"unet": {"offload_fraction": 0.5, "gradient_checkpointing": True}},
    "weights decomposed": {"lora_decompose": True},
    "weights decomposed by inputs": {"lora_decompose": True, "lora_decompose_output_axis": False},
    "supervised": {"rlhf_enabled": False, "loss_weight_fn": "MIN_SNR_GAMMA"},
    "samples": {"samples": [SAMPLE], "sample_after": 1, "sample_after_unit": "STEP"},
    "held out": {"rlhf_dpo_validation": True, "rlhf_dpo_validation_percentage": 34.0},
}


def distance(first: Path, second: Path) -> float:
    """The largest difference of two adapter files, relative to the largest weight."""
    one, other = load_file(first), load_file(second)
    assert one.keys() == other.keys()
    difference = max(float((one[name] - other[name]).abs().max()) for name in one)
    return difference / max(float(value.abs().max()) for value in one.values())


USUAL = ("reference cache", "float8", "offloaded")
"""Runs next to these have the others: in bfloat16, one after the other, with dropped captions, samples, averages, and
pairs that are held out."""


@pytest.mark.parametrize("name", usual(SETTINGS, *USUAL))
def test_settings(name: str, tmp_path: Path) -> None:
    changes = dict(SETTINGS[name])
    if name == "supervised":
        changes["concepts"] = [{**write_pairs(tmp_path / "data")[0], "type": "STANDARD"}]
    # three steps: what is made in the first is used by the second and the third
    path = write_config(tmp_path, epochs=1, **changes)
    trainer = run_here(path)
    assert trainer.progress.global_step == (2 if name == "held out" else 3)
    weights = load_file(tmp_path / "out.safetensors")
    assert all(torch.isfinite(value).all() for value in weights.values())
    assert any("up" in name and bool(value.any()) for name, value in weights.items()), "nothing was learnt"


# weights of Adam do not show the length of a gradient
@pytest.mark.parametrize("optimizer", usual(["ADAMW", "SGD"], "SGD"))
def test_what_is_learnt_is_what_a_cpu_learns(
    optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: dict[str, Any] = {"optimizer": {"optimizer": optimizer}}
    if optimizer == "SGD":
        changes["learning_rate"] = 1.0
    path = write_config(tmp_path / "device", **changes)
    run_here(path)
    with monkeypatch.context() as undone:
        undone.setattr(distributed.Processes, "__init__", plugin.as_it_was)
        here = run_here(write_config(tmp_path / "cpu", **changes))
    assert here.parts.model.device.type == "cpu"
    assert distance(tmp_path / "device" / "out.safetensors", tmp_path / "cpu" / "out.safetensors") < 1e-3


FAMILIES = (
    "STABLE_DIFFUSION_15", "STABLE_DIFFUSION_XL_10_BASE", "STABLE_DIFFUSION_3", "FLUX_DEV_1", "FLUX_2", "QWEN",
)  # fmt: skip
"""For each kind of text encoder and of denoiser one; SANA is trained in ``on_the_device_memory.py``."""


@pytest.mark.parametrize("key", usual(CASES, *FAMILIES))
def test_every_family(key: str, tmp_path: Path) -> None:
    """Two shapes, a step each; stopping and resuming them is the same code as on the CPU, and tried in full there."""
    assert run_here(family_config(tmp_path, key, epochs=1)).progress.global_step == 2


OPTIMIZERS = [name for name in Optimizer if not name.value.endswith("8BIT")]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers(optimizer: Optimizer) -> None:
    """Steps, and steps after a restart, of weights of several shapes."""
    config = OptimizerConfig.from_dict({"optimizer": optimizer.value})

    def made() -> tuple[list[torch.nn.Parameter], torch.optim.Optimizer]:
        torch.manual_seed(1)
        shapes = ((4, 3), (3,), (2, 3, 3, 3), ())
        parameters = [torch.nn.Parameter(torch.randn(shape).to(DEVICE)) for shape in shapes]
        rate = 1.0 if optimizer.adapts_its_rate else 0.01
        # Muon takes the layers of blocks
        named = [(f"block.{i}", p) for i, p in enumerate(parameters)]
        return parameters, create_optimizer(config, [("all", rate, named)])

    def step(parameters: list[torch.nn.Parameter], made: torch.optim.Optimizer) -> None:
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        made.step()

    first, optimizer_of_first = made()
    before = [parameter.detach().cpu().clone() for parameter in first]
    step(first, optimizer_of_first)
    second, optimizer_of_second = made()
    names = [str(number) for number in range(len(first))]
    load_optimizer_state(optimizer_of_second, copy.deepcopy(optimizer_state(optimizer_of_first, names)), names)
    for parameter, value in zip(second, first, strict=True):
        parameter.data.copy_(value.data)
    step(first, optimizer_of_first)
    step(second, optimizer_of_second)
    for parameter, value, old in zip(second, first, before, strict=True):
        assert parameter.device.type == DEVICE
        assert torch.equal(parameter.detach().cpu(), value.detach().cpu())
        assert not torch.equal(value.detach().cpu(), old)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_runs_of_all_optimizers(optimizer: Optimizer, tmp_path: Path) -> None:
    path = write_config(tmp_path, optimizer={"optimizer": optimizer.value}, epochs=1, ema="GPU")
    assert run_here(path).progress.global_step == 3


@pytest.mark.parametrize("key", usual(["FLUX_DEV_1", "STABLE_DIFFUSION_XL_10_BASE", "SANA"], "SANA"))
def test_half_precision(key: str, tmp_path: Path) -> None:
    spec = tiny_setup(key).spec
    stored = {part: {"weight_dtype": "BFLOAT_16"} for part in (spec.denoiser, "vae", *spec.text_encoders)}
    path = family_config(tmp_path, key, train_dtype="BFLOAT_16", **stored)
    assert run_here(path).progress.global_step == 4


def test_the_device_refuses_what_a_gpu_refuses() -> None:
    there = torch.ones(2, 2).to(DEVICE)
    here = torch.ones(2, 2)
    for mixed in (
        lambda: there + here,
        lambda: there @ here,
        lambda: torch.cat([there, here]),
        lambda: torch.nn.functional.conv2d(there[None, None], here[None, None]),
        lambda: torch.randn(2, device=DEVICE, generator=torch.Generator()),
        lambda: torch.nn.functional.embedding(torch.tensor([1]), there),
    ):
        with pytest.raises(RuntimeError):
            mixed()
    assert torch.equal((there * 2 + torch.tensor(1.0)).cpu(), here * 3), (
        "single numbers may come from anywhere"
    )
    with torch.autocast(DEVICE, torch.bfloat16):
        assert (there @ there).dtype == torch.bfloat16
        assert torch.nn.functional.layer_norm(there, (2,)).dtype == torch.float32


@pytest.mark.parametrize(
    ("optimizer", "average"),
    usual(
        itertools.product(["ADAMW", "SCHEDULE_FREE_ADAMW"], ["CPU", "GPU"]),
        ("ADAMW", "CPU"),
        ("SCHEDULE_FREE_ADAMW", "GPU"),
    ),
)
@pytest.mark.skipif(DEVICE != "second", reason="counts the test device's bytes")
def test_looking_at_a_whole_model_copies_nothing_on_the_device(
    optimizer: str, average: str, tmp_path: Path
) -> None:
    whole = {"training_method": "FINE_TUNE", "rlhf_enabled": False, "ema": average, "max_steps": 2}
    concepts = [{**write_pairs(tmp_path / "data")[0], "type": "STANDARD"}]
    kind = {"optimizer": {"optimizer": optimizer}, "ema_update_step_interval": 1}
    parts = run_here(write_config(tmp_path, **whole, **kind, concepts=concepts)).parts
    trained = [parameter.detach().cpu().clone() for parameter in parts.parameters]
    size = sum(parameter.nbytes for parameter in trained)
    device = torch.second  # type: ignore[attr-defined]
    before = device.live()
    device.reset_peak()
    with parts.exported_weights():
        shown = [parameter.detach().cpu().clone() for parameter in parts.parameters]
        assert device.live() - before < 0.1 * size
    assert device.peak() - before < 0.1 * size
    assert not all(torch.equal(one, other) for one, other in zip(shown, trained, strict=True))
    for parameter, value in zip(parts.parameters, trained, strict=True):
        assert torch.equal(parameter.detach().cpu().view(torch.int32), value.view(torch.int32))


class LittleRoom(Callback):
    """Gives the device no more than it holds once the second step is done."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def step(self, progress: TrainProgress, metrics: Any, total: int, eta: float | None) -> None:
        if progress.global_step == 2:
            device = torch.second
            device.set_limit(device.live() + 4096)

    def warning(self, message: str) -> None:
        self.told.append(message)

    def error(self, message: str, category: str, hint: str = "", traceback: str = "") -> None:
        self.told.append(category)


@pytest.mark.skipif(DEVICE != "second", reason="only there memory can be limited")
def test_exhausted_memory_costs_samples_but_nothing_learnt(tmp_path: Path) -> None:
    path = write_config(tmp_path, samples=[SAMPLE], sample_after=2, sample_after_unit="STEP")
    listener = LittleRoom()
    try:
        with pytest.raises(torch.OutOfMemoryError):
            run_here(path, callback=listener)
    finally:
        torch.second.set_limit(0)
    assert any("1 of 1 samples were not made" in text for text in listener.told)
    assert listener.told[-1] == "gpu_memory"
    (backup,) = list_backups(tmp_path / "run" / "backup")
    assert "backup-2-" in backup.name
    assert run_here(path, "continue_last_backup=true").progress.global_step == 6


class Waits(TorchDispatchMode):
    """Notes what the CPU would wait for on a GPU: numbers and copies that come back from the device."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        name = function.name()
        there = any(isinstance(one, torch.Tensor) and one.device.type == DEVICE for one in args)
        back = isinstance(made, torch.Tensor) and made.device.type == "cpu"
        if there and (name == "aten::_local_scalar_dense" or (back and name == "aten::_to_copy")):
            self.seen.append(name)
        return made


# the others cut their prompts to length in every pass
@pytest.mark.parametrize("key", ["STABLE_DIFFUSION_15", "STABLE_DIFFUSION_XL_10_BASE", "FLUX_DEV_1", "SANA"])
def test_a_training_pass_waits_for_nothing(key: str) -> None:
    setup, model = tiny_setup(key), tiny_model(key)
    latents_BChw = torch.randn(2, model.latent_channels, 8, 8)
    batch = ImageBatch(
        latents_BChw, setup.encode_text(model, ["a cat", "a dog"]), ["a cat", "a dog"], ["1", "2"], [0, 0],
        (8 * model.latent_factor, 8 * model.latent_factor), torch.ones(2),
    )  # fmt: skip
    model.place(DEVICE)
    draw = setup.draw_noise(model, batch, NoiseOptions(caption_dropout=1e-9), 0)
    assert draw.noise_BChw.device.type == DEVICE
    with Waits() as waits, torch.no_grad():
        setup.calculate_loss(model, batch, draw)
    assert waits.seen == []
    with waits:
        assert bool(draw.timestep_B.cpu()[0] == draw.timestep_B[0])
    assert len(waits.seen) == 2
