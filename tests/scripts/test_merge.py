"""Merging from the command line, compared with matrices multiplied here."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from safetensors.torch import save_file as save_tensors

from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.formats import KOHYA, save_adapter
from modules.adapter.PeftAdapter import attach
from modules.modelSetup.combining import Factors, best_factors, best_of_product
from modules.weights.one_file import save_file
from scripts.convert_model import main as convert
from scripts.merge import main
from tests.scripts.test_convert_model import FEW, FLUX, changes
from tests.tiny import tiny_folder, tiny_model, tiny_setup

SD = "STABLE_DIFFUSION_15"
WEIGHTS = "diffusion_pytorch_model.safetensors"


def lora(path: Path, seed: int, folder: Path | None = None, **options: Any) -> Path:
    """A LoRA with random weights, for the tiny model or for one in a folder."""
    model = tiny_model(SD) if folder is None else tiny_setup(SD).load(str(folder))
    handle = attach(model, AdapterOptions(**({"rank": 2, "alpha": 1.0, "parts": ("unet",)} | options)))
    source = torch.Generator().manual_seed(seed)
    for _, parameter in handle.named_parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=source)
    return save_adapter(handle, path, KOHYA)


def call(*words: object) -> int:
    return main([str(word) for word in words])


def added(path: Path) -> dict[str, torch.Tensor]:
    """What each layer of a LoRA file adds, as matrices."""
    return changes(load_file(path))


def spelled(name: str) -> str:
    """A weight of the UNet as kohya spells its layer."""
    return "lora_unet_" + name.removesuffix(".weight").replace(".", "_")


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    return lora(tmp_path / "a.safetensors", 1), lora(tmp_path / "b=1.safetensors", 2, rank=3, alpha=3.0)


def test_a_merged_model_is_the_base_and_the_loras(tmp_path: Path, two: tuple[Path, Path]) -> None:
    words = f"{two[0]}=0.5; {two[1]}=-1.5"
    target = tmp_path / "merged"
    assert call("model", "--adapters", words, "--family", SD, "--to", "DIFFUSERS", tiny_folder(), target) == 0
    base, merged = (load_file(folder / "unet" / WEIGHTS) for folder in (tiny_folder(), target))
    first, second = (added(path) for path in two)
    touched = 0
    for name, weight in base.items():
        wanted = weight.clone()
        if spelled(name) in first:
            change = 0.5 * first[spelled(name)] - 1.5 * second[spelled(name)]
            assert change.abs().max() > 1e-3
            wanted += change.reshape(weight.shape)
            touched += 1
        assert torch.allclose(merged[name], wanted, atol=1e-5), name
    assert touched == len(first) > 20


@pytest.mark.parametrize(
    ("stored", "asked"),
    [(torch.float32, "BFLOAT_16"), (torch.bfloat16, None), (torch.float8_e4m3fn, None)],
)
def test_several_loras_are_rounded_once(tmp_path: Path, stored: torch.dtype, asked: str | None) -> None:
    base = shutil.copytree(tiny_folder(), tmp_path / "base")
    state = {name: tensor.to(stored) for name, tensor in load_file(base / "unet" / WEIGHTS).items()}
    save_tensors(state, base / "unet" / WEIGHTS)
    both = [lora(tmp_path / f"{seed}.safetensors", seed, alpha=0.2, **FEW) for seed in (1, 2)]
    words = ("model", "--adapters", "; ".join(map(str, both)), "--family", SD, "--to", "DIFFUSERS", base)
    assert call(*words, tmp_path / "wide", "--dtype", "FLOAT_32") == 0
    assert call(*words, tmp_path / "narrow", *(["--dtype", asked] if asked else [])) == 0
    wide, narrow = (load_file(tmp_path / name / "unet" / WEIGHTS) for name in ("wide", "narrow"))
    first, second = (added(path) for path in both)
    kind = torch.bfloat16 if asked else stored
    differs = 0
    for name, weight in state.items():
        assert narrow[name].dtype == kind and torch.equal(
            narrow[name].float(), wide[name].to(kind).float()
        ), name
        if spelled(name) in first:
            one, other = (change[spelled(name)].reshape(weight.shape) for change in (first, second))
            assert torch.allclose(wide[name], weight.float() + one + other, atol=1e-6), name
            twice = ((weight.float() + one).to(kind).float() + other).to(kind)
            differs += int((twice.float() != narrow[name].float()).sum())
    assert differs > 100


def test_the_sum_of_loras_is_exact_and_of_a_rank_the_best(tmp_path: Path, two: tuple[Path, Path]) -> None:
    words = ("--adapters", f"{two[0]}=2; {two[1]}", "--family", SD, "--base", tiny_folder())
    assert call("adapters", *words, tmp_path / "sum.safetensors") == 0
    assert call("adapters", *words, "--rank", 2, tmp_path / "short.safetensors") == 0
    first, second, whole, short = (
        added(path) for path in (*two, tmp_path / "sum.safetensors", tmp_path / "short.safetensors")
    )
    for name, change in whole.items():
        wanted = 2 * first[name] + second[name]
        assert torch.allclose(change, wanted, atol=1e-5)
        left, values, right = torch.linalg.svd(wanted.double(), full_matrices=False)
        best = (left[:, :2] * values[:2]) @ right[:2]
        assert torch.allclose(short[name].double(), best, atol=1e-4), name
    assert whole.keys() == first.keys() == short.keys()


def test_what_was_merged_comes_out_again(
    tmp_path: Path, two: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    merged, out = tmp_path / "merged", tmp_path / "out.safetensors"
    assert (
        call("model", "--adapters", two[0], "--family", SD, "--to", "DIFFUSERS", tiny_folder(), merged) == 0
    )
    words = ("extract", "--family", SD, tiny_folder(), merged, out)
    assert call(*words, "--rank", 2) == 0
    assert "100.0 % of the change" in capsys.readouterr().out
    wanted, found = added(two[0]), added(out)
    assert found.keys() == wanted.keys()
    assert all(torch.allclose(found[name], wanted[name], atol=1e-5) for name in wanted)
    assert call(*words, "--rank", 1) == 2
    assert (
        "already exists\n  -> choose another name, or replace it with --overwrite" in capsys.readouterr().err
    )
    assert call(*words, "--rank", 1, "--overwrite") == 0
    for name, change in added(out).items():
        values = torch.linalg.svdvals(wanted[name].double())
        error = torch.linalg.matrix_norm(change.double() - wanted[name].double())
        assert abs(float(error) - float(values[1:].square().sum().sqrt())) < 1e-4


def test_models_that_are_equal_or_unlike_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "x.safetensors"
    assert call("extract", "--family", SD, "--rank", 2, tiny_folder(), tiny_folder(), target) == 2
    assert "the same layers" in capsys.readouterr().err
    assert not target.exists()


@pytest.mark.parametrize(
    "options", [{"kind": "LOHA"}, {"decompose": True}, {"decompose": True, "decompose_outputs": False}]
)
def test_only_plain_loras_are_added(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, Any]
) -> None:
    path = lora(tmp_path / "x.safetensors", 1, **options)
    assert (
        call(
            "adapters",
            "--adapters",
            path,
            "--family",
            SD,
            "--base",
            tiny_folder(),
            tmp_path / "y.safetensors",
        )
        == 2
    )
    assert "only plain LoRAs" in capsys.readouterr().err


def test_a_dry_run_writes_nothing(
    tmp_path: Path, two: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "y.safetensors"
    words = ("--adapters", f"{two[0]};{two[1]}", "--family", SD, "--base", tiny_folder(), "--dry-run", target)
    assert call("adapters", *words) == 0
    assert "LORA of rank 5" in capsys.readouterr().out
    assert not target.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--adapters", ";"), "no file"), (("--adapters", "gone.safetensors"), "does not exist"),
        (("--adapters", "{a}=99"), "between -10 and 10"), (("--adapters", "{a}", "--rank", "0"), "--rank"),
    ],
)  # fmt: skip
def test_wrong_words_are_refused(
    tmp_path: Path, two: tuple[Path, Path], capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:  # fmt: skip
    filled = [word.format(a=two[0]) for word in words]
    assert call("adapters", *filled, "--family", SD, tmp_path / "y.safetensors") == 2
    assert message in capsys.readouterr().err


def test_layers_that_a_file_cannot_hold_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of Flux holds the transformer alone."""
    handle = attach(tiny_model(FLUX), AdapterOptions(rank=2, parts=("transformer", "text_encoder")))
    path = save_adapter(handle, tmp_path / "a.safetensors", KOHYA)
    words = ("model", "--adapters", path, "--family", FLUX, "--dry-run", tiny_folder(FLUX))
    assert call(*words, "--to", "SAFETENSORS", tmp_path / "b.safetensors") == 0
    assert "omitted: the adapter's layers of text_encoder" in capsys.readouterr().out
    assert call(*words, "--to", "DIFFUSERS", tmp_path / "b") == 0
    assert "omitted" not in capsys.readouterr().out


