"""What a start on known data does again: nothing. What it does after a change: as much as was changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from modules.dataLoader.BaseDataLoader import BaseDataLoader
from modules.dataLoader.mixin import DataLoaderText2ImageMixin, DataLoaderTextsMixin
from modules.dataLoader.progress import in_threads
from modules.dataLoader.Text2ImageDataLoader import Text2ImageDataLoader, _spread
from modules.model import memory
from modules.model.batch import ImageBatch
from modules.pipeline.cache.FileIndex import FileIndex
from modules.pipeline.nodes.CachedTensors import content_key
from modules.pipeline.nodes.transforms import Transform
from modules.util.rng import digest64
from tests.dataLoader.builders import AveragingModel, AveragingSetup, concept, config, loader, write_image
from tests.usual import usual

COUNT = 40


class AskedSetup(AveragingSetup):
    """Says what its tokenizer is asked."""

    spec = AveragingSetup.spec.__class__(**{**AveragingSetup.spec.__dict__, "chunks_prompts": True})

    def __init__(self) -> None:
        self.asked: list[str] = []

    def chunk_count(self, model: Any, prompt: str) -> int:
        self.asked.append(prompt)
        return 0

    def cut_prompts(self, model: Any, prompts: Sequence[str]) -> list[str]:
        self.asked.extend(prompts)
        return super().cut_prompts(model, prompts)


def start(made: Any) -> tuple[BaseDataLoader, AveragingModel, AskedSetup]:
    model, setup = AveragingModel(), AskedSetup()
    return loader(made, model, setup=setup), model, setup


def latents(own: BaseDataLoader) -> dict[str, torch.Tensor]:
    found = {}
    for batch in own.batches():
        assert isinstance(batch, ImageBatch)
        found.update(zip(batch.ids, batch.latents_BChw, strict=True))
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(COUNT):
        write_image(tmp_path / "data" / f"{number:02d}.png", seed=number)
    return tmp_path


def test_without_a_change_nothing_is_encoded_and_no_tokenizer_is_asked(folder: Path) -> None:
    made = config(folder, [concept(folder / "data")])
    first, model, setup = start(made)
    assert sum(model.images_encoded) == COUNT and len(setup.asked) == 2 * COUNT
    before = latents(first)
    again, model, setup = start(made)
    assert not model.images_encoded and not model.texts_encoded and not setup.asked
    after = latents(again)
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


def test_of_one_changed_image_one_is_encoded(folder: Path) -> None:
    made = config(folder, [concept(folder / "data")])
    before = latents(start(made)[0])
    write_image(folder / "data" / "07.png", seed=1000, caption=None)
    own, model, setup = start(made)
    assert sum(model.images_encoded) == 1 and not model.texts_encoded and not setup.asked
    after = latents(own)
    assert [name for name in before if not torch.equal(before[name], after[name])] == ["data/07.png"]


def test_of_one_changed_caption_one_is_encoded(folder: Path) -> None:
    made = config(folder, [concept(folder / "data")])
    start(made)
    (folder / "data" / "07.txt").write_text("a fox in the snow", encoding="utf-8")
    _, model, setup = start(made)
    assert not model.images_encoded and model.texts_encoded == [["a fox in the snow"]]
    assert setup.asked == ["a fox in the snow"] * 2


def test_of_one_added_image_one_is_encoded(folder: Path) -> None:
    made = config(folder, [concept(folder / "data")])
    start(made)
    write_image(folder / "data" / "new.png", seed=500)
    own, model, _ = start(made)
    assert sum(model.images_encoded) == 1 and len(own) == COUNT + 1


def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a start asks of each image and prompt."""
    asked: list[str] = []
    for name in ("encode_tasks", "text_tasks"):
        honest = getattr(Text2ImageDataLoader, name)

        def noted(self: Any, *rest: Any, name: str = name, honest: Any = honest) -> Any:
            asked.append(name)
            return honest(self, *rest)

        monkeypatch.setattr(Text2ImageDataLoader, name, noted)
    return asked


def test_a_set_that_was_complete_is_not_looked_through_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = config(folder, [concept(folder / "data")])
    asked = looks(monkeypatch)
    before = latents(start(made)[0])
    assert asked == ["encode_tasks", "text_tasks"]
    after = latents(start(made)[0])
    assert asked == ["encode_tasks", "text_tasks"]
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("kind", ["latents", "texts"])
def test_what_was_removed_from_the_cache_is_encoded_again(folder: Path, kind: str) -> None:
    made = config(folder, [concept(folder / "data")])
    start(made)
    for path in (Path(made.cache_dir) / kind).glob("*.safetensors"):
        path.unlink()
    _, model, _ = start(made)
    assert sum(model.images_encoded) == (COUNT if kind == "latents" else 0)
    assert sum(map(len, model.texts_encoded)) == (COUNT if kind == "texts" else 0)


def test_images_whose_tiles_change_are_encoded_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = config(folder, [concept(folder / "data")])

    def encoded() -> int:
        model = AveragingModel()
        model.vae = SimpleNamespace(use_tiling=False)
        loader(made, model, setup=AskedSetup())
        return sum(model.images_encoded)

    assert (encoded(), encoded()) == (COUNT, 0)
    monkeypatch.setattr(memory, "MOST_PIXELS", 1)
    assert (encoded(), encoded()) == (COUNT, 0)
    monkeypatch.setattr(memory, "TILE", 512)
    assert encoded() == COUNT
    monkeypatch.setattr(memory, "MOST_PIXELS", 1 << 20)
    assert encoded() == 0, "small images are still the first ones"


