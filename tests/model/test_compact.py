"""Frozen weights in fewer bits, or in main memory: the model stays the model, and adapters on it are trained."""

from __future__ import annotations

import logging
import sys

import pytest
import torch
from torch import nn

from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.PeftAdapter import attach
from modules.adapter.reference import Reference
from modules.model import compact
from modules.model.compact import FrozenLinear, block_layers, lock_pages, offload_blocks, pieces, quantize
from modules.model.Model import Model
from modules.model.noising.noise import NoiseOptions
from modules.modelSetup import training
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.trainer.memory.SavedBytes import SavedBytes
from modules.util.config.load import read_config
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UnsupportedError, UserErrors
from tests.tiny import tiny_folder, tiny_model, tiny_setup
from tests.tiny.batches import image_batch
from tests.usual import usual

KEYS = ["STABLE_DIFFUSION_15", "FLUX_DEV_1"]
# a score of about one, and the rounding of random weights
NEAR = {"FLOAT_8": 5e-3, "INT_8": 5e-3, "NFLOAT_4": 3e-2}


def score(setup: BaseModelSetup, model: Model) -> torch.Tensor:
    batch = image_batch(setup, model, ["a", "b"])
    draw = setup.draw_noise(model, batch, NoiseOptions(), seed=1)
    with torch.no_grad():
        return setup.score(model, batch.latents_BChw, batch.cond, draw, batch.size)


def loss(setup: BaseModelSetup, model: Model) -> torch.Tensor:
    batch = image_batch(setup, model, ["a", "b"])
    draw = setup.draw_noise(model, batch, NoiseOptions(), seed=1)
    return setup.calculate_loss(model, batch, draw).mean()


