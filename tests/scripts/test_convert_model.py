"""Converting from the command line: adapters between layouts, merging, whole models, pickles."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.formats import (
    COMFY,
    DIFFUSERS,
    KOHYA,
    LEGACY,
    adapter_tensors,
    read_adapter,
    save_adapter,
)
from modules.adapter.PeftAdapter import AdapterHandle, attach
from modules.model.Model import Model
from modules.modelSetup.registry import MODEL_SETUPS
from modules.weights.skeleton import published, skeleton
from scripts.convert_model import main
from scripts.merge import main as merge_main
from tests.tiny import SIZE, tiny_folder, tiny_model, tiny_setup
from tests.tiny.batches import images
from tests.tiny.stable_diffusion import write_standard_pipeline
from tests.usual import usual

SD = "STABLE_DIFFUSION_15"
FLUX = "FLUX_DEV_1"
FEW = {"patterns": ("down_blocks.0",)}
"""A block with all kinds of layers, for kinds of adapters: all layers of a model take four times as long."""
ONE = {"patterns": ("conv_in",)}
"""A layer of the UNet, for what does not depend on the layers."""


def trained(key: str, **options: Any) -> AdapterHandle:
    model = tiny_model(key)
    parts = (model.spec.denoiser, model.text_encoders[0])
    handle = attach(model, AdapterOptions(**({"rank": 2, "alpha": 1.0, "parts": parts} | options)))
    source = torch.Generator().manual_seed(0)
    for _, parameter in handle.named_parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=source)
    return handle


def image(model: Model) -> torch.Tensor:
    setup = tiny_setup(model.spec.key)
    return images(setup, model, ["a red cat"], seeds=[2], steps=2, cfg=2.0, size=SIZE)


def convert(*argv: object) -> int:
    return main([str(word) for word in argv])


def changes(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What each layer of a file adds to its weights."""
    made = {}
    for key, up in tensors.items():
        for above, below in (("lora_up", "lora_down"), ("lora_B", "lora_A")):
            if key.endswith(f".{above}.weight"):
                name = key.removesuffix(f".{above}.weight")
                down = tensors[f"{name}.{below}.weight"]
                alpha = float(tensors.get(f"{name}.alpha", torch.tensor(len(down))))
                made[name] = alpha / len(down) * (up.flatten(1) @ down.flatten(1))
    return made


@pytest.mark.parametrize("key", [SD, FLUX])
def test_every_layout_into_every_other(key: str, tmp_path: Path) -> None:
    handle = trained(key)
    expected = {layout: adapter_tensors(handle, layout) for layout in (KOHYA, COMFY, LEGACY, DIFFUSERS)}
    for source in expected:
        save_adapter(handle, tmp_path / f"{source}.safetensors", source)
    for source, target in [(KOHYA, COMFY), (COMFY, LEGACY), (LEGACY, DIFFUSERS), (DIFFUSERS, KOHYA)]:
        made = tmp_path / "made.safetensors"
        assert convert(
            "adapter", tmp_path / f"{source}.safetensors", made, "--to", target, "--base", tiny_folder(key), "--force"
        ) == 0  # fmt: skip
        found = load_file(made)
        assert found.keys() == expected[target].keys()
        old, new = changes(expected[target]), changes(found)
        assert all(torch.allclose(old[name], new[name], atol=1e-6) for name in old)


def test_facts_about_the_adapter_are_kept(tmp_path: Path) -> None:
    adapter, target = trained(SD, **ONE), tmp_path / "b.safetensors"
    source = save_adapter(adapter, tmp_path / "a.safetensors", KOHYA, metadata={"seed": 7}, title="Cats")
    words = (
        "adapter",
        source,
        target,
        "--to",
        "DIFFUSERS_LORA",
        "--base",
        tiny_folder(),
        "--dtype",
        "BFLOAT_16",
    )
    assert convert(*words) == 0
    with safe_open(str(target), framework="pt") as file:
        metadata = file.metadata()
    assert metadata["tastemaker.seed"] == "7" and metadata["modelspec.title"] == "Cats"
    assert metadata["modelspec.architecture"] == "stable-diffusion-v1/lora"
    with safe_open(str(source), framework="pt") as file:
        assert metadata["modelspec.hash_sha256"] != file.metadata()["modelspec.hash_sha256"]
    assert {tensor.dtype for tensor in load_file(target).values()} == {torch.bfloat16}


