"""Specs of families: found by their files, light, and enough to make the choices in configs of them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from modules.spec.registry import FAMILIES, found_in
from modules.util.enum.ModelType import ModelType, families_where, families_with
from tests.source_tree import ROOT

PUBLISHED_ORDER = [
    "STABLE_DIFFUSION_15", "STABLE_DIFFUSION_15_INPAINTING", "STABLE_DIFFUSION_20", "STABLE_DIFFUSION_20_BASE",
    "STABLE_DIFFUSION_20_INPAINTING", "STABLE_DIFFUSION_21", "STABLE_DIFFUSION_21_BASE", "STABLE_DIFFUSION_XL_10_BASE",
    "STABLE_DIFFUSION_XL_10_BASE_INPAINTING", "STABLE_DIFFUSION_3", "STABLE_DIFFUSION_35", "PIXART_ALPHA",
    "PIXART_SIGMA", "SANA", "CHROMA_1", "FLUX_DEV_1", "FLUX_SCHNELL_1", "Z_IMAGE", "QWEN", "FLUX_2",
]  # fmt: skip
SCAN = (
    "import dataclasses, pkgutil, sys, time\n"
    "start = time.process_time()\n"
    "import modules.spec.registry\n"
    "print(time.process_time() - start)\n"
    "print([name for name in ('torch', 'pydantic', 'diffusers', 'modules.util') if name in sys.modules])\n"
)


def test_configs_name_families_in_the_same_order_as_ever() -> None:
    assert [family.value for family in ModelType] == [family.name for family in ModelType]
    kept = [family.value for family in ModelType if family.value in PUBLISHED_ORDER]
    assert kept == PUBLISHED_ORDER


def test_a_model_type_knows_its_spec() -> None:
    assert set(FAMILIES) == set(ModelType)
    for family in ModelType:
        spec = family.spec
        assert spec is FAMILIES[family.value] and spec.key == family.value
        assert family.label == spec.label
        assert family.parts == (spec.denoiser, *spec.text_encoders, spec.vae)
        assert spec.text_encoders and spec.default_resolution % spec.size_multiple == 0
    assert len({spec.label for spec in FAMILIES.values()}) == len(FAMILIES)


def test_every_part_can_be_imported_or_is_only_read() -> None:
    for spec in FAMILIES.values():
        for part in spec.parts:
            assert part.kind in ("scheduler", "processor") or (part.module and part.classes), (
                spec.key,
                part.name,
            )


@pytest.mark.child
def test_the_scan_is_fast_and_light() -> None:
    seconds = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", SCAN], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
        )
        time, heavy = done.stdout.splitlines()
        assert heavy == "[]"
        seconds.append(float(time))
    # processor time; the other work of the machine does not count
    assert min(seconds) < 0.05


def test_rules_for_settings_list_the_families_that_have_them() -> None:
    shown = families_with("text_encoder_3").removeprefix("model_type=").split("|")
    assert shown == ["STABLE_DIFFUSION_3", "STABLE_DIFFUSION_35", "HI_DREAM_FULL"]
    assert families_where(lambda spec: False) == "model_type=-"


def test_an_inpainting_family_differs_in_what_its_denoiser_sees() -> None:
    plain = FAMILIES["STABLE_DIFFUSION_XL_10_BASE"]
    made = plain.for_inpainting("X", "x", "Pipeline")
    assert (
        made.inpainting and made.denoiser_channels == 9 and made.lora_architecture == plain.lora_architecture
    )
    assert (
        replace(
            made,
            key=plain.key,
            label=plain.label,
            pipeline_class=plain.pipeline_class,
            model_architecture=plain.model_architecture,
            inpainting=False,
            denoiser_channels=plain.denoiser_channels,
        )
        == plain
    )


def test_constants_are_found_in_the_order_of_files_and_lines() -> None:
    names = [name for name, _ in found_in("modules.spec.families", type(FAMILIES["SANA"]))]
    assert sorted(names) == sorted(FAMILIES)
    assert names.index("FLUX_DEV_1") < names.index("FLUX_SCHNELL_1") < names.index("FLUX_2")
    with pytest.raises(ModuleNotFoundError):
        list(found_in("modules.spec.nowhere", str))