def test_another_crop_of_the_same_images_is_encoded(folder: Path) -> None:
    start(config(folder, [concept(folder / "data")]))
    turned = {"enable_fixed_rotate": True, "random_rotate_max_angle": 9.0}
    for number, image in enumerate(({"enable_fixed_flip": True}, turned)):
        changed = concept(folder / "data", image={"enable_crop_jitter": False, **image})
        _, model, _ = start(config(folder, [changed]))
        assert sum(model.images_encoded) == COUNT and not model.texts_encoded, number


def test_latents_of_another_vae_are_encoded(folder: Path) -> None:
    made = config(folder, [concept(folder / "data")])
    start(made)
    model = AveragingModel()
    model.fingerprints["vae"] = "vae-2"
    loader(made, model, setup=AskedSetup())
    assert sum(model.images_encoded) == COUNT and not model.texts_encoded


def test_another_version_of_the_code_looks_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = config(folder, [concept(folder / "data")])
    start(made)
    monkeypatch.setattr(DataLoaderText2ImageMixin, "_CODE", "another")
    monkeypatch.setattr(DataLoaderTextsMixin, "_CODE", "another")
    asked = looks(monkeypatch)
    _, model, _ = start(made)
    assert asked == ["encode_tasks", "text_tasks"] and not model.images_encoded and not model.texts_encoded


@pytest.mark.parametrize(
    ("module", "task"), [(DataLoaderText2ImageMixin, "encode_tasks"), (DataLoaderTextsMixin, "text_tasks")]
)
def test_without_the_sources_of_the_program_all_is_looked_through(
    folder: Path, monkeypatch: pytest.MonkeyPatch, module: Any, task: str
) -> None:
    monkeypatch.setattr(module, "_CODE", None)
    made = config(folder, [concept(folder / "data")])
    start(made)
    asked = looks(monkeypatch)
    _, model, _ = start(made)
    assert asked == [task] and not model.texts_encoded and not model.images_encoded


@pytest.mark.parametrize("number", usual([0, 7, COUNT - 1], 7))
def test_a_wrong_note_of_a_complete_set_heals(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """As after a change that the note knows nothing of, to the name of one image's entry and of one prompt's."""
    made = config(folder, [concept(folder / "data")])
    own, _, _ = start(made)
    changed, prompt = own.units.entries[number].path, list(own.all_prompts())[number]  # type: ignore[attr-defined]
    image, text = Text2ImageDataLoader._key_of, Text2ImageDataLoader.text_key

    def image_key(self: Any, path: str, transform: Transform) -> str:
        key = image(self, path, transform)
        return content_key(key) if path == changed else key

    def text_key(self: Any, asked: str, plans: Any = ()) -> str:
        key = text(self, asked, plans)
        return content_key(key) if asked == prompt else key

    monkeypatch.setattr(Text2ImageDataLoader, "_key_of", image_key)
    monkeypatch.setattr(Text2ImageDataLoader, "text_key", text_key)
    own, model, _ = start(made)
    assert sum(model.images_encoded) == 1 and model.texts_encoded == [[prompt]]
    assert len(latents(own)) == COUNT
    asked = looks(monkeypatch)
    start(made)
    assert not asked


@pytest.mark.parametrize(("many", "most"), [(0, 64), (1, 64), (64, 64), (65, 64), (1000, 64), (5, 1)])
def test_a_sample_is_spread_over_all(many: int, most: int) -> None:
    found = _spread(range(many), most)
    assert len(found) <= most and list(found[:1]) == list(range(many))[:1]
    assert len(found) > min(many, most) // 2 - 1 and (not found or many - found[-1] <= many / len(found) + 1)


def test_names_of_cached_entries_and_random_streams_are_those_of_ever() -> None:
    """Another way to the same digests would encode everything again, and train other numbers."""
    assert content_key("2", "latents", "é", "\udc80") == "a6989b424674953c7c3247bd4b648391"
    assert digest64("augment/crop", 123, "images/1.png", 0, True, 1.5, b"x") == 15931056243369672170
    plain = Transform((64, 80), offset=(0.25, 0.5))
    assert plain.text() == "1:((64, 80), False, 0.0, (0.25, 0.5), 1.0, 1.0, 1.0, 0.0)"
    aimed = Transform((64, 80), True, 3.0, focus=(0.5, 0.25, 1.0), shrink=(0.5, 0.5))
    assert aimed.text() == "1:((64, 80), True, 3.0, (0.5, 0.5), 1.0, 1.0, 1.0, 0.0, (0.5, 0.25, 1.0))"


@pytest.mark.parametrize(
    ("threads", "ahead", "together"), [(0, None, 1), (2, None, 3), (3, 5, 16), (2, 1, 1)]
)
def test_work_in_threads_keeps_its_order(threads: int, ahead: int | None, together: int) -> None:
    assert list(in_threads(lambda n: n * n, range(50), threads, ahead, together)) == [
        n * n for n in range(50)
    ]


def test_an_error_in_a_thread_arrives() -> None:
    with pytest.raises(ZeroDivisionError):
        list(in_threads(lambda n: 1 // n, [3, 2, 1, 0, 1], 2, together=2))


def test_latents_of_grey_images_that_were_read_as_black_are_encoded_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels = np.arange(64 * 64, dtype=np.int32).reshape(64, 64) % 256
    for name, image in (("deep", Image.fromarray(levels)), ("plain", Image.fromarray(levels.astype(np.uint8)))):
        write_image(folder / "data" / f"{name}.png", seed=600)
        image.save(folder / "data" / f"{name}.tiff")
        (folder / "data" / f"{name}.png").unlink()
    made = config(folder, [concept(folder / "data")])
    with monkeypatch.context() as earlier:
        earlier.setattr(FileIndex, "content", FileIndex.digest)
        start(made)
    _, model, _ = start(made)
    assert model.images_encoded == [1], "only the file of 32-bit integers was read differently"
    _, model, _ = start(made)
    assert not model.images_encoded