def test_a_family_of_one_size_needs_no_base(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rank, width = 2, 3072
    name = "transformer.transformer_blocks.3.attn"
    tensors = {}
    for part in ("to_q", "to_k", "to_v"):
        tensors[f"{name}.{part}.lora_A.weight"] = torch.randn(rank, width)
        tensors[f"{name}.{part}.lora_B.weight"] = torch.randn(width, rank)
    save_file(tensors, tmp_path / "a.safetensors")
    words = ("adapter", tmp_path / "a.safetensors", tmp_path / "b.safetensors", "--to", "COMFY_LORA")
    assert convert(*words) == 2
    assert "does not name its family" in capsys.readouterr().err
    assert convert(*words, "--family", FLUX) == 0
    made = load_file(tmp_path / "b.safetensors")
    name = "diffusion_model.double_blocks.3.img_attn.qkv"
    assert made.keys() == {f"{name}.alpha", f"{name}.lora_A.weight", f"{name}.lora_B.weight"}
    assert made[f"{name}.lora_B.weight"].shape == (3 * width, 3 * rank)
    assert torch.equal(made[f"{name}.lora_B.weight"][width : 2 * width, 2:4], tensors[
        "transformer.transformer_blocks.3.attn.to_k.lora_B.weight"])  # fmt: skip
    assert convert(*words, "--family", "SANA", "--force") == 2
    assert "several sizes" in capsys.readouterr().err


ONE_SIZE = sorted(key for key, kind in MODEL_SETUPS.items() if published(kind.spec))


@pytest.mark.parametrize("key", ONE_SIZE)
def test_published_shapes_are_those_of_the_family(key: str) -> None:
    model = skeleton(tiny_setup(key).spec)
    expected = {SD: 860, "STABLE_DIFFUSION_XL_10_BASE": 2567, FLUX: 11901, "STABLE_DIFFUSION_3": 2028}
    millions = sum(p.numel() for p in model.denoiser.parameters()) / 1e6
    assert expected.get(key, millions) == pytest.approx(millions, abs=1.0)
    assert set(model.text_encoders) == set(model.spec.text_encoders)


def test_a_base_of_another_size_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = save_adapter(trained(SD), tmp_path / "a.safetensors", KOHYA)
    assert convert("adapter", source, tmp_path / "b.safetensors", "--to", COMFY, "--family", SD) == 2
    assert "does not fit" in capsys.readouterr().err
    assert not (tmp_path / "b.safetensors").exists()


KINDS: list[dict[str, Any]] = [
    {},
    {"decompose": True, **FEW},
    {"decompose": True, "decompose_outputs": False, **FEW},
    {"kind": "LOHA", **FEW},
    {"kind": "LOKR", **FEW},
    {"kind": "OFT_2", **FEW},
]


# the other kinds are merged to the byte in test_convert_in_little_memory.py
@pytest.mark.parametrize("options", usual(KINDS, KINDS[0], KINDS[2], KINDS[5]))
def test_a_merged_model_makes_the_adapters_image(tmp_path: Path, options: dict[str, Any]) -> None:
    handle = trained(SD, **options)
    adapter = save_adapter(handle, tmp_path / "a.safetensors", KOHYA)
    assert convert("merge", tiny_folder(), adapter, tmp_path / "m", "--to", "DIFFUSERS", "--family", SD) == 0
    merged = tiny_setup(SD).load(str(tmp_path / "m"))
    assert torch.allclose(image(merged), image(handle.model), atol=1e-5)


def test_strength_is_a_share_of_the_change(tmp_path: Path) -> None:
    adapter = save_adapter(trained(SD, **ONE), tmp_path / "a.safetensors", KOHYA)
    words = ("merge", tiny_folder(), adapter)
    assert convert(*words, tmp_path / "full", "--to", "DIFFUSERS", "--family", SD) == 0
    assert convert(*words, tmp_path / "half", "--to", "DIFFUSERS", "--family", SD, "--strength", 0.5) == 0
    name = "diffusion_pytorch_model.safetensors"
    base, full, half = (
        load_file(f / "unet" / name) for f in (tiny_folder(), tmp_path / "full", tmp_path / "half")
    )
    key = "conv_in.weight"
    assert not torch.allclose(full[key], base[key])
    assert torch.allclose(half[key], (base[key] + full[key]) / 2, atol=1e-6)


@pytest.mark.parametrize(
    ("stored", "script"), [(torch.float8_e4m3fn, "convert_model"), (torch.bfloat16, "merge")]
)
def test_a_small_change_survives_in_the_number_format_that_is_asked_for(
    tmp_path: Path, stored: torch.dtype, script: str
) -> None:
    name = "diffusion_pytorch_model.safetensors"
    layer = "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"
    base = shutil.copytree(tiny_folder(SD), tmp_path / "base")
    state = {key: tensor.to(stored) for key, tensor in load_file(base / "unet" / name).items()}
    save_file(state, base / "unet" / name)
    handle = trained(SD, parts=("unet",), alpha=0.002, patterns=("attn1.to_q",))
    adapter = save_adapter(handle, tmp_path / "a.safetensors", KOHYA)
    change = changes(load_file(adapter))[f"lora_unet_{layer}".replace(".", "_")]
    words: tuple[object, ...] = ("--family", SD, "--to", "DIFFUSERS", "--dtype", "FLOAT_32")
    if script == "merge":
        all_words = ("model", "--adapters", adapter, *words, base, tmp_path / "m")
        assert merge_main([str(word) for word in all_words]) == 0
    else:
        assert convert("merge", base, adapter, tmp_path / "m", *words) == 0
    before = state[f"{layer}.weight"].float()
    made = load_file(tmp_path / "m" / "unet" / name)[f"{layer}.weight"]
    lost = (before + change).to(stored).float() == before
    assert lost.float().mean() > 0.5 and not torch.any(change == 0.0)
    assert torch.allclose(made - before, change, atol=1e-7)


def test_a_model_into_one_file_and_back(tmp_path: Path) -> None:
    file, folder = tmp_path / "m.safetensors", tmp_path / "m"
    base = write_standard_pipeline(tmp_path / "base")
    assert convert("checkpoint", base, file, "--to", "SAFETENSORS", "--family", SD) == 0
    (tmp_path / "tokenizer").symlink_to(base / "tokenizer")
    assert convert("checkpoint", file, folder, "--to", "DIFFUSERS", "--family", SD) == 0
    name = "diffusion_pytorch_model.safetensors"
    first, again = load_file(base / "unet" / name), load_file(folder / "unet" / name)
    assert first.keys() == again.keys() and all(torch.equal(first[key], again[key]) for key in first)


def test_the_next_conversion_puts_in_order_what_a_killed_one_left(tmp_path: Path) -> None:
    source, target = tiny_folder(SD), tmp_path / "model"
    assert convert("checkpoint", source, target, "--family", SD, "--to", "DIFFUSERS") == 0
    before = (target / "model_index.json").read_bytes()
    target.rename(tmp_path / ".tastemaker-former-model")
    (tmp_path / ".tastemaker-0123456789abcdef.tmp").write_text("half")
    (tmp_path / ".mine.tmp").write_text("mine")
    # refused, for the model from before is back
    assert convert("checkpoint", source, target, "--family", SD, "--to", "DIFFUSERS") == 2
    assert (target / "model_index.json").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mine.tmp", "model"]


def test_neither_the_base_nor_a_link_to_nowhere_is_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, base, link = tmp_path / "a.safetensors", tmp_path / "base.safetensors", tmp_path / "link.safetensors"
    source.write_bytes(b"adapter")
    base.write_bytes(b"precious")
    link.symlink_to(tmp_path / "unplugged" / "b.safetensors")
    words = ("adapter", source, base, "--to", "KOHYA_LORA", "--family", "STABLE_DIFFUSION_15", "--base", base)
    assert convert(*words, "--force") == 2
    assert "is the input itself" in capsys.readouterr().err and base.read_bytes() == b"precious"
    assert convert("pickle", source, link) == 2
    assert "already exists" in capsys.readouterr().err and link.is_symlink()


def test_nothing_is_replaced_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = save_adapter(trained(SD, **ONE), tmp_path / "a.safetensors", KOHYA)
    target = tmp_path / "b.safetensors"
    target.write_bytes(b"precious")
    words = ("adapter", source, target, "--to", COMFY.lower(), "--base", tiny_folder())
    assert convert(*words) == 2
    assert "already exists" in capsys.readouterr().err and target.read_bytes() == b"precious"
    assert convert(*words, "--force") == 0
    assert convert("adapter", source, source, "--to", COMFY, "--base", tiny_folder(), "--force") == 2
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "mine.txt").write_text("x", encoding="utf-8")
    words = (
        "checkpoint",
        tiny_folder(),
        tmp_path / "letters",
        "--to",
        "DIFFUSERS",
        "--family",
        SD,
        "--force",
    )
    assert convert(*words) == 2
    assert (tmp_path / "letters" / "mine.txt").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--to", "ZIP"), "--to"),
        (("--to", "comfy"), f"did you mean '{COMFY}'"),
        (("--to", KOHYA, "--family", "SD9"), "--family"),
        (("--to", KOHYA, "--dtype", "INT_1"), "--dtype"),
        (("--to", KOHYA, "--base", "nowhere"), "--base"),
        (("--to", KOHYA, "--family", SD), "does not exist"),
    ],
)
def test_one_clear_error(
    words: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert("adapter", tmp_path / "no.safetensors", tmp_path / "out.safetensors", *words) == 2
    error = capsys.readouterr().err.strip()
    assert said in error and error.startswith("error: ") and "Traceback" not in error
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize("command", ["checkpoint", "merge", "adapter"])
def test_numbers_that_a_format_cannot_hold_are_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = shutil.copytree(tiny_folder(), tmp_path / "base") / "unet" / "diffusion_pytorch_model.safetensors"
    adapter = save_adapter(trained(SD, **ONE), tmp_path / "a.safetensors", KOHYA)
    target = tmp_path / "out.safetensors"
    large, key = (adapter, "lora_unet_conv_in.lora_up.weight") if command == "adapter" else (base, "conv_in.weight")
    tensors = load_file(large)
    tensors[key].view(-1)[:2] = torch.tensor([65504.0, -70000.0])
    save_file(tensors, large)
    target.write_bytes(b"precious")
    source = {"checkpoint": (base.parents[1],), "merge": (base.parents[1], adapter), "adapter": (adapter,)}[command]
    layout = KOHYA if command == "adapter" else "SAFETENSORS"
    words = (command, *source, target, "--to", layout, "--family", SD, "--force")
    more = ("--base", tiny_folder()) if command == "adapter" else ()
    assert convert(*words, *more, "--dtype", "FLOAT_16") == 2
    error = capsys.readouterr().err
    saved_as = key if command == "adapter" else "model.diffusion_model.input_blocks.0.0.weight"
    assert (saved_as in error or key in error) and "-> save in BFLOAT_16" in error
    assert "1 number of" in error and "the largest here is 70000" in error
    assert target.read_bytes() == b"precious"
    assert convert(*words, *more, "--dtype", "BFLOAT_16") == 0


def test_layouts_that_cannot_hold_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = save_adapter(trained(FLUX, kind="LOHA"), tmp_path / "a.safetensors", LEGACY)
    words = ("adapter", source, tmp_path / "b.safetensors", "--base", tiny_folder(FLUX), "--to")
    assert convert(*words, KOHYA) == 2
    assert "LEGACY_LORA" in capsys.readouterr().err


class Poison:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("old", [False, True])
def test_a_poisoned_pickle_is_refused(old: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proof, source = tmp_path / "was_run", tmp_path / "model.ckpt"
    content = {"state_dict": {"a": torch.ones(2)}, "hook": Poison(proof)}
    torch.save(content, source, _use_new_zipfile_serialization=not old)
    assert convert("pickle", source, tmp_path / "out.safetensors") == 2
    assert "refused" in capsys.readouterr().err
    assert not proof.exists() and not (tmp_path / "out.safetensors").exists()
    source.write_bytes(pickle.dumps(content["hook"]))
    assert convert("pickle", source, tmp_path / "out.safetensors") == 2
    assert not proof.exists()
    source.write_bytes(b"not a pickle at all")
    assert convert("pickle", source, tmp_path / "out.safetensors") == 2


def test_a_clean_pickle_becomes_an_adapter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handle = trained(SD)
    tensors: dict[str, Any] = dict(adapter_tensors(handle, KOHYA))
    tied = next(iter(tensors.values()))
    torch.save({"state_dict": tensors | {"copy.lora_up.weight": tied}, "epoch": 3}, tmp_path / "a.pt")
    torch.save({**tensors, "step": 3}, tmp_path / "b.pt")
    assert convert("pickle", tmp_path / "a.pt", tmp_path / "a.safetensors") == 0
    assert "copy.lora_up.weight" in load_file(tmp_path / "a.safetensors")
    assert convert("pickle", tmp_path / "b.pt", tmp_path / "b.safetensors") == 0
    assert "omitted, because they are not tensors: step" in capsys.readouterr().err
    model = tiny_model(SD)
    attach(model, AdapterOptions(), read_adapter(tmp_path / "b.safetensors", model))
    assert torch.allclose(image(model), image(handle.model), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("c", torch.zeros(2, dtype=torch.complex128), "'c' has numbers of the type complex128"),
        ("q", torch.zeros(2, dtype=torch.float8_e5m2fnuz), "'q' has numbers of the type float8_e5m2fnuz"),
        ("__metadata__", torch.zeros(2), "cannot be called '__metadata__'"),
        ("a\udc80", torch.zeros(2), "cannot be called 'a\\udc80'"),
    ],
)
def test_tensors_that_safetensors_cannot_hold_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, value: torch.Tensor, said: str
) -> None:
    torch.save({"weight": torch.ones(2), name: value}, tmp_path / "a.pt")
    assert convert("pickle", tmp_path / "a.pt", tmp_path / "a.safetensors") == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "a.safetensors").exists()


