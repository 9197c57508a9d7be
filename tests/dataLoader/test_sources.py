"""Images that are edited: found by name, checked before a run, and given to the model with their result."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.dataLoader.preflight import inspect_data
from modules.model.batch import ImageBatch, PairBatch
from modules.pipeline.nodes.sources import source_size
from modules.util.config.TrainConfig import TrainConfig
from tests.dataLoader.builders import AveragingModel, AveragingSetup, concept, config, loader, write_image

KONTEXT = {"model_type": "FLUX_KONTEXT_DEV_1"}


class EditingSetup(AveragingSetup):
    spec = AveragingSetup.spec.__class__(**{**AveragingSetup.spec.__dict__, "sources": 2})


def edits(root: Path, count: int = 3, side: str = "results", **more: Any) -> TrainConfig:
    """Results and what they were made from, of other colours."""
    for number in range(count):
        write_image(root / side / f"{number}.png", seed=number, caption=f"make it {number}")
        write_image(root / "before" / f"{number}.png", seed=50 + number, caption=None)
    own = concept(root / side, source_path=str(root / "before"))
    return config(root, [own], **{**KONTEXT, **more})


def test_a_source_that_is_another_results_own_is_no_further_one(tmp_path: Path) -> None:
    made = edits(tmp_path, 1)
    write_image(tmp_path / "results" / "0.2.png", seed=7, caption="another")
    write_image(tmp_path / "before" / "0.2.png", seed=57, caption=None)
    assert faults(made) == ""
    (tmp_path / "results" / "0.2.png").unlink()
    assert "1 image has more than 1 source image, the maximum" in faults(made)


def faults(made: TrainConfig) -> str:
    return " ".join(" ".join(str(fault) for fault in inspect_data(made).faults).split())


def _remove(root: Path) -> None:
    (root / "before" / "1.png").unlink()


def _second(root: Path) -> None:
    shutil.copy(root / "before" / "0.png", root / "before" / "2.2.png")


def _double(root: Path) -> None:
    shutil.copy(root / "before" / "0.png", root / "before" / "0.webp")


def _damage(root: Path) -> None:
    (root / "before" / "0.png").write_bytes(b"no image")


def _copy(root: Path) -> None:
    shutil.copy(root / "results" / "2.png", root / "before" / "2.png")


def _empty(root: Path) -> None:
    (root / "results" / "1.txt").write_text("", encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_remove, "1 image has no source image of the same name in"),
        (
            _second,
            "1 image has more than 1 source image, the maximum of FLUX.1 Kontext dev: results/2.png: 2",
        ),
        (_double, "source images differ only in their extension: 0.png and 0.webp"),
        (_damage, "0.png: not an image"),
        (_copy, "1 result is the source image itself: results/2.png"),
        (_empty, "1 instruction is empty: results/1.png"),
        (lambda root: shutil.rmtree(root / "before"), "before does not exist"),
    ],
)
def test_every_fault_of_source_images_is_found_before_a_run(
    change: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    made = edits(tmp_path)
    assert faults(made) == ""
    change(tmp_path)
    assert message in faults(made)


def test_instructions_next_to_the_sources_are_to_be_moved(tmp_path: Path) -> None:
    made, before, results = edits(tmp_path), tmp_path / "before", tmp_path / "results"
    (results / "1.txt").rename(before / "1.txt")
    assert f"move 1.txt from {before} to {results}" in faults(made)
    (results / "0.txt").rename(before / "0.txt")
    (results / "2.txt").rename(before / "2.txt")
    assert f"move 0.txt and 2 others from {before} to {results}" in faults(made)
    for number in range(3):
        (before / f"{number}.txt").rename(results / f"{number}.txt")
    assert faults(made) == ""
    (results / "1.txt").unlink()
    assert "put a .txt with the same name next to each" in faults(made)


def test_families_say_whether_they_take_sources(tmp_path: Path) -> None:
    made = edits(tmp_path, model_type="FLUX_DEV_1")
    assert "has source images, but FLUX.1 dev takes none" in faults(made)
    made = edits(tmp_path)
    made.concepts[0].source_path = ""
    assert "has no source images, but FLUX.1 Kontext dev edits images" in faults(made)


def test_a_source_of_another_shape_is_told(tmp_path: Path) -> None:
    made = edits(tmp_path)
    write_image(tmp_path / "before" / "0.png", size=(192, 64), caption=None)
    assert any(
        "1 result has a different shape from the source image" in one for one in inspect_data(made).warnings
    )


@pytest.mark.parametrize(
    ("source", "result", "crop", "size"),
    [
        ((512, 512), (1000, 1010), (512, 512), (512, 512)),
        ((2000, 1000), (1000, 1000), (512, 512), (352, 704)),
        ((4000, 4000), (4000, 4000), (2048, 2048), (1024, 1024)),
    ],
)
def test_sources_have_the_size_of_the_result_and_at_most_a_megapixel(
    source: tuple[int, int], result: tuple[int, int], crop: tuple[int, int], size: tuple[int, int]
) -> None:
    assert source_size(source, result, crop, 16) == size


@pytest.mark.parametrize(
    ("source", "crop", "resolution", "size"),
    [
        ((512, 512), (512, 512), 256, (256, 256)),
        ((512, 512), (512, 512), 1024, (1024, 1024)),
        # in the shape of the result where both have one shape, else in its own
        ((1000, 500), (256, 512), 256, (176, 352)),
        ((500, 1000), (256, 512), 256, (352, 176)),
    ],
)
def test_a_resolution_decides_the_area_of_a_source(
    source: tuple[int, int], crop: tuple[int, int], resolution: int, size: tuple[int, int]
) -> None:
    assert source_size(source, (crop[1], crop[0]), crop, 16, resolution) == size


@pytest.mark.parametrize("caching", [True, False])
def test_smaller_sources_are_other_entries_of_the_same_cache(caching: bool, tmp_path: Path) -> None:
    sizes = []
    for resolution in (None, 64, None):
        made = edits(
            tmp_path, latent_caching=caching, batch_size=3, resolution="128", source_resolution=resolution
        )
        (batch,) = loader(made, setup=EditingSetup()).batches()
        assert isinstance(batch, ImageBatch)
        sizes.append((tuple(batch.latents_BChw.shape[-2:]), tuple(batch.sources[0].shape[-2:])))
    (whole, of_whole), (same, smaller), again = sizes
    assert whole == of_whole == same and again == (whole, of_whole)
    assert smaller == (whole[0] // 2, whole[1] // 2)


def test_a_model_that_also_makes_images_of_prompts_needs_no_sources(tmp_path: Path) -> None:
    made = edits(tmp_path, model_type="FLUX_2")
    for number in range(3):
        for further in (2, 3):
            write_image(tmp_path / "before" / f"{number}.{further}.png", seed=70 + further, caption=None)
    assert faults(made) == ""
    (batch,) = loader(made.copy_of(), setup=EditingSetup()).batches(3)
    assert isinstance(batch, ImageBatch) and len(batch.sources) == 3
    assert made.concepts is not None
    made.concepts[0].source_path = ""
    assert faults(made) == ""


@pytest.mark.parametrize("caching", [True, False])
def test_batches_hold_the_latents_of_what_their_results_were_made_from(caching: bool, tmp_path: Path) -> None:
    made = edits(tmp_path, latent_caching=caching, batch_size=3)
    model = AveragingModel()
    (batch,) = loader(made, model, setup=EditingSetup()).batches()
    assert isinstance(batch, ImageBatch)
    for row, name in enumerate(batch.ids):
        alone = config(tmp_path / "alone", [concept(_only(tmp_path, Path(name).name))], latent_caching=False)
        (expected,) = loader(alone).batches()
        assert isinstance(expected, ImageBatch)
        assert torch.equal(batch.sources[0][row], expected.latents_BChw[0])
        assert not torch.equal(batch.sources[0][row], batch.latents_BChw[row])


def _only(root: Path, name: str) -> Path:
    """A folder with nothing but one of the sources."""
    folder = root / "alone" / name
    folder.mkdir(parents=True)
    shutil.copy(root / "before" / name, folder / name)
    (folder / name).with_suffix(".txt").write_text("x", encoding="utf-8")
    return folder


def test_both_sides_of_a_pair_come_from_the_chosen_concept_s_sources(tmp_path: Path) -> None:
    edits(tmp_path, side="chosen")
    for number in range(3):
        write_image(tmp_path / "rejected" / f"{number}.png", seed=90 + number, caption=f"make it {number}")
    sides = [
        concept(tmp_path / "chosen", "DPO_CHOSEN", source_path=str(tmp_path / "before")),
        concept(tmp_path / "rejected", "DPO_REJECTED"),
    ]
    made = config(tmp_path, sides, rlhf_enabled=True, batch_size=3, **KONTEXT)
    assert faults(made) == ""
    (batch,) = loader(made, setup=EditingSetup()).batches()
    assert isinstance(batch, PairBatch) and batch.rejected is not None
    assert len(batch.chosen.sources) == len(batch.rejected.sources) == 1
    assert torch.equal(batch.chosen.sources[0], batch.rejected.sources[0])
    assert made.concepts is not None
    made.concepts[1].source_path = str(tmp_path / "chosen")
    assert "both must edit the same ones" in faults(made)


def test_a_rejected_image_that_is_the_source_itself_is_told(tmp_path: Path) -> None:
    edits(tmp_path, side="chosen")
    for number in range(3):
        write_image(tmp_path / "rejected" / f"{number}.png", seed=90 + number, caption=f"make it {number}")
    sides = [
        concept(tmp_path / "chosen", "DPO_CHOSEN", source_path=str(tmp_path / "before")),
        concept(tmp_path / "rejected", "DPO_REJECTED"),
    ]
    made = config(tmp_path, sides, rlhf_enabled=True, **KONTEXT)
    assert not any("the source image itself" in one for one in inspect_data(made).warnings)
    shutil.copy(tmp_path / "before" / "1.png", tmp_path / "rejected" / "1.png")
    found = inspect_data(made)
    (said,) = (one for one in found.warnings if "the source image itself" in one)
    assert said.startswith("the rejected image of 1 pair is the source image itself:") and said.endswith(
        "chosen/1"
    )
    assert not found.faults, "a pair that is better than its source can be learnt from"


def test_a_batch_has_sources_of_one_size(tmp_path: Path) -> None:
    made = edits(tmp_path, count=4, batch_size=4)
    write_image(tmp_path / "before" / "0.png", size=(192, 64), caption=None)
    batches = [
        batch for batch in loader(made, setup=EditingSetup()).batches() if isinstance(batch, ImageBatch)
    ]
    assert sorted(len(batch) for batch in batches) == [1, 3]
    assert {tuple(batch.sources[0].shape[-2:]) for batch in batches} == {(8, 8), (5, 13)}
