"""Every family makes the images that diffusers' own pipeline makes of the same folder."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from modules.model.Model import Model
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from tests.contracts.test_family import families
from tests.tiny import (
    SIZE,
    pipeline_class,
    pipeline_options,
    pipeline_parts,
    source_side,
    takes_one_prompt,
    tiny_folder,
    tiny_setup,
    wide_size,
)
from tests.tiny.batches import images
from tests.tiny.source_images import source_tensors
from tests.usual import usual

pytestmark = pytest.mark.usefixtures("from_memory")
PROMPTS = ["a red circle", "a large blue square on the left"]
# its own test has another shape, which the images it edits have too
SQUARE = ("LONGCAT_IMAGE_EDIT",)
# in the usual run, those that they are made from stand for them
RELATIVES = (
    *("STABLE_DIFFUSION_20_BASE", "STABLE_DIFFUSION_20_INPAINTING", "STABLE_DIFFUSION_XL_10_BASE_INPAINTING"),
    *("FLUX_2_DEV", "QWEN_EDIT_PLUS"),
)
# XL is published with epsilon, but many models made from it predict velocity
CASES = [*families(), ("STABLE_DIFFUSION_XL_10_BASE", "v_prediction")]


def pipeline(key: str, prediction: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    folder, kind = tiny_folder(key, prediction), pipeline_class(key)
    parts = pipeline_parts(key, folder, monkeypatch)
    made = kind.from_pretrained(str(folder), torch_dtype=torch.float32, **dict.fromkeys(parts))
    made.register_modules(**parts)
    made.set_progress_bar_config(disable=True)
    if getattr(made, "safety_checker", None) is None and "safety_checker" in made.components:
        made.register_to_config(requires_safety_checker=False)
    return made


# models that can do both make an image of the prompt alone when guided, and edit without guidance
@pytest.mark.parametrize(
    ("key", "prediction"),
    usual(CASES, *(case for case in CASES if case[0] not in RELATIVES)),
    ids=["-".join(case) for case in CASES],
)
def test_samples_are_those_of_the_pipeline(
    key: str, prediction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = tiny_setup(key)
    model = setup.load(str(tiny_folder(key, prediction)))
    made = pipeline(key, prediction, monkeypatch)
    for guided in (False, True):
        compare(setup, model, made, guided)


def compare(setup: BaseModelSetup, model: Model, made: Any, guided: bool) -> None:
    """Compare samples with or without guidance with those of a pipeline."""
    key = setup.spec.key
    cfg = 3.0 if guided else 1.0
    # one of the sizes is not square
    size = wide_size(key) if guided and key not in SQUARE else SIZE
    asked = {"seeds": [7, 8], "steps": 3, "cfg": cfg, "size": size}
    # as many images to edit as the family takes
    edited = setup.spec.sources if setup.spec.edits_only or not guided else 0
    ours = images(setup, model, PROMPTS, "blue", **asked, sources=source_tensors(edited, source_side(key)))
    options: dict[str, Any] = {"guidance_scale": cfg, "negative_prompt": "blue"}
    options |= pipeline_options(key, cfg, size)
    if setup.spec.sources and not edited:
        options.pop("image", None)

    def asked_of(prompts: list[str], seeds: list[int]) -> torch.Tensor:
        given = {**options, "negative_prompt": [options["negative_prompt"]] * len(prompts)}
        out: torch.Tensor = made(
            prompt=prompts,
            height=size[0],
            width=size[1],
            num_inference_steps=3,
            generator=[torch.Generator().manual_seed(seed) for seed in seeds],
            output_type="pt",
            **{name: value for name, value in given.items() if options[name] is not None},
        ).images
        return out

    # pipelines whose text encoder sees the source take one prompt at a time; some write into the list
    one_by_one = [([prompt], [seed]) for prompt, seed in zip(PROMPTS, (7, 8), strict=True)]
    alone = setup.spec.sees_sources or takes_one_prompt(key)
    calls = one_by_one if alone else [(list(PROMPTS), [7, 8])]
    # some make transparent images
    theirs = torch.cat([asked_of(*call) for call in calls])[:, :3]
    assert ours.std() > 0.01
    off = float((ours - theirs).abs().max())
    assert torch.allclose(ours, theirs.float().cpu(), atol=1e-4), ("guided" if guided else "plain", off)
