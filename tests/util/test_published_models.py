"""Published models are recognised wherever they lie, and distilled ones are warned about once."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from modules.spec.registry import FAMILIES
from modules.util.config.foreign.base_family import family_of_base
from modules.util.config.load import find_problems, load_config, read_config
from modules.util.config.SampleConfig import SampleConfig
from modules.util.errors import UserError
from modules.util.program_files import PRESETS
from modules.util.published_models import find_published, published_models

XL = "STABLE_DIFFUSION_XL_10_BASE"
TURBO = "Tongyi-MAI/Z-Image-Turbo"


def test_every_row_is_of_a_family_and_a_distilled_one_names_what_to_train() -> None:
    rows = published_models()
    names = {row.name for row in rows}
    assert len({name.lower() for name in names}) == len(names)
    assert len({(row.name, row.family) for row in rows}) == len(rows)
    distilled = {row.name for row in rows if row.distilled}
    for row in rows:
        assert row.family in FAMILIES and row.steps > 0 and row.cfg >= 1
        assert bool(row.base) or not row.distilled, row.name
        assert row.base not in distilled, row.name


@pytest.mark.parametrize("name", [TURBO, TURBO.lower(), f" {TURBO.upper()} ", f"{TURBO}@main", f"{TURBO}@0123abc"])
def test_a_hub_name_counts_in_any_case(name: str) -> None:
    found = find_published("Z_IMAGE", name)
    assert found is not None and (found.name, found.guessed) == (TURBO, False)


def test_a_folder_says_what_it_is_a_copy_of(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text(json.dumps({"_name_or_path": TURBO}), encoding="utf-8")
    found = find_published("Z_IMAGE", str(tmp_path))
    assert found is not None and (found.name, found.guessed) == (TURBO, False)
    snapshot = tmp_path / "models--Tongyi-MAI--Z-Image" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    found = find_published("Z_IMAGE", str(snapshot))
    assert found is not None and (found.name, found.distilled) == ("Tongyi-MAI/Z-Image", False)


def test_a_folder_that_says_it_is_distilled_is_of_the_size_in_its_name(tmp_path: Path) -> None:
    for name, size in (("FLUX.2-klein-9B", "9B"), ("FLUX.2-klein-4B", "4B"), ("mine", "4B")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "model_index.json").write_text(json.dumps({"is_distilled": True}), encoding="utf-8")
        found = find_published("FLUX_2", str(folder))
        assert found is not None and not found.guessed
        assert found.base == f"black-forest-labs/FLUX.2-klein-base-{size}", name


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"_name_or_path": 7}'])
def test_a_damaged_index_says_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text(text, encoding="utf-8")
    assert find_published("Z_IMAGE", str(tmp_path)) is None


@pytest.mark.parametrize(
    ("family", "file", "name"),
    [
        ("Z_IMAGE", "z_image_turbo_bf16.safetensors", TURBO),
        ("Z_IMAGE", "zImageTurbo_v1.safetensors", TURBO),
        ("Z_IMAGE", "z_image_de_turbo_v1_bf16.safetensors", ""),
        ("Z_IMAGE", "turbocharged.safetensors", ""),
        ("FLUX_2", "flux-2-klein-4b-fp8.safetensors", "black-forest-labs/FLUX.2-klein-4B"),
        ("FLUX_2", "flux-2-klein-9b.safetensors", "black-forest-labs/FLUX.2-klein-9B"),
        ("FLUX_2", "flux-2-klein-base-4b.safetensors", ""),
        ("FLUX_2", "flux2-klein4b.safetensors", "black-forest-labs/FLUX.2-klein-4B"),
        ("FLUX_2", "flux2Klein_9b.safetensors", "black-forest-labs/FLUX.2-klein-9B"),
        ("FLUX_2", "flux2KleinBase_9b.safetensors", ""),
        # a folder, whose name has a dot
        ("FLUX_2", "FLUX.2-klein-4B", "black-forest-labs/FLUX.2-klein-4B"),
        ("FLUX_DEV_1", "flux1-schnell-fp8.safetensors", "black-forest-labs/FLUX.1-schnell"),
        ("FLUX_DEV_1", "flux1-dev-fp8.safetensors", ""),
        ("FLUX_SCHNELL_1", "FLUX.1-schnell", "black-forest-labs/FLUX.1-schnell"),
        ("FLUX_2", "FLUX.2-klein-base-4B", ""),
        ("FLUX_2", "FLUX.2-klein-4B/transformer", "black-forest-labs/FLUX.2-klein-4B"),
        ("STABLE_DIFFUSION_XL_10_BASE", "juggernautXL_hyper8step.safetensors", "ByteDance/Hyper-SD"),
        ("FLUX_SCHNELL_1", "flux1-schnell.safetensors", "black-forest-labs/FLUX.1-schnell"),
        ("STABLE_DIFFUSION_XL_10_BASE", "dreamXL_lightning.safetensors", "ByteDance/SDXL-Lightning"),
        ("STABLE_DIFFUSION_XL_10_BASE", "hyperrealism.safetensors", ""),
        ("STABLE_DIFFUSION_15", "dreamshaper_hyper8steps.safetensors", "ByteDance/Hyper-SD"),
        ("QWEN_EDIT", "Qwen-Image-Edit-Lightning-8steps.safetensors", "lightx2v/Qwen-Image-Lightning"),
        ("QWEN_EDIT_PLUS", "qwen_edit_2509_lightning.safetensors", "lightx2v/Qwen-Image-Lightning"),
        ("QWEN_EDIT_PLUS", "qwen_edit_2511_lightning.safetensors", ""),
        ("STABLE_DIFFUSION_15", "my-turbo.safetensors", ""),
        ("STABLE_DIFFUSION_XL_10_BASE", "sdxl_dmd2_4step.safetensors", "tianweiy/DMD2"),
        ("STABLE_DIFFUSION_XL_10_BASE", "mineXL_DMD2.safetensors", "tianweiy/DMD2"),
        ("STABLE_DIFFUSION_35", "sd3.5_medium_turbo.safetensors", "tensorart/stable-diffusion-3.5-medium-turbo"),
        ("STABLE_DIFFUSION_35", "sd3.5_large_turbo.safetensors", "stabilityai/stable-diffusion-3.5-large-turbo"),
        ("STABLE_DIFFUSION_35", "sd3.5_medium.safetensors", ""),
        ("CHROMA_1", "Chroma1-HD-Flash.safetensors", "lodestones/Chroma1-Flash"),
        ("CHROMA_1", "Chroma1-HD.safetensors", ""),
        ("CHROMA_1", "flashlights.safetensors", ""),
        ("PIXART_ALPHA", "PixArt-LCM-XL-2-1024-MS", "PixArt-alpha/PixArt-LCM-XL-2-1024-MS"),
        ("PIXART_ALPHA", "PixArt-XL-2-1024-MS", ""),
        ("SANA", "SANA_Sprint_0.6B", "Efficient-Large-Model/Sana_Sprint_1.6B_1024px_diffusers"),
        ("SANA", "Sana_1600M_1024px_BF16_diffusers", ""),
    ],
)
def test_words_of_a_file_name_are_a_guess(family: str, file: str, name: str) -> None:
    found = find_published(family, f"/models/{file}")
    assert (found.name if found else "") == name
    assert found is None or (found.guessed and "seems to be" in found.advice())


def titled(path: Path, title: str) -> Path:
    """A file of weights with a title inside."""
    save_file({"a": np.zeros(1, np.float32)}, path, {"modelspec.title": title})
    return path


def test_a_file_with_another_name_is_known_by_its_title(tmp_path: Path) -> None:
    path = titled(tmp_path / "my favourite.safetensors", "Z-Image Turbo")
    found = find_published("Z_IMAGE", str(path))
    assert found is not None and (found.name, found.guessed) == (TURBO, True)
    assert "seems to be Z-Image-Turbo" in warnings(base_model_name=str(path))[0]
    # what its name says against that counts too
    assert find_published("Z_IMAGE", str(titled(tmp_path / "de-turbo.safetensors", "Z-Image Turbo"))) is None
    assert find_published("Z_IMAGE", str(titled(tmp_path / "other.safetensors", "Portraits"))) is None
    # a file that has changed is read again
    titled(path, "Portraits of a longer title")
    assert find_published("Z_IMAGE", str(path)) is None


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff" * 8, b"\x02\0\0\0\0\0\0\0{", b"\x02\0\0\0\0\0\0\0[]", b"\x04\0\0\0\0\0\0\0\xff\xff{}"],
)
def test_a_damaged_file_has_no_title(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(data)
    assert find_published("Z_IMAGE", str(tmp_path / "a.safetensors")) is None


def test_what_is_no_plain_file_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.safetensors"
    os.mkfifo(path)
    # it would wait for somebody who writes
    monkeypatch.setattr(Path, "open", lambda *_, **__: pytest.fail("a FIFO is opened"))
    assert find_published("Z_IMAGE", str(path)) is None


def test_the_folder_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    titled(tmp_path / "mine.safetensors", "Z-Image Turbo")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    found = find_published("Z_IMAGE", "~/mine.safetensors")
    assert found is not None and found.name == TURBO
    assert find_published("Z_IMAGE", "~no-such-user-here/mine.safetensors") is None


def test_a_link_into_the_cache_of_the_hub_is_known_whatever_its_name(tmp_path: Path) -> None:
    blobs = tmp_path / "models--Tongyi-MAI--Z-Image-Turbo" / "blobs"
    blobs.mkdir(parents=True)
    target = titled(blobs / ("0" * 64), "")
    (tmp_path / "mine.safetensors").symlink_to(target)
    found = find_published("Z_IMAGE", str(tmp_path / "mine.safetensors"))
    assert found is not None and (found.name, found.guessed) == (TURBO, False)
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    assert find_published("Z_IMAGE", str(tmp_path / "circle")) is None


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("LCMScheduler", "latent-consistency/lcm-sdxl"),
        ("TCDScheduler", "ByteDance/Hyper-SD"),
        ("SCMScheduler", "Efficient-Large-Model/Sana_Sprint_1.6B_1024px_diffusers"),
        ("DDIMScheduler", ""),
    ],
)
def test_the_scheduler_of_a_folder_tells_of_few_steps(kind: str, name: str, tmp_path: Path) -> None:
    family = "SANA" if "Sana" in name else "STABLE_DIFFUSION_XL_10_BASE"
    (tmp_path / "scheduler").mkdir()
    text = json.dumps({"_class_name": kind})
    (tmp_path / "scheduler" / "scheduler_config.json").write_text(text, encoding="utf-8")
    found = find_published(family, str(tmp_path))
    assert (found.name if found else "") == name and (found is None or found.guessed)


@pytest.mark.parametrize(
    ("family", "name", "base"),
    [
        (XL, "ByteDance/Hyper-SD", "stabilityai/stable-diffusion-xl-base-1.0"),
        ("STABLE_DIFFUSION_15", "bytedance/hyper-sd", "stable-diffusion-v1-5/stable-diffusion-v1-5"),
        ("QWEN", "lightx2v/Qwen-Image-Lightning", "Qwen/Qwen-Image"),
        ("QWEN_EDIT", "lightx2v/Qwen-Image-Lightning", "Qwen/Qwen-Image-Edit"),
        ("QWEN_EDIT_PLUS", "lightx2v/Qwen-Image-Lightning", "Qwen/Qwen-Image-Edit-2509"),
        # for other families than these no claim is made
        ("FLUX_DEV_1", "ByteDance/Hyper-SD", ""),
    ],
)
def test_a_name_with_files_of_several_families_is_that_of_the_run(
    family: str, name: str, base: str, tmp_path: Path
) -> None:
    said = warnings(model_type=family, base_model_name=name)
    assert len(said) == bool(base) and all(f"Train {base} instead" in line for line in said)
    # a file in the cache of the hub too
    blobs = tmp_path / f"models--{name.replace('/', '--')}" / "blobs"
    blobs.mkdir(parents=True)
    (tmp_path / "mine.safetensors").symlink_to(titled(blobs / ("0" * 64), ""))
    found = find_published(family, str(tmp_path / "mine.safetensors"))
    assert (found.base if found else "") == base and (found is None or not found.guessed)
    config = read_config({"__version": 1, "model_type": family, "base_model_name": name})
    assert not [one for one in find_problems(config).warnings if "is a model of" in one.message]


def test_the_family_of_an_imported_base_is_not_taken_from_a_name_with_several() -> None:
    assert family_of_base("stabilityai/sdxl-turbo", (), "model").value == XL
    with pytest.raises(UserError, match="nothing identifies the family"):
        family_of_base("ByteDance/Hyper-SD", (), "model")


def warnings(**values: object) -> list[str]:
    config = read_config({"__version": 1, "model_type": "Z_IMAGE", "base_model_name": TURBO, **values})
    return [str(found) for found in find_problems(config).warnings if "distilled" in found.message]


def test_a_distilled_base_is_warned_about_once() -> None:
    assert warnings() == [
        "base_model_name: Z-Image-Turbo is distilled for 8 steps, and training removes this ability. Train "
        "Tongyi-MAI/Z-Image instead, or set training_adapter.model_name to "
        "ostris/zimage_turbo_training_adapter/zimage_turbo_training_adapter_v2.safetensors"
    ]
    assert warnings(base_model_name="Tongyi-MAI/Z-Image") == []


@pytest.mark.parametrize(
    ("family", "name", "said"),
    [
        ("STABLE_DIFFUSION_15", "stabilityai/sdxl-turbo", f"Stable Diffusion XL: set model_type to {XL}"),
        ("FLUX_2", "black-forest-labs/flux.2-dev", "FLUX.2 dev: set model_type to FLUX_2_DEV"),
        ("QWEN", "Qwen/Qwen-Image-Edit", "Qwen-Image-Edit: set model_type to QWEN_EDIT"),
        ("QWEN", "Qwen/Qwen-Image", ""),
        ("FLUX_DEV_1", "/models/flux1-schnell.safetensors", ""),
    ],
)
def test_a_published_model_of_another_family_is_warned_about(family: str, name: str, said: str) -> None:
    config = read_config({"__version": 1, "model_type": family, "base_model_name": name})
    found = [str(each) for each in find_problems(config).warnings if "is a model of" in each.message]
    assert found == ([] if not said else [f"base_model_name: {find_label(family, name)} is a model of {said}"])


def find_label(family: str, name: str) -> str:
    found = find_published(family, name)
    assert found is not None
    return found.label


def test_with_a_training_adapter_there_is_no_warning() -> None:
    assert warnings(training_adapter={"model_name": "/models/undo.safetensors"}) == []
    assert warnings(
        base_model_name="Tongyi-MAI/Z-Image", training_adapter={"model_name": "a.safetensors"}
    ) == ["training_adapter.model_name: is for distilled models, but Z-Image is not distilled"]


def test_the_denoiser_decides() -> None:
    file = "/models/z_image_turbo.safetensors"
    assert [line.partition(":")[0] for line in warnings(transformer={"model_name": file})] == [
        "transformer.model_name"
    ]
    assert warnings(transformer={"model_name": "/models/my-own.safetensors"}) == []


def test_samples_take_steps_and_guidance_of_the_model() -> None:
    spec = FAMILIES["FLUX_2"]

    def usual(source: str) -> tuple[int, float]:
        filled = SampleConfig(prompt="a cat").filled(spec, find_published("FLUX_2", source))
        return filled.diffusion_steps, filled.cfg_scale

    assert usual("black-forest-labs/FLUX.2-klein-4B") == (4, 1.0)
    assert usual("black-forest-labs/FLUX.2-klein-base-4B") == usual("/somewhere/else") == (50, 4.0)
    asked = SampleConfig(prompt="a cat", diffusion_steps=9, cfg_scale=2.0)
    filled = asked.filled(spec, find_published("FLUX_2", "black-forest-labs/FLUX.2-klein-4B"))
    assert (filled.diffusion_steps, filled.cfg_scale) == (9, 2.0)


def test_presets_name_models_that_are_not_distilled() -> None:
    distilled = []
    for path in sorted(PRESETS.glob("**/#?*.json")):
        config = load_config(path)
        found = find_published(config.model_type.value, config.base_model_name)
        if found is not None and found.distilled:
            distilled.append(path.stem)
            assert config.training_adapter.model_name == found.adapter
    # there is no undistilled model of schnell's family; those of Z-Image say Turbo, and there are others
    assert distilled == ["#schnell DPO", "#schnell LoRA", "#Turbo DPO 12 GB", "#Turbo LoRA 12 GB"]
