"""Transformers from GGUF files: they compute as the numbers their blocks stand for, and the blocks stay as they are."""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path
from struct import pack

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.formats import save_adapter
from modules.adapter.PeftAdapter import attach
from modules.model.compact import MAIN_MEMORY, offload_blocks
from modules.model.dtypes import GGUF, PartDtypes
from modules.model.gguf_file import read_gguf
from modules.model.gguf_layers import GgufLinear, block_kinds, unpacked
from modules.model.Model import Model
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.converting import convert_checkpoint, merge_adapter
from modules.modelSetup.training import check_weights
from modules.util.errors import UnsupportedError, UserError
from tests.model.test_compact import loss
from tests.tiny import SIZE, tiny_folder, tiny_setup
from tests.tiny.batches import images
from tests.tiny.gguf_files import KINDS, write_gguf
from tests.weights.test_part_sources import FAMILIES, PREFIX, configs_beside, denoiser_file

FLUX = "FLUX_DEV_1"
USUAL = (FLUX, "QWEN")
"""One family with joined layers, and one in the names of diffusers."""
KEYS = [
    *USUAL,
    *(
        pytest.param(key, marks=pytest.mark.slow)
        for key in FAMILIES
        if key not in USUAL and tiny_setup(key).spec.denoiser == "transformer"
    ),
]
TOO_NARROW = ("PIXART", "SANA", "STABLE_DIFFUSION")
"""Families whose tiny models have layers that are narrower than a block, which are kept in 32 bits."""


def written(key: str, folder: Path, prefix: str = "", kinds: tuple[str, ...] = KINDS) -> tuple[Path, Path]:
    """A tiny denoiser as GGUF, and a plain file with the numbers that it stands for."""
    path, plain = folder / "model.gguf", folder / "plain.safetensors"
    state = load_file(denoiser_file(key, plain, prefix))
    save_file(write_gguf(path, state, kinds), plain)
    return path, plain


def with_denoiser(key: str, path: Path, dtypes: PartDtypes | None = None) -> tuple[BaseModelSetup, Model]:
    setup = tiny_setup(key)
    return setup, setup.load(str(tiny_folder(key)), dtypes, part_sources={setup.spec.denoiser: str(path)})


def packed_layers(model: Model) -> list[GgufLinear]:
    return [layer for layer in model.denoiser.modules() if isinstance(layer, GgufLinear)]


def refused(path: Path, said: str, key: str = FLUX, part: str = "transformer") -> UserError:
    """The one error of a file, the same whether weights are read or not."""
    for dtypes in (PartDtypes(lazy=True), PartDtypes()):
        with pytest.raises(UserError, match=said) as caught:
            tiny_setup(key).load(str(tiny_folder(key)), dtypes, part_sources={part: str(path)})
        assert caught.value.field == f"{part}.model_name" and caught.value.hint
    return caught.value


@pytest.mark.parametrize("key", KEYS)
def test_a_transformer_computes_as_its_blocks_say(key: str, tmp_path: Path) -> None:
    path, plain = written(key, tmp_path)
    setup, model = with_denoiser(key, path)
    other = with_denoiser(key, plain)[1]
    layers = packed_layers(model)
    assert bool(layers) is not key.startswith(TOO_NARROW)
    for layer in layers:
        assert layer.weight.dtype == torch.uint8 and layer.kept_as == GGUF
        assert layer.weight.numel() <= layer.in_features * layer.out_features * 34 / 32
    first, second = (
        images(setup, each, ["a red cat"], seeds=[1], steps=2, size=SIZE) for each in (model, other)
    )
    assert torch.allclose(first, second, atol=1e-5)
    if layers:
        assert model.fingerprint("transformer") != other.fingerprint("transformer")


def test_what_a_file_lacks_comes_from_elsewhere(tmp_path: Path) -> None:
    path, plain = written(FLUX, tmp_path, PREFIX)
    setup, folder = tiny_setup(FLUX), str(tiny_folder(FLUX))
    configs_beside(FLUX, path, ("transformer", "scheduler"))
    with pytest.raises(UserError, match="lacks parts of .*: text_encoder, .*, tokenizer_2") as caught:
        setup.load(str(path))
    assert "transformer.model_name to this file" in str(caught.value.hint)
    rest = {name: folder for name in setup.spec.module_parts if name != "transformer"}
    model, other = setup.load(str(path), part_sources=rest), with_denoiser(FLUX, plain)[1]
    assert packed_layers(model)
    made = [images(setup, each, ["a cat"], seeds=[1], steps=2, size=SIZE) for each in (model, other)]
    assert torch.allclose(made[0], made[1], atol=1e-5)