@pytest.mark.parametrize("place", ["file", "circle"])
def test_a_folder_that_cannot_be_made_is_told_before_anything_is_read(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "circle").symlink_to("circle")
    target = tmp_path / place / "out.safetensors"
    commands = (
        ["pickle", tmp_path / "gone.ckpt", target],
        ["checkpoint", tmp_path / "gone", target, "--to", "SAFETENSORS", "--family", "STABLE_DIFFUSION_15"],
    )
    for command in commands:
        assert main([str(word) for word in command]) == 2
        assert f"{place} is not a folder" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    "command", ["adapter", "checkpoint", "folder", "merge", "pickle", "merge adapters", "merge model"]
)
def test_what_appears_at_the_target_during_the_work_stays_and_so_does_the_result(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tiny_folder()
    adapter = save_adapter(trained(SD, **ONE), tmp_path / "a.safetensors", KOHYA)
    torch.save({"x": torch.ones(2)}, tmp_path / "old.ckpt")
    target = tmp_path / ("out" if command == "folder" else "out.safetensors")
    kind = ("--family", SD, "--to", "DIFFUSERS" if command == "folder" else "SAFETENSORS")
    words: dict[str, tuple[object, ...]] = {
        "adapter": ("adapter", adapter, target, "--to", COMFY, "--base", base),
        "checkpoint": ("checkpoint", base, target, *kind),
        "folder": ("checkpoint", base, target, *kind),
        "merge": ("merge", base, adapter, target, *kind),
        "pickle": ("pickle", tmp_path / "old.ckpt", target),
        "merge adapters": ("adapters", "--adapters", adapter, "--base", base, "--family", SD, target),
        "merge model": ("model", "--adapters", adapter, *kind, base, target),
    }
    run = (merge_main, "scripts.merge") if command.startswith("merge ") else (main, "scripts.convert_model")
    monkeypatch.setattr(f"{run[1]}.report", lambda _: target.write_text("mine"))
    assert run[0]([str(word) for word in words[command]]) == 2
    kept = target.with_name("out-2" if command == "folder" else "out-2.safetensors")
    said = capsys.readouterr().err
    assert f"error: {target} already exists" in said and f"the result is {kept}" in said
    assert target.read_text() == "mine"
    assert (kept / "model_index.json").is_file() if command == "folder" else load_file(kept)
