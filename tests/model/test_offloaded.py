"""Trained weights in main memory: which they are, how a part moves without them, and what a run of them needs."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest
import torch
from torch import nn

from modules.model.noising.noise import NoiseOptions
from modules.model.offloaded import left_behind, offload_trained, staying_trained
from modules.trainer.memory.memory_plan import check_main_memory
from modules.util.config.load import find_problems, read_config
from modules.util.errors import UnsupportedError
from tests.tiny import tiny_model, tiny_setup
from tests.tiny.batches import image_batch

KEY = "FLUX_DEV_1"
WHOLE = {
    "__version": 1, "training_method": "FINE_TUNE", "model_type": KEY, "rlhf_enabled": False,
    "transformer": {"offload_fraction": 0.5, "gradient_checkpointing": True},
    "optimizer": {"optimizer": "ADAFACTOR", "params": {"scale_parameter": False}},
}  # fmt: skip


def test_the_last_layers_of_the_blocks_stay_with_all_they_have() -> None:
    counts = []
    for fraction in (0.0, 0.25, 0.5, 1.0):
        denoiser = tiny_model(KEY).denoiser
        names = {id(p): name for name, p in denoiser.named_parameters()}
        assert offload_trained(denoiser, fraction) == len(staying_trained(denoiser))
        there = [names[id(p)] for p in staying_trained(denoiser)]
        counts.append(len(there))
        assert all("transformer_blocks." in name for name in there), "what surrounds the blocks moves"
        inside = [name for name in names.values() if "transformer_blocks." in name]
        assert there == inside[len(inside) - len(there) :]
    assert counts[0] == 0 and counts == sorted(set(counts)) and counts[3] == len(inside)


def test_a_part_moves_without_them_and_they_stay_the_same_parameters() -> None:
    model = tiny_model(KEY)
    offload_trained(model.denoiser, 0.5)
    there = staying_trained(model.denoiser)
    model.to("transformer", "meta")
    assert all(one is other for one, other in zip(there, staying_trained(model.denoiser), strict=True))
    assert {p.device.type for p in there} == {"cpu"}
    assert model.where("transformer").type == "meta"
    with pytest.raises(ZeroDivisionError), left_behind(model.denoiser):
        _ = 1 / 0
    assert len(staying_trained(model.denoiser)) == len(there)


def test_gradients_are_the_same_and_a_failed_pass_leaves_the_weights_at_home() -> None:
    grads = []
    for fraction in (0.0, 1.0):
        setup, model = tiny_setup(KEY), tiny_model(KEY)
        offload_trained(model.denoiser, fraction)
        model.denoiser.requires_grad_(True)
        model.set_gradient_checkpointing("transformer", True)
        model.set_mode("train")
        batch = image_batch(setup, model, ["a", "b"])
        draw = setup.draw_noise(model, batch, NoiseOptions(), seed=1)
        setup.calculate_loss(model, batch, draw).mean().backward()
        grads.append({name: p.grad for name, p in model.denoiser.named_parameters()})
    assert all(torch.equal(grads[0][name], gradient) for name, gradient in grads[1].items())

    layers = nn.ModuleDict({"blocks": nn.ModuleList([nn.ModuleDict({"one": nn.Linear(3, 2)})])})
    layer = layers["blocks"][0]["one"]
    offload_trained(layers, 1.0)
    weight = layer.weight
    with pytest.raises(RuntimeError):
        layer(torch.zeros(1, 5, device="meta"))
    assert layer.weight is weight
    assert layer(torch.zeros(1, 3, device="meta")).device.type == "meta", "copied where the input is"
    assert layer.weight is weight and weight.device.type == "cpu"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"ema": "GPU"}, "ema"),
        ({"optimizer": {"optimizer": "PRODIGY"}, "learning_rate": 1.0}, "optimizer.optimizer"),
        ({"acceleration": {"shared": ["torch_compile"]}}, "acceleration.shared"),
        ({"transformer": {"offload_fraction": 0.5, "gradient_checkpointing": False}}, "transformer.offload_fraction"),
        ({"transformer": {"offload_fraction": 0.5, "weight_dtype": "FLOAT_8"}}, "transformer.weight_dtype"),
    ],
)  # fmt: skip
def test_what_does_not_go_with_it_is_refused(change: dict[str, object], field: str) -> None:
    assert find_problems(read_config(WHOLE)).errors == []
    config = read_config(WHOLE)
    made = type(config).from_dict({**config.to_dict(), **change})
    assert [error.field for error in find_problems(made).errors] == [field]


def test_more_than_the_free_main_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(KEY)
    offload_trained(model.denoiser, 1.0)
    size = sum(p.nbytes for p in staying_trained(model.denoiser))

    def needed(**changes: object) -> int:
        config = read_config({**WHOLE, **changes})
        low, high = 0, 64 * size
        while high - low > 1:
            middle = (low + high) // 2
            free = SimpleNamespace(available=middle)
            monkeypatch.setattr(psutil, "virtual_memory", lambda free=free: free)
            try:
                check_main_memory(config, model)
                high = middle
            except UnsupportedError as error:
                assert error.field == "transformer.offload_fraction"
                low = middle
        return high

    adam = {"optimizer": {"optimizer": "ADAMW"}}
    fused = {"optimizer": {"optimizer": "ADAMW", "fused_back_pass": True}, "clip_grad_norm": 0.0}
    assert needed(**adam) == pytest.approx(4 * size, rel=1e-3), "weights, gradients and two moments"
    assert needed(**fused) == pytest.approx(3 * size, rel=1e-3)
    assert needed(**fused, ema="CPU") == pytest.approx(4 * size, rel=1e-3)
    assert needed() < 2.2 * size