def bytes_of(module: nn.Module) -> int:
    tensors = [*module.parameters(), *module.buffers()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize("kind", list(NEAR))
@pytest.mark.parametrize("key", KEYS)
def test_fewer_bits_are_nearly_the_same_model(key: str, kind: str) -> None:
    if kind != "FLOAT_8":
        pytest.importorskip("bitsandbytes")
    setup, model = tiny_setup(key), tiny_model(key)
    exact, size, mark = score(setup, model), bytes_of(model.denoiser), model.fingerprint(setup.spec.denoiser)
    layers = sum(layer.weight.numel() for _, _, layer in block_layers(model.denoiser))
    model = tiny_model(key)
    assert quantize(model.denoiser, kind, torch.float32) == len(list(block_layers(tiny_model(key).denoiser)))
    assert model.fingerprint(setup.spec.denoiser) != mark, (
        "caches of the exact model would be taken for its own"
    )
    model.place("cpu")
    rough = score(setup, model)
    assert not torch.equal(rough, exact)
    assert torch.allclose(rough, exact, atol=NEAR[kind])
    saved = 3.5 if kind == "NFLOAT_4" else 3.0
    # scales, one for each output or each block of weights, are a large part of layers this small
    assert size - bytes_of(model.denoiser) > 0.5 * saved * layers


@pytest.mark.parametrize("kind", ["FLOAT_8", "INT_8", "NFLOAT_4", "OFFLOAD"])
# every kind of adapter is trained so on Stable Diffusion 1.5 in tests/adapter/test_kept_weights.py
@pytest.mark.parametrize("key", usual(KEYS, "FLUX_DEV_1"))
def test_adapters_are_trained_on_compact_weights(key: str, kind: str) -> None:
    if kind in ("INT_8", "NFLOAT_4"):
        pytest.importorskip("bitsandbytes")
    setup, model = tiny_setup(key), tiny_model(key)
    if kind == "OFFLOAD":
        offload_blocks(model.denoiser, 1.0)
    else:
        quantize(model.denoiser, kind, torch.float32)
    model.place("cpu")
    base = score(setup, model)
    handle = attach(model, AdapterOptions(rank=2, parts=(setup.spec.denoiser,)))
    assert torch.equal(score(setup, model), base), "a fresh adapter changes nothing"
    optimizer = torch.optim.AdamW([p for _, p in handle.named_parameters()], lr=1e-3)
    before = {name: t.clone() for name, t in model.denoiser.state_dict().items() if "lora_" not in name}
    first = loss(setup, model)
    first.backward()
    assert all(p.grad is not None for _, p in handle.named_parameters())
    optimizer.step()
    assert loss(setup, model) < first
    for name, tensor in before.items():
        assert torch.equal(tensor, model.denoiser.state_dict()[name]), name
    with Reference(handle, "NEW_ADAPTER")():
        assert torch.equal(score(setup, model), base)


def test_weights_in_main_memory_give_the_same_gradients_and_are_not_held() -> None:
    grads, held = [], []
    for fraction in (0.0, 1.0):
        setup, model = tiny_setup("FLUX_DEV_1"), tiny_model("FLUX_DEV_1")
        offload_blocks(model.denoiser, fraction)
        handle = attach(model, AdapterOptions(rank=2, parts=("transformer",)))
        for _, parameter in handle.named_parameters():
            parameter.data += 0.01
        model.set_gradient_checkpointing("transformer", True)
        model.set_mode("no_dropout")
        with SavedBytes(list(model.denoiser.parameters())) as saved:
            loss(setup, model).backward()
        grads.append({name: p.grad.clone() for name, p in handle.named_parameters()})
        held.append(saved.current)
    assert all(torch.equal(grads[0][name], grads[1][name]) for name in grads[0])
    assert held == [0, 0], "after the backward pass no copy is left"


def test_what_stays_does_not_move_and_the_rest_does() -> None:
    layer = FrozenLinear(nn.Linear(4, 3))
    layer.keep_in_main_memory()
    layer.to("meta")
    assert layer.weight.device.type == "cpu" and layer.bias.device.type == "meta"
    rounded = FrozenLinear(nn.Linear(4, 3))
    rounded.to_float8()
    scale = rounded.scale_O1.clone()
    rounded.to(torch.bfloat16)
    assert rounded.weight.dtype == torch.float8_e4m3fn
    assert torch.equal(rounded.scale_O1, scale), "scales keep their precision"
    assert rounded.to("meta").weight.device.type == "meta"


@pytest.mark.parametrize("share", [1.0, 0.5, 0.1])
def test_page_locked_memory_is_hardly_more_than_the_weights(share: float) -> None:
    wide = 3072**2
    double, single = [*[wide] * 8, *[4 * wide] * 4, *[6 * wide] * 2], [7 * wide, 5 * wide, 3 * wide]
    sizes = [2 * size for size in double * 19 + single * 38]
    sizes = sizes[len(sizes) - round(share * len(sizes)) :]
    made = list(pieces(sizes))
    assert sorted(index for _, inside in made for index in inside) == list(range(len(sizes)))
    for size, inside in made:
        assert size.bit_count() == 1 and sum(sizes[index] for index in inside) <= size
    alone = sum(1 << (size - 1).bit_length() for size in sizes)
    assert sum(size for size, _ in made) < 1.05 * sum(sizes) < 0.9 * alone


def test_offloaded_weights_are_locked_in_few_pieces(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    taken: list[int] = []

    def memory(size: int) -> torch.Tensor:
        if len(taken) == 2:
            raise RuntimeError("CUDA error: out of memory\nand advice")
        taken.append(size)
        return torch.empty(size, dtype=torch.uint8)

    monkeypatch.setattr(compact, "pinned", memory)
    monkeypatch.setattr(compact, "PINNED_AT_ONCE", 1 << 14)
    plain = [nn.Linear(24, width) for width in (100, 60, 61, 7, 80, 90)]
    layers = [FrozenLinear(layer) for layer in plain]
    layers[1].to_float8()
    weights = [layer.weight.data.clone() for layer in layers]
    with caplog.at_level(logging.WARNING):
        lock_pages(layers)
    assert len(taken) == 2 and max(taken) <= 1 << 14
    places = {layer.weight.untyped_storage().data_ptr() for layer in layers}
    assert 2 < len(places) < len(layers), "two pieces, and what could not be locked"
    for layer, weight in zip(layers, weights, strict=True):
        assert torch.equal(layer.weight.view(torch.uint8), weight.view(torch.uint8))
        assert not layer.weight.requires_grad
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == ["out of memory"]


@pytest.mark.parametrize("shape", [(5, 7), (1, 3)])
def test_float8_keeps_two_digits_of_every_row(shape: tuple[int, int]) -> None:
    plain = nn.Linear(*reversed(shape), bias=False)
    plain.weight.data *= torch.logspace(-6, 3, shape[0])[:, None]
    layer = FrozenLinear(plain)
    exact = plain.weight.data.clone()
    layer.to_float8()
    eye = torch.eye(shape[1])
    assert torch.allclose(layer(eye).T, exact, rtol=0.07, atol=0.0) or (
        ((layer(eye).T - exact).abs() / exact.abs().amax(1, keepdim=True)).max() < 0.04
    )


def test_the_config_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainConfig.from_dict(
        {
            "__version": 1,
            "base_model_name": str(tiny_folder()),
            "train_dtype": "FLOAT_32",
            "unet": {"weight_dtype": "FLOAT_8", "offload_fraction": 0.5},
        }
    )
    model = training.load_model(tiny_setup(), config)
    layers = [layer for _, _, layer in block_layers(model.denoiser)]
    assert all(isinstance(layer, FrozenLinear) and layer.scale_O1 is not None for layer in layers)
    assert sum(layer.stays for layer in layers) == round(0.5 * len(layers))
    assert model.where("unet").type == "cpu" and model.input_dtype() == torch.float32


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"training_method": "FINE_TUNE", "unet": {"weight_dtype": "NFLOAT_4"}}, "unet.weight_dtype"),
        (
            {
                "training_method": "FINE_TUNE",
                "unet": {"offload_fraction": 0.5, "gradient_checkpointing": False},
            },
            "unet.offload_fraction",
        ),
        ({"unet": {"offload_fraction": 0.5, "gradient_checkpointing": False}}, "unet.offload_fraction"),
        ({"unet": {"offload_fraction": 0.5, "weight_dtype": "INT_8"}}, "unet.offload_fraction"),
        ({"unet": {"weight_dtype": "FLOAT_8"}, "lora_decompose": True}, "lora_decompose"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict, field: str) -> None:
    with pytest.raises((UserErrors, UnsupportedError, ValueError)) as caught:
        read_config({"__version": 1, **changes})
    assert field in str(caught.value)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(UnsupportedError, match="bitsandbytes") as caught:
        quantize(tiny_model().denoiser, "NFLOAT_4", torch.float32)
    assert "requirements-gpu.txt" in str(caught.value.hint)


