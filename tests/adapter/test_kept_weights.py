"""Every kind of adapter on every way weights are kept: it is trained exactly, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.formats import KOHYA, read_adapter, save_adapter
from modules.adapter.PeftAdapter import attach
from modules.model.batch import Conditioning
from modules.model.compact import MAIN_MEMORY, offload_blocks, quantize
from modules.model.dtypes import QUANTIZED
from modules.model.Model import Model
from modules.model.noising.noise import NoiseOptions
from modules.util.config.load import read_config
from modules.util.errors import UnsupportedError, UserErrors
from tests.tiny import tiny_model, tiny_setup
from tests.tiny.batches import image_batch
from tests.usual import usual

KINDS = {
    "LORA": {},
    "DORA": {"decompose": True},
    "LOHA": {"kind": "LOHA"},
    "LOKR": {"kind": "LOKR"},
    "OFT_2": {"kind": "OFT_2"},
}
REFUSED = {("DORA", kept) for kept in (*QUANTIZED, MAIN_MEMORY)} | {
    ("LOHA", "NFLOAT_4"),
    ("LOKR", "NFLOAT_4"),
}
PAIRS = [(kind, kept) for kind in KINDS for kept in (*QUANTIZED, MAIN_MEMORY)]
PARTS = ("unet", "text_encoder")


def options(kind: str, parts: tuple[str, ...] = PARTS) -> AdapterOptions:
    return AdapterOptions(rank=4, alpha=4.0, parts=parts, **KINDS[kind])  # type: ignore[arg-type]


def kept_so(kept: str, parts: tuple[str, ...] = PARTS) -> Model:
    """A model whose parts keep their weights so, rounded already."""
    model = tiny_model()
    for part in parts:
        if kept == MAIN_MEMORY:
            offload_blocks(model.module(part), 1.0)
            continue
        if kept != "FLOAT_8":
            pytest.importorskip("bitsandbytes")
        quantize(model.module(part), kept, torch.float32)
    model.place("cpu")
    model.to("text_encoder", "cpu")
    return model


def outputs(model: Model) -> tuple[torch.Tensor, Conditioning]:
    setup = tiny_setup()
    batch = image_batch(setup, model, ["a", "b"])
    draw = setup.draw_noise(model, batch, NoiseOptions(), seed=1)
    text = setup.encode_text(model, batch.prompts, train=True)
    return setup.score(model, batch.latents_BChw, text, draw, batch.size), text


# every kind, every way, and all that is refused
USUAL = {
    ("LORA", "FLOAT_8"),
    ("LORA", MAIN_MEMORY),
    ("LOHA", "INT_8"),
    ("LOKR", MAIN_MEMORY),
    ("OFT_2", "NFLOAT_4"),
    *REFUSED,
}


@pytest.mark.parametrize(("kind", "kept"), usual(PAIRS, *USUAL))
def test_a_kind_is_trained_exactly_or_refused(kind: str, kept: str) -> None:
    model = kept_so(kept)
    with torch.no_grad():
        base, text = outputs(model)
    if (kind, kept) in REFUSED:
        with pytest.raises(UnsupportedError, match=kept) as caught:
            attach(model, options(kind))
        assert caught.value.field == ("lora_decompose" if kind == "DORA" else "peft_type")
        assert model.adapter is None
        with torch.no_grad():
            assert torch.equal(outputs(model)[0], base), "a refusal leaves the model as it was"
        return
    handle = attach(model, options(kind))
    with torch.no_grad():
        assert torch.allclose(outputs(model)[0], base, atol=1e-6), "a fresh adapter changes nothing"
    parameters = [parameter for _, parameter in handle.named_parameters()]
    optimizer = torch.optim.SGD(parameters, lr=1e-3)
    source = torch.Generator().manual_seed(0)
    for parameter in parameters:
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=source)
    first = -outputs(model)[0].mean()
    first.backward()
    for part in PARTS:
        own = handle.named_parameters(part)
        assert sum(bool(p.grad is not None and p.grad.any()) for _, p in own) > 0.8 * len(own), part
    optimizer.step()
    with torch.no_grad():
        assert -outputs(model)[0].mean() < first
    with torch.no_grad(), handle.disabled():
        off, off_text = outputs(model)
    assert torch.equal(off, base)
    assert all(torch.equal(off_text.tensors[name], tensor) for name, tensor in text.tensors.items())


@pytest.mark.parametrize(("kind", "kept"), sorted(REFUSED))
def test_files_of_a_kind_are_refused_alike(tmp_path: Path, kind: str, kept: str) -> None:
    path = save_adapter(
        attach(tiny_model(), options(kind, ("text_encoder",))), tmp_path / "a.safetensors", KOHYA
    )
    model = kept_so(kept, ("text_encoder",))
    with pytest.raises(UnsupportedError, match=f"text_encoder keeps in {kept}") as caught:
        attach(model, AdapterOptions(), read_adapter(path, model))
    assert caught.value.field == "lora_model_name"
    plain = kept_so(kept, ("unet",))
    attach(plain, AdapterOptions(), read_adapter(path, plain))


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(("kind", "kept"), PAIRS)
def test_the_config_refuses_the_same(kind: str, kept: str, part: str) -> None:
    if (part, kept) == ("text_encoder", MAIN_MEMORY):
        return
    data = {"__version": 1, "peft_type": "LORA" if kind == "DORA" else kind, "lora_decompose": kind == "DORA"}
    kept_as = {"offload_fraction": 0.5} if kept == MAIN_MEMORY else {"weight_dtype": kept}
    checkpointing = {"gradient_checkpointing": True}
    found = {name: ({"train": True} | checkpointing) | (kept_as if name == part else {}) for name in PARTS}
    if (kind, kept) not in REFUSED:
        read_config(data | found)
        return
    with pytest.raises((UnsupportedError, UserErrors), match=f"{part}"):
        read_config(data | found)
    frozen = dict(found[part], train=False)
    read_config(data | found | {part: frozen})
