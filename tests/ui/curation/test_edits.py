"""Edits in the pair tool's window: the source next to the images, in their place, and in the export."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageTk

from modules.curation.CurationMode import CurationMode
from modules.ui.curation.ChoosingPage import ChoosingPage
from modules.ui.curation.ExportPage import ExportPage
from modules.ui.widgets.ImagePrefetcher import Compared, load_compared
from modules.util.dpo_curation_util import load_manifest
from tests.curation.edits import edit_folder, picture
from tests.ui.curation.drivers import Hands, make_images
from tests.ui.curation.test_choosing import logged
from tests.usual import usual

pytestmark = pytest.mark.gui


@pytest.fixture
def edit(root: tk.Tk, tmp_path: Path) -> Any:
    """Sit down before edits; the folder with their sources is in ``tmp_path/input``."""
    made: list[Hands] = []

    def sit(mode: CurationMode, instructions: int = 2, per_group: int = 3, **fields: Any) -> Hands:
        images, inputs = edit_folder(tmp_path, instructions, per_group)
        hands = Hands(root, images, tmp_path / "pairs", tmp_path / "settings")
        made.append(hands)
        hands.begin(mode, **{"sources": str(inputs), "near_duplicates": -1, **fields})
        return hands

    yield sit
    for hands in made:
        if not hands.closed:
            hands.close()


def pixels(view: Any) -> np.ndarray:
    """What a place shows on the screen, (H, W, 3)."""
    image = ImageTk.getimage(view._photo).convert("RGB")
    return np.asarray(image).astype(int)


def source_like(hands: Hands, image: np.ndarray) -> np.ndarray:
    """The source of the open prompt as large as an image on the screen, drawn again by other means."""
    number = int(hands.shot.group.prompt[-1])
    return np.asarray(picture(1000 + number).resize(image.shape[1::-1], Image.Resampling.BICUBIC)).astype(int)


def hold(hands: Hands, key: str, held: Callable[[], None]) -> None:
    """Hold a key down meanwhile."""
    focus = hands.root.focus_get() or hands.root
    focus.event_generate(f"<KeyPress-{key}>")
    hands.settle()
    held()
    focus.event_generate(f"<KeyRelease-{key}>")
    hands.until(lambda: hands.page.view.comparing is None, "the images again")
    hands.settle()


@pytest.mark.parametrize(
    ("mode", "places"),
    usual([(CurationMode.ELO, 2), (CurationMode.FOUR_UP, 4), (CurationMode.TRIAGE, 1)], (CurationMode.FOUR_UP, 4)),
)
def test_the_source_is_left_of_the_images_at_their_scale(edit, tmp_path, mode, places):
    hands = edit(mode, per_group=5)
    view = hands.page.view
    (source,) = view.sources
    assert len(view.views) == places
    for one in view.views:
        assert source.winfo_rootx() + source.winfo_width() <= one.winfo_rootx()
        sizes = np.array([pixels(one).shape, pixels(source).shape])
        assert np.abs(sizes[0] - sizes[1]).max() <= 1, (
            "columns differ by a pixel where the width cannot be divided"
        )
    assert np.array_equal(pixels(source), source_like(hands, pixels(source)))
    assert f"{hands.shot.group.prompt}   [1:1]" in hands.page.prompt_box.get("1.0", "end")


def test_s_shows_the_source_in_the_place_of_the_images_while_it_is_held(edit, tmp_path):
    hands = edit(CurationMode.ELO)
    view = hands.page.view
    before = [pixels(one) for one in view.views]

    def held() -> None:
        for one, was in zip(view.views, before, strict=True):
            assert np.array_equal(pixels(one), source_like(hands, was))
        focus = hands.root.focus_get() or hands.root
        focus.event_generate("<KeyPress-Left>")  # the images are not on the screen
        hands.settle()
        assert logged(tmp_path) == []

    hold(hands, "s", held)
    assert all(np.array_equal(pixels(one), was) for one, was in zip(view.views, before, strict=True))
    hands.press("Left")
    assert len(logged(tmp_path)) == 1


def test_x_shows_the_absolute_difference_and_the_images_again(edit, tmp_path):
    hands = edit(CurationMode.ELO)
    view = hands.page.view
    images = [pixels(one) for one in view.views]
    hands.press("x")
    for one, image in zip(view.views, images, strict=True):
        assert np.array_equal(pixels(one), np.abs(image - source_like(hands, image)))
    assert "X shows the images again" in str(hands.page.hint_label.cget("text"))
    hands.press("Left")
    assert logged(tmp_path) == [], "nobody answers what is not on the screen"
    hands.press("x", "Left")
    assert len(logged(tmp_path)) == 1
    hands.press("x", "n")
    assert hands.page.view.comparing is None, "the next question shows its images"


def test_sources_of_another_size_and_shape_are_brought_to_the_image_s_scale(tmp_path):
    picture(1, (64, 64)).save(tmp_path / "image.png")
    picture(2, (96, 48)).save(tmp_path / "source.png")
    source = Compared(tmp_path / "image.png", tmp_path / "source.png")
    assert load_compared(source, None).size == (64, 32)
    assert load_compared(source, (32, 32)).size == (32, 16)
    difference = Compared(tmp_path / "image.png", tmp_path / "source.png", difference=True)
    middle = picture(2, (96, 48)).crop((24, 0, 72, 48)).resize((64, 64), Image.Resampling.BICUBIC)
    expected = np.abs(np.asarray(picture(1, (64, 64))).astype(int) - np.asarray(middle).astype(int))
    assert np.array_equal(np.asarray(load_compared(difference, None)), expected)


@pytest.mark.parametrize("mode", [CurationMode.SELECT, CurationMode.GRID])
def test_grids_have_the_source_next_to_them_and_in_the_place_of_images(edit, tmp_path, mode):
    hands = edit(mode, instructions=1)
    view = hands.page.view
    grid = view.grid_of_images
    source = view.sources.views[0]
    hands.until(lambda: source.shown is not None, "the source")
    assert source.winfo_rootx() + source.winfo_width() <= grid.winfo_rootx()
    shown = ImageTk.getimage(next(iter(grid._photos.values()))).size
    assert ImageTk.getimage(source._photo).size == shown, "at the same scale"
    files = list(grid.paths)

    def held() -> None:
        assert [one.source.name for one in grid.paths] == ["source0.png"] * 3
        focus = hands.root.focus_get() or hands.root
        focus.event_generate("<KeyPress-Return>" if mode is CurationMode.SELECT else "<KeyPress-space>")
        hands.settle()
        assert logged(tmp_path) == []

    hold(hands, "s", held)
    assert list(grid.paths) == files
    hands.press("x")
    assert all(one.difference for one in grid.paths)
    hands.press("x")
    assert list(grid.paths) == files


def test_picking_edits_from_the_start_page_to_the_export(edit, tmp_path):
    hands = edit(CurationMode.ELO, instructions=1, sources="", ask_to_continue=False)
    assert "3 edits without a source image" in str(hands.page.message.cget("text"))
    hands.press("Return")
    assert isinstance(hands.tool.page, ExportPage)
    hands.open_start()
    page = hands.start_page
    page.edited.set(str(tmp_path / "none"))
    hands.focus(page.go)
    hands.press("Return")
    assert "does not exist" in str(page.errors["sources"].cget("text"))
    page.edited.set(str(tmp_path / "input"))
    hands.focus(page.go)
    hands.press("Return")
    hands.until(lambda: isinstance(hands.tool.page, ChoosingPage))
    hands.settle()
    hands.press("Left", "p")
    (pair,) = load_manifest(tmp_path / "pairs")["pairs"]
    (source,) = pair["source_images"]
    assert (tmp_path / "pairs" / source["file"]).read_bytes() == Path(source["from"]).read_bytes()
    hands.press("z", state=0x4)
    assert load_manifest(tmp_path / "pairs")["pairs"] == []
    assert not list((tmp_path / "pairs" / "source").iterdir())


@pytest.mark.slow
def test_the_keys_of_edits_are_listed_for_edits_alone(edit, root, tmp_path):
    def listed(hands: Hands) -> set[str]:
        hands.press("F1")
        (window,) = [w for w in hands.page.winfo_toplevel().winfo_children() if isinstance(w, tk.Toplevel)]
        words = {str(w.cget("text")) for body in window.winfo_children() for w in body.winfo_children()}
        window.destroy()
        return words

    hands = edit(CurationMode.ELO)
    assert {"S, held", "X", "Difference"} <= listed(hands)
    hands.close()
    source = make_images(tmp_path / "plain", 1, 3)
    plain = Hands(root, source, tmp_path / "others", tmp_path / "settings")
    plain.begin(CurationMode.ELO, sources="")
    assert not {"S, held", "Difference"} & listed(plain)
    plain.close()