@pytest.mark.parametrize("kind", ["OFFLOAD", "FLOAT_8"])
def test_layers_follow_autocast(kind: str) -> None:
    plain = nn.Linear(8, 6)
    layer = FrozenLinear(plain)
    if kind == "OFFLOAD":
        layer.keep_in_main_memory()
    else:
        layer.to_float8()
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, expected = layer(x), plain(x)
    assert out.dtype == torch.bfloat16
    if kind == "OFFLOAD":
        assert torch.equal(out, expected)
    assert torch.allclose(out.float(), expected.float(), atol=0.15)
    out.float().sum().backward()
    assert x.grad is not None and x.grad.dtype == torch.float32


def test_an_offloaded_model_under_autocast_gives_the_same_gradients() -> None:
    grads = []
    for fraction in (0.0, 1.0):
        setup, model = tiny_setup("FLUX_DEV_1"), tiny_model("FLUX_DEV_1", dtype=torch.bfloat16)
        model.compute_dtype = torch.bfloat16
        offload_blocks(model.denoiser, fraction)
        handle = attach(model, AdapterOptions(rank=2, parts=("transformer",)))
        for _, parameter in handle.named_parameters():
            parameter.data += 0.01
        model.set_gradient_checkpointing("transformer", True)
        model.set_mode("no_dropout")
        loss(setup, model).backward()
        grads.append({name: p.grad.clone() for name, p in handle.named_parameters()})
    assert all(torch.equal(grads[0][name], grads[1][name]) for name in grads[0])


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["FLOAT_8", "INT_8", "NFLOAT_4"])
def test_fewer_bits_train_on_a_gpu(kind: str) -> None:
    if kind != "FLOAT_8":
        pytest.importorskip("bitsandbytes")
    setup, model = tiny_setup("FLUX_DEV_1"), tiny_model("FLUX_DEV_1", dtype=torch.bfloat16)
    model.compute_dtype = torch.bfloat16
    quantize(model.denoiser, kind, torch.bfloat16)
    handle = attach(model, AdapterOptions(rank=2, parts=("transformer",)))
    model.place("cuda")
    optimizer = torch.optim.AdamW([p for _, p in handle.named_parameters()], lr=1e-3)
    first = loss(setup, model)
    first.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for _, p in handle.named_parameters())
    optimizer.step()
    assert loss(setup, model) < first