def test_no_input_is_overwritten(two: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    before = two[0].read_bytes()
    assert call("adapters", "--adapters", f"{two[0]};{two[1]}", "--family", SD, "--overwrite", two[0]) == 2
    assert "the input itself" in capsys.readouterr().err
    assert two[0].read_bytes() == before


def test_large_matrices_of_low_rank_are_exact_and_others_nearly_the_best() -> None:
    source = torch.Generator().manual_seed(3)
    up, down = torch.randn(700, 5, generator=source), torch.randn(5, 900, generator=source)
    found = best_factors(up @ down, 5)
    assert torch.allclose(found.up @ found.down, up @ down, atol=1e-3)
    assert torch.equal(found.up, best_factors(up @ down, 5).up)
    noisy = up @ down + torch.randn(700, 900, generator=source)
    made = best_factors(noisy, 8)
    values = torch.linalg.svdvals(noisy)
    best = float(values[8:].square().sum().sqrt())
    assert float(torch.linalg.matrix_norm(noisy - made.up @ made.down)) < 1.02 * best
    short = best_of_product(Factors(up, down), 2)
    wanted = best_factors(up @ down, 2)
    assert torch.allclose(short.up @ short.down, wanted.up @ wanted.down, atol=1e-2)


def test_the_base_of_loras_may_be_a_folder_or_a_file_of_its_denoiser(tmp_path: Path) -> None:
    key = "FLUX_2"
    model, file = tiny_model(key), tmp_path / "base.safetensors"
    save_file(model, file)
    # its size is not that of a published model
    config = tmp_path / "base.safetensors.config" / "transformer" / "config.json"
    config.parent.mkdir(parents=True)
    config.write_bytes((tiny_folder(key) / "transformer" / "config.json").read_bytes())
    handle = attach(model, AdapterOptions(parts=("transformer",)))
    adapter = save_adapter(handle, tmp_path / "a.safetensors", KOHYA)
    sums, converted = [], []
    for base in (tiny_folder(key), file):
        words = ("--base", base, "--to", "LEGACY_LORA", tmp_path / f"{base.name}-sum.safetensors")
        assert call("adapters", "--adapters", adapter, *words) == 0
        sums.append(load_file(words[-1]))
        made = tmp_path / f"{base.name}-converted.safetensors"
        assert convert(["adapter", str(adapter), str(made), "--base", str(base), "--to", "COMFY_LORA"]) == 0
        converted.append(load_file(made))
    for folder, other in (sums, converted):
        assert folder and folder.keys() == other.keys()
        assert all(torch.equal(tensor, other[name]) for name, tensor in folder.items())