@pytest.mark.parametrize("offloaded", [0.0, 1.0])
def test_an_adapter_gets_the_gradients_of_the_plain_numbers(tmp_path: Path, offloaded: float) -> None:
    gradients = []
    for path in written(FLUX, tmp_path):
        setup, model = with_denoiser(FLUX, path)
        if offloaded and packed_layers(model):
            offload_blocks(model.denoiser, offloaded)
            assert {layer.kept_as for layer in packed_layers(model)} == {MAIN_MEMORY}
        handle = attach(model, AdapterOptions(rank=2, parts=("transformer",)))
        for _, parameter in handle.named_parameters():
            parameter.data += 0.01
        model.set_gradient_checkpointing("transformer", True)
        blocks = [layer.weight.clone() for layer in packed_layers(model)]
        loss(setup, model).backward()
        torch.optim.AdamW([p for _, p in handle.named_parameters()], lr=0.1).step()
        assert all(
            torch.equal(layer.weight, b) for layer, b in zip(packed_layers(model), blocks, strict=True)
        )
        gradients.append({name: p.grad for name, p in handle.named_parameters()})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        assert torch.allclose(gradient, gradients[1][name], rtol=1e-4, atol=1e-5), name


@pytest.mark.parametrize("kind", sorted(block_kinds()))
def test_blocks_are_read_as_their_own_package_reads_them(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import gguf

    monkeypatch.setattr("modules.model.gguf_layers.AT_ONCE", 600)
    size = block_kinds()[kind][1]
    packed = torch.randint(
        0, 120, (5, 2 * size), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )
    want = torch.from_numpy(gguf.quants.dequantize(packed.numpy(), gguf.GGMLQuantizationType[kind]))
    assert want.isfinite().all() and torch.equal(unpacked(packed, kind, torch.float32), want)
    assert torch.equal(unpacked(packed, kind, torch.bfloat16), want.bfloat16())


def test_shapes_that_were_changed_to_fit_into_blocks_are_restored(tmp_path: Path) -> None:
    import gguf

    state = load_file(written(FLUX, tmp_path)[1])
    path = tmp_path / "reshaped.gguf"
    writer = gguf.GGUFWriter(str(path), "flux")
    for name, tensor in state.items():
        shape = list(tensor.shape)
        if name.endswith("img_mod.lin.weight"):
            tensor = tensor.reshape(-1, 64)
            writer.add_array(f"comfy.gguf.orig_shape.{name}", shape)
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(tensor.numpy(), kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, tensor.numpy())
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    model, other = (with_denoiser(FLUX, each)[1] for each in (path, tmp_path / "plain.safetensors"))
    assert not packed_layers(model)
    for name, tensor in other.denoiser.state_dict().items():
        assert torch.allclose(model.denoiser.state_dict()[name], tensor, atol=2e-3), name


# -- files that are not what they should be --------------------------------------------------------------------


def text(value: bytes) -> bytes:
    return pack("<Q", len(value)) + value


def header(*, magic: bytes = b"GGUF", version: int = 3, tensors: int = 0, facts: int = 0) -> bytes:
    return magic + pack("<IQQ", version, tensors, facts)


def tensor(
    name: bytes = b"img_in.weight", sizes: tuple[int, ...] = (32, 2), kind: int = 8, at: int = 0
) -> bytes:
    return text(name) + pack(f"<I{len(sizes)}Q", len(sizes), *sizes) + pack("<IQ", kind, at)


HUGE = 2**63
BAD = {
    "empty": (b"", "ends within its header|claims more data than there is room for"),
    "another format": (header(magic=b"PK\3\4"), "does not begin as a GGUF file does"),
    "big endian": (b"GGUF" + pack(">IQQ", 3, 1, 0), "version 50331648 of the format"),
    "old version": (header(version=1), "version 1 of the format"),
    "countless tensors": (header(tensors=HUGE), f"claims {HUGE} tensors"),
    "countless facts": (header(facts=HUGE), f"and {HUGE} metadata values"),
    "endless name": (header(tensors=1) + pack("<Q", HUGE), f"a text of {HUGE} bytes"),
    "endless text": (header(facts=1) + text(b"a") + pack("<IQ", 8, HUGE), f"a text of {HUGE} bytes"),
    "endless list": (header(facts=1) + text(b"a") + pack("<IIQ", 9, 4, HUGE), f"a list of {HUGE} numbers"),
    "endless texts": (header(facts=1) + text(b"a") + pack("<IIQ", 9, 8, HUGE), f"a list of {HUGE} metadata values"),
    "lists in lists": (
        header(facts=1) + text(b"a") + pack("<IIQ", 9, 9, 1) + b"\0" * 64,
        "metadata values of the type 9",
    ),
    "unknown fact": (header(facts=1) + text(b"a") + pack("<I", 77), "unknown type 77"),
    "many axes": (header(tensors=1) + tensor(sizes=(1,) * 9), "img_in.weight has 9 axes"),
    "huge tensor": (header(tensors=1) + tensor(sizes=(2**40, 2**20)), "it ends before img_in.weight does"),
    "outside": (header(tensors=1) + tensor(at=2**50) + b"\0" * 200, "it ends before img_in.weight does"),
    "twice": (header(tensors=2) + 2 * tensor() + b"\0" * 200, "img_in.weight is listed twice"),
    "in each other": (
        header(tensors=2) + tensor() + tensor(b"b", at=32) + b"\0" * 400,
        "overlaps another tensor",
    ),
    "not whole blocks": (
        header(tensors=1) + tensor(sizes=(33, 2)) + b"\0" * 200,
        "33 columns, not a multiple of 32, the size of a Q8_0 block",
    ),
    "unsupported blocks": (header(tensors=1) + tensor(kind=39) + b"\0" * 200, "numbers of the type MXFP4"),
    "unknown blocks": (header(tensors=1) + tensor(kind=999) + b"\0" * 200, "numbers of the type number 999"),
    "whole numbers": (header(tensors=1) + tensor(kind=26) + b"\0" * 400, "numbers of the type I32"),
    "odd alignment": (
        header(facts=1) + text(b"general.alignment") + pack("<II", 4, 0),
        "data are aligned to 0 bytes",
    ),
    "shape of another size": (
        header(tensors=1, facts=1)
        + text(b"comfy.gguf.orig_shape.img_in.weight")
        + pack("<IIQ3i", 9, 5, 3, -32, -2, 7)
        + tensor()
        + b"\0" * 200,
        "gives img_in.weight a shape of another size",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_header_that_cannot_be_is_refused_with_one_error(case: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(BAD[case][0])
    refused(path, BAD[case][1])


def test_long_lists_of_numbers_take_no_memory(tmp_path: Path) -> None:
    """As numbers of Python they take forty times the bytes that they have in the file."""
    path, count = tmp_path / "model.gguf", 4 << 20
    numbers = pack("<IIQ", 9, 2, count) + b"\1\2" * count
    path.write_bytes(header(tensors=1, facts=1) + text(b"a") + numbers + tensor() + b"\0" * 200)
    tracemalloc.start()
    try:
        tensors, _ = read_gguf(path)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert list(tensors) == ["img_in.weight"] and most < 1 << 20


def test_a_truncated_file_is_named_wherever_it_ends(tmp_path: Path) -> None:
    path, _ = written(FLUX, tmp_path)
    whole = path.read_bytes()
    for length in (7, 23, 60, 400, len(whole) // 2, len(whole) - 40):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match="is damaged: (it ends|its header)"):
            with_denoiser(FLUX, path, PartDtypes(lazy=True))


def test_unknown_and_missing_tensors_are_listed(tmp_path: Path) -> None:
    path, plain = written(FLUX, tmp_path)
    state = load_file(plain)
    state.pop("double_blocks.0.img_attn.qkv.weight")
    write_gguf(path, state | {"adapter.0.weight": torch.zeros(2, 32)})
    error = refused(path, r"unknown \(1\)(.|\n)*adapter\.0\.weight")
    assert "double_blocks.0.img_attn.qkv.weight" in str(error)
    write_gguf(path, {"tower.0.attn_q.weight": torch.zeros(32, 32)})
    refused(path, r"unknown \(1\)(.|\n)*tower\.0\.attn_q")


def test_other_parts_and_unets_are_refused(tmp_path: Path) -> None:
    path, _ = written(FLUX, tmp_path)
    for part in ("vae", "text_encoder_2"):
        refused(path, "is supported for the transformer alone", part=part)
    refused(path, "not supported for the unet of", "STABLE_DIFFUSION_15", "unet")


def test_undefined_blocks_are_named_before_training(tmp_path: Path) -> None:
    path, _ = written(FLUX, tmp_path, kinds=("Q4_1",))
    model = with_denoiser(FLUX, path)[1]
    check_weights(model)
    layer = packed_layers(model)[0]
    layer.weight.data[1, 2:4] = torch.tensor([float("nan")], dtype=torch.float16).view(torch.uint8)
    with pytest.raises(UserError, match=r"1 blocks of .*\.weight in the transformer"):
        check_weights(model)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = written(FLUX, tmp_path)
    block_kinds.cache_clear()
    monkeypatch.setitem(sys.modules, "diffusers.quantizers.gguf.utils", None)
    try:
        error = refused(path, "need the package gguf, which is not installed")
        assert "requirements-gpu.txt" in str(error.hint)
    finally:
        block_kinds.cache_clear()


# -- conversion ------------------------------------------------------------------------------------------------


def test_a_file_can_be_written_in_16_bits_and_takes_no_adapter(tmp_path: Path) -> None:
    path, plain = written(FLUX, tmp_path)
    configs_beside(FLUX, path, ("transformer", "scheduler"))
    configs_beside(FLUX, plain, ("transformer", "scheduler"))
    convert_checkpoint(str(path), tmp_path / "out.safetensors", FLUX, "SAFETENSORS", torch.float32)
    made, want = load_file(tmp_path / "out.safetensors"), load_file(plain)
    assert made.keys() == want.keys()
    assert all(torch.equal(made[name], tensor) for name, tensor in want.items())
    handle = attach(with_denoiser(FLUX, plain)[1], AdapterOptions(rank=2, parts=("transformer",)))
    save_adapter(handle, tmp_path / "a.safetensors")
    with pytest.raises(UnsupportedError, match="adapters are not merged into these"):
        merge_adapter(str(path), tmp_path / "a.safetensors", tmp_path / "m.safetensors", FLUX, "SAFETENSORS")
    assert not (tmp_path / "m.safetensors").exists()
