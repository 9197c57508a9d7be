"""Converting and merging hold one tensor at a time, and give what doing it with the whole model in memory gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.formats import LEGACY, read_adapter, save_adapter
from modules.adapter.PeftAdapter import NAME, attach
from modules.model.dtypes import PartDtypes
from modules.model.Model import Model, base_tensors
from modules.modelSetup import converting
from modules.util.tensors.lazy_tensors import file_tensors
from modules.weights.saving import part_tensors, single_file_tensors
from scripts.convert_model import main
from tests.adapter.families import trained_family
from tests.scripts.test_convert_model import FEW
from tests.tiny import tiny_folder, tiny_model, tiny_setup
from tests.tiny.stable_diffusion import write_pipeline, write_standard_pipeline
from tests.usual import usual

ROOT = Path(__file__).parents[2]
SD, XL, FLUX = "STABLE_DIFFUSION_15", "STABLE_DIFFUSION_XL_10_BASE", "FLUX_DEV_1"
MIB = 2**20


def convert(*argv: object) -> int:
    return main([str(word) for word in argv])


def merged_in_memory(key: str, adapter: Path, strength: float) -> Model:
    """A whole model with an adapter merged the plain way."""
    model = tiny_model(key)
    handle = attach(model, AdapterOptions(parts=(model.spec.denoiser,)), read_adapter(adapter, model))
    with torch.no_grad():
        for layer in handle.layers.values():
            base = layer.get_base_layer()
            before = base.weight.data.clone()
            layer.merge(safe_merge=True, adapter_names=[NAME])
            base.weight.data = before + strength * (base.weight.data - before)
    return model


KINDS: list[dict[str, Any]] = [
    {},
    {"decompose": True, **FEW},
    {"decompose": True, "decompose_outputs": False, **FEW},
    {"kind": "LOHA", **FEW},
    {"kind": "LOKR", **FEW},
    {"kind": "OFT_2", **FEW},
]


MERGED = [(SD, options) for options in KINDS] + [(FLUX, {}), ("QWEN", {}), ("SANA", {"kind": "LOKR"})]


# the other kinds are merged for their images in test_convert_model.py
@pytest.mark.parametrize(("key", "options"), usual(MERGED, MERGED[1], MERGED[3], MERGED[6], MERGED[8]))
def test_merging_gives_the_same_bytes(key: str, options: dict[str, Any], tmp_path: Path) -> None:
    adapter = save_adapter(trained_family(key, **options), tmp_path / "a.safetensors", LEGACY)
    words = ("merge", tiny_folder(key), adapter, tmp_path / "m", "--to", "DIFFUSERS", "--family", key)
    assert convert(*words, "--strength", "0.7") == 0
    expected = merged_in_memory(key, adapter, 0.7)
    plain = tiny_model(key)
    for name, module in expected.modules().items():
        (made,) = (tmp_path / "m" / name).glob("*.safetensors")
        root = expected.spec.part(name).file_root
        state = {
            f"{root}.{k}" if root and not k.startswith(root) else k: v.clone()
            for k, v in base_tensors(module)
        }
        save_file(state, tmp_path / "expected.safetensors", {"format": "pt"})
        assert made.read_bytes() == (tmp_path / "expected.safetensors").read_bytes(), name
        changed = any(not torch.equal(v, plain.module(name).state_dict()[k]) for k, v in base_tensors(module))
        assert changed == (name != expected.spec.vae)
    setup = tiny_setup(key)
    again = setup.load(str(tmp_path / "m"))
    assert again.modules().keys() == expected.modules().keys()


def test_a_file_has_the_same_bytes(tmp_path: Path) -> None:
    base = write_standard_pipeline(tmp_path / "base")
    made = tmp_path / "made.safetensors"
    assert convert("checkpoint", base, made, "--to", "SAFETENSORS", "--family", SD) == 0
    model = tiny_setup(SD).load(str(base))
    whole = {name: tensor.read().clone() for name, tensor in single_file_tensors(model).items()}
    with safe_open(str(made), framework="pt") as file:
        metadata = file.metadata()
    save_file(whole, tmp_path / "expected.safetensors", metadata)
    expected = (tmp_path / "expected.safetensors").read_bytes()
    head = len(expected) - sum(t.numel() * t.element_size() for t in whole.values())
    # the library writes metadata in no fixed order
    assert made.read_bytes()[head:] == expected[head:]
    sizes = [json.loads(raw[8:head]) for raw in (made.read_bytes(), expected)]
    assert sizes[0] == sizes[1] and list(sizes[0])[1:] == list(sizes[1])[1:]


def test_every_number_keeps_its_type(tmp_path: Path) -> None:
    """Half the tensors in one type, half in another, as programs write them that keep what is delicate wide."""
    base = write_standard_pipeline(tmp_path / "base")
    path = tmp_path / "mixed.safetensors"
    assert convert("checkpoint", base, path, "--to", "SAFETENSORS", "--family", SD) == 0
    state = {
        name: tensor.to(torch.float32 if name.startswith("first_stage") else torch.bfloat16)
        if "norm" not in name
        else tensor.half()
        for name, tensor in load_file(path).items()
    }
    save_file(state, path)
    (tmp_path / "tokenizer").symlink_to(base / "tokenizer")
    assert convert("checkpoint", path, tmp_path / "m", "--to", "DIFFUSERS", "--family", SD) == 0
    again = tmp_path / "again.safetensors"
    assert convert("checkpoint", tmp_path / "m", again, "--to", "SAFETENSORS", "--family", SD) == 0
    found = load_file(again)
    assert found.keys() == state.keys()
    for name, tensor in state.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def test_one_tensor_is_held_at_a_time(tmp_path: Path) -> None:
    adapter = save_adapter(trained_family(FLUX), tmp_path / "a.safetensors", LEGACY)
    model = tiny_setup(FLUX).load(str(tiny_folder(FLUX)), PartDtypes(lazy=True))
    assert {p.device.type for module in model.modules().values() for p in module.parameters()} == {"meta"}
    converting.merge(model, [(read_adapter(adapter, model), 1.0), (read_adapter(adapter, model), 0.5)])
    live: list[weakref.ref[torch.Tensor]] = []
    most = 0
    for name in model.modules():
        for tensor in part_tensors(model, name).values():
            live.append(weakref.ref(tensor.read()))
            most = max(most, sum(ref() is not None for ref in live))
    assert len(live) > 100 and most <= 1


MEASURE = """
import json, resource, sys, torch
torch.set_num_threads(1)
from scripts.convert_model import main
peaks = []
for words in json.loads(sys.argv[1]):
    assert main(words) == 0
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(json.dumps(peaks))
"""


@pytest.mark.slow
def test_memory_is_that_of_one_tensor(tmp_path: Path) -> None:
    """Against a first, tiny merge, which loads the libraries."""
    small = write_pipeline(tmp_path / "small")
    large = write_pipeline(tmp_path / "large", channels=(256, 448))
    weights = next((large / "unet").glob("*.safetensors"))
    biggest = max(tensor.nbytes for tensor in file_tensors(weights).values())
    assert weights.stat().st_size > 150 * MIB > 6 * biggest
    runs: list[list[str]] = []
    for folder in (small, large):
        model = tiny_setup(SD).load(str(folder), PartDtypes(lazy=True))
        model.parts["unet"].to_empty(device="cpu")
        handle = attach(model, AdapterOptions(rank=2, parts=("unet",)))
        adapter = save_adapter(handle, folder / "a.safetensors", LEGACY)
        end = ("--family", SD, "--force")
        made = str(folder / "made")
        runs.append(["merge", str(folder), str(adapter), made, "--to", "DIFFUSERS", *end])
        runs.append(["checkpoint", made, f"{made}.safetensors", "--to", "SAFETENSORS", *end])
        runs.append(["merge", made, str(adapter), f"{made}.safetensors", "--to", "SAFETENSORS", *end])
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, json.dumps(runs)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    peaks = [kib * 1024 for kib in json.loads(done.stdout.splitlines()[-1])]
    extra = peaks[-1] - peaks[2]
    # the weight, the same before and after, and what the adapter makes of it
    assert extra < 8 * biggest + 16 * MIB < weights.stat().st_size, (extra / MIB, biggest / MIB)


@pytest.mark.parametrize("kind", ["DIFFUSERS", "SAFETENSORS"])
def test_the_disk_is_asked_first(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = write_standard_pipeline(tmp_path / "base")
    size = sum(path.stat().st_size for path in base.rglob("*.safetensors"))
    target = tmp_path / "made.safetensors"
    words = ("checkpoint", base, target, "--to", kind, "--family", SD)
    monkeypatch.setattr(converting, "free_bytes", lambda _: size // 2)
    assert convert(*words) == 2
    assert "GB left" in capsys.readouterr().err
    assert not target.exists() and [path.name for path in tmp_path.iterdir()] == ["base"]
    monkeypatch.setattr(converting, "free_bytes", lambda _: size)
    assert convert(*words) == 0
