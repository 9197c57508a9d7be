"""Walking through finalised pairs by keyboard."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from modules.curation.CurationMode import CurationMode
from modules.curation.store import CurationStore
from modules.ui.review.DPOReviewWindow import DPOReviewWindow
from modules.ui.review.ReviewPage import ReviewPage
from modules.ui.texts import review as words
from modules.ui.widgets.ConfirmWindow import ConfirmWindow
from modules.ui.widgets.theme import Theme
from modules.util.dpo_curation_util import (
    export_single_pair,
    finalize_export,
    load_manifest,
    read_caption,
    save_manifest,
    scan_finalized_pairs,
)
from modules.util.errors import UserError
from tests.ui.curation.drivers import CONTROL, Hands

pytestmark = pytest.mark.gui

BLUE, RED = (0, 0, 200), (200, 0, 0)


def make_pairs(folder: Path, count: int = 4) -> Path:
    """Finalised pairs of a blue chosen and a red rejected image."""
    source, output = folder / "images", folder / "pairs"
    source.mkdir()
    output.mkdir()
    manifest = load_manifest(output)
    for i in range(count):
        for name, colour in (("good", BLUE), ("bad", RED)):
            Image.new("RGB", (64, 64), (*colour[:1], i, *colour[2:])).save(source / f"{name}_{i}.png")
        export_single_pair(
            output, manifest, source / f"good_{i}.png", source / f"bad_{i}.png", f"prompt {i}", "1:1"
        )
    finalize_export(output, manifest, 25)
    return output


class Reader(Hands):
    """A person before the review window."""

    def __init__(self, root: tk.Tk, output: Path) -> None:
        self.root, self.closed = root, False
        self.theme = Theme(root)
        self.theme.apply("Light", 100)
        root.report_callback_exception = self._report
        self.tool = DPOReviewWindow(root, self.theme, output, self._was_closed, 512)
        self.tool.pack(fill="both", expand=True)
        self.until(lambda: self.review.checked)

    @property
    def review(self) -> ReviewPage:
        assert isinstance(self.tool.page, ReviewPage)
        return self.tool.page

    @property
    def names(self) -> list[str]:
        return [pair.pair_id for pair in self.review.listed]

    def _settled(self) -> bool:
        if self.closed:
            return True
        return not self.tool.worker.busy and all(view.shown == view.path for view in self.review.views)

    def colours(self) -> list[str]:
        """What is on the screen, by looking at the middle of each side's picture."""
        seen = []
        for view in self.review.views:
            photo = view._photo
            red, _, blue = self.tk_colour(photo, photo.width() // 2, photo.height() // 2)
            seen.append("blue" if blue > red else "red")
        return seen

    def tk_colour(self, photo: object, x: int, y: int) -> tuple[int, int, int]:
        value = self.root.tk.call(str(photo), "get", x, y)
        red, green, blue = (int(part) for part in (value if isinstance(value, tuple) else value.split()))
        return red, green, blue


@pytest.fixture
def read(root: tk.Tk, tmp_path: Path) -> Iterator[Callable[..., Reader]]:
    """Make pairs, let a function spoil them, open the review."""
    made: list[Reader] = []

    def open_review(count: int = 4, spoil: Callable[[Path], object] = lambda output: None) -> Reader:
        output = make_pairs(tmp_path, count)
        spoil(output)
        made.append(Reader(root, output))
        made[-1].settle()
        return made[-1]

    yield open_review
    for reader in made:
        if not reader.closed:
            reader.close()


def test_train_and_validation_are_walked_through_together(read, tmp_path):
    reader = read()
    splits = [pair.split for pair in reader.review.listed]
    assert splits == ["train", "train", "train", "val"]
    seen = [str(reader.review.pair.pair_id)]
    for _ in range(5):
        reader.press("Right")
        seen.append(str(reader.review.pair.pair_id))
    assert seen == [*reader.names, reader.names[-1], reader.names[-1]]
    reader.press("Left", "Home")
    assert reader.review.pair.pair_id == reader.names[0]
    assert "Pair 1 of 4" in str(reader.review.place_label.cget("text"))
    assert str(reader.review.check_label.cget("text")) == "no faults"


def test_delete_removes_both_sides_and_undo_brings_them_back(read, tmp_path):
    reader = read()
    name = reader.names[1]
    reader.press("Right", "Delete")
    assert name not in reader.names
    left = [p for p in (tmp_path / "pairs").glob("*/*/*") if p.stem == name]
    assert left == []
    assert name not in {pair["pair_id"] for pair in load_manifest(tmp_path / "pairs")["pairs"]}
    reader.press("z", state=CONTROL)
    assert name in reader.names
    assert len([p for p in (tmp_path / "pairs").glob("*/*/*") if p.stem == name]) == 4
    reader.press("z", state=CONTROL)
    assert "nothing to undo" in str(reader.review.check_label.cget("text"))


def test_delete_pressed_again_before_the_next_pair_is_shown_removes_one_pair(read, tmp_path):
    reader = read()
    first, *others = reader.names
    for key in ("Delete", "Delete", "s"):
        reader.root.event_generate(f"<{key}>")
    reader.settle()
    assert reader.failures == [] and reader.names == others
    assert reader.colours() == ["blue", "red"]
    reader.press("z", state=CONTROL)
    assert reader.names == [first, *others]


def test_swapped_sides_are_swapped_on_the_screen_too(read, tmp_path):
    reader = read()
    assert reader.colours() == ["blue", "red"]
    reader.press("s")
    assert reader.colours() == ["red", "blue"]
    pair = scan_finalized_pairs(tmp_path / "pairs")[0]
    with Image.open(pair.chosen) as image:
        assert image.convert("RGB").getpixel((5, 5))[0] == RED[0]
    reader.press("BackSpace")
    assert reader.colours() == ["blue", "red"]


def test_the_caption_is_edited_on_both_sides(read, tmp_path):
    reader = read()
    pair = reader.review.pair
    reader.press("e")
    reader.until(lambda: reader.root.focus_get() is reader.review.caption, "the focus")
    reader.review.caption.delete("1.0", "end")
    reader.press("s", "p", "Return")
    assert {read_caption(pair.chosen), read_caption(pair.rejected)} == {"sp"}
    assert reader.names == [pair.pair_id, *reader.names[1:]], "typing s has swapped nothing"
    assert reader.colours() == ["blue", "red"]
    reader.press("e")
    reader.press("x", "Escape")
    assert read_caption(pair.chosen) == "sp"
    assert reader.review.caption.get("1.0", "end").strip() == "sp"
    reader.press("z", state=CONTROL)
    assert read_caption(pair.rejected).startswith("prompt")


def begin_editing(reader: Reader) -> None:
    reader.press("e")
    reader.until(lambda: reader.root.focus_get() is reader.review.caption, "the focus")
    reader.review.caption.delete("1.0", "end")


def test_what_is_typed_outlives_the_check_of_other_pairs_and_stays_with_its_pair(read, tmp_path):
    reader = read(spoil=spoil)
    page = reader.review
    reader.press("o", "Right")  # the second of the pairs with faults
    pair, before = page.pair, page.state_shown
    begin_editing(reader)
    reader.press("s", "a")
    # faults of this pair and of one before it are found while a person types
    fewer = {name: found for name, found in before.faults.items() if name == pair.pair_id}
    page._checked_some(replace(before, faults={**fewer, pair.pair_id: fewer[pair.pair_id] * 2}))
    assert page.position == 0
    page._checked_some(before)
    assert page.pair.pair_id == pair.pair_id
    reader.press("d", "Return")
    assert {read_caption(pair.chosen), read_caption(pair.rejected)} == {"sad"}
    left = [one.pair_id for one in scan_finalized_pairs(tmp_path / "pairs")]
    assert left == sorted(one.pair_id for one in before.pairs), "no letter was taken for a command"


@pytest.mark.parametrize("how", ["next", "close"])
def test_a_caption_that_is_being_typed_is_saved_by_a_button_and_by_closing(read, tmp_path, how):
    reader = read()
    pair = reader.review.pair
    begin_editing(reader)
    reader.press("a", "b")
    if how == "close":
        reader.close()
    else:
        (button,) = [
            one
            for one in everything_in(reader.review)
            if one.winfo_class() == "TButton" and str(one.cget("text")).endswith(words.NEXT)
        ]
        button.invoke()
        reader.settle()
        assert reader.review.pair.pair_id != pair.pair_id
    assert {read_caption(pair.chosen), read_caption(pair.rejected)} == {"ab"}


def everything_in(widget: tk.Misc) -> Iterator[tk.Misc]:
    for child in widget.winfo_children():
        yield child
        yield from everything_in(child)


def spoil(output: Path) -> None:
    pairs = scan_finalized_pairs(output)
    pairs[0].rejected.write_bytes(pairs[0].chosen.read_bytes())
    pairs[1].rejected.with_suffix(".txt").write_text("another caption")
    pairs[2].chosen.with_suffix(".txt").write_text("two\nlines")
    pairs[2].rejected.with_suffix(".txt").write_text("two\nlines")


def test_faults_are_found_shown_and_mended(read, tmp_path):
    reader = read(spoil=spoil)
    assert str(reader.review.check_label.cget("text")) == "3 faults"
    assert str(reader.review.fault_label.cget("text")) == "both sides are the same image"
    reader.press("o")
    assert len(reader.names) == 3
    reader.press("Right", "x")
    assert str(reader.review.check_label.cget("text")) == "2 faults"
    reader.press("a")
    assert str(reader.review.check_label.cget("text")) == "no faults"
    assert str(reader.review.place_label.cget("text")) == "No pair has a fault."
    reader.press("o")
    assert len(reader.names) == 3
    captions = {read_caption(pair.rejected) for pair in scan_finalized_pairs(tmp_path / "pairs")}
    assert all(caption.startswith("prompt") for caption in captions)


def test_the_folder_is_locked_while_it_is_reviewed(read, tmp_path):
    reader = read()
    with pytest.raises(UserError, match="another window"):
        CurationStore(tmp_path / "pairs")
    reader.press("Delete")
    reader.press("Escape")
    reader.until(lambda: reader.closed)
    with CurationStore(tmp_path / "pairs") as store:
        assert store.pair_count() == 3


def test_what_cannot_be_done_is_told_and_changes_nothing(read, tmp_path, monkeypatch):
    reader = read()
    reader.press("e")
    reader.review.caption.delete("1.0", "end")
    reader.press("Return")
    assert "the caption is empty" in str(Hands.failures[0])
    assert reader.review.pair.chosen_caption.startswith("prompt")
    reader.review.pair.chosen.unlink()
    reader.press("s")
    assert "lost one side" in str(Hands.failures[1])
    assert str(reader.review.fault_label.cget("text")).startswith("there is no chosen image")


def test_a_folder_without_pairs_says_so(root, tmp_path):
    (tmp_path / "empty").mkdir()
    reader = Reader(root, tmp_path / "empty")
    reader.until(lambda: "no pairs here" in str(reader.review.place_label.cget("text")))
    reader.press("Delete", "s", "x", "a", "Right", "z")
    reader.close()


def test_from_picking_to_review_and_back(sit_down, tmp_path):
    hands = sit_down(groups=3, per_group=4)
    hands.begin(CurationMode.ELO, ask_to_continue=False)
    hands.press("Left", "p", "Right", "p", "e")
    page = hands.tool.page
    hands.focus(page.go)
    hands.press("Return")
    hands.until(lambda: page.result.cget("text"))
    page.review_button.invoke()
    hands.until(lambda: isinstance(hands.tool.page, ReviewPage) and hands.tool.page.checked)
    hands.press("Delete")
    hands.press("Escape")
    hands.until(lambda: hands.tool.page.__class__.__name__ == "ChoosingPage")
    hands.settle()
    assert hands.shot.counts.paired == 1
    assert len(scan_finalized_pairs(tmp_path / "pairs")) == 1


def test_the_trash_is_emptied_by_keyboard_after_being_asked(read, tmp_path):
    reader = read()
    trash = tmp_path / "pairs" / ".trash"

    def asked() -> ConfirmWindow:
        reader.press("t")
        found = [w for w in reader.root.winfo_children() if isinstance(w, ConfirmWindow)]
        assert len(found) == 1
        reader.until(lambda: reader.root.focus_get() is found[0].no, "the harmless button")
        return found[0]

    reader.press("t")
    assert str(reader.review.check_label.cget("text")) == "The trash is empty."
    reader.press("Delete", "Delete")
    size = sum(p.stat().st_size for p in trash.rglob("*") if p.is_file())
    window = asked()
    (question,) = [w for w in window.winfo_children()[0].winfo_children() if w.winfo_class() == "TLabel"]
    words = str(question.cget("text"))
    assert words.startswith(f"2 removed pairs ({size / 2**20:.1f} MiB) will be deleted permanently.")
    reader.press("Return")
    assert not window.winfo_exists()
    window = asked()
    reader.press("Escape")
    assert not window.winfo_exists()
    assert not reader.closed, "Escape answers the question and does not leave the review"
    assert len(list(trash.iterdir())) == 3
    window = asked()
    reader.press("y")
    assert not trash.exists()
    assert str(reader.review.check_label.cget("text")).startswith("2 removed pairs deleted")
    reader.press("z", state=CONTROL)
    assert "nothing to undo" in str(reader.review.check_label.cget("text"))
    assert len(reader.names) == 2


def test_a_second_window_takes_back_what_the_first_did(read, root, tmp_path):
    reader = read()
    name = reader.names[0]
    reader.press("Delete")
    reader.close()
    again = Reader(root, tmp_path / "pairs")
    assert name not in again.names
    again.press("z", state=CONTROL)
    assert name in again.names
    again.close()


def test_a_pair_without_a_prompt_is_no_fault_and_says_so(read, tmp_path):
    def no_prompt(output: Path) -> None:
        manifest = load_manifest(output)
        for pair in manifest["pairs"][:2]:
            pair["prompt"] = "UNCONDITIONAL"
            for side in ("chosen", "rejected"):
                (output / pair[f"{side}_file"]).with_suffix(".txt").write_text("")
        save_manifest(output, manifest)
        for side in ("chosen", "rejected"):
            (output / manifest["pairs"][2][f"{side}_file"]).with_suffix(".txt").write_text("")

    reader = read(spoil=no_prompt)
    texts = {}
    for _ in range(4):
        texts[reader.review.pair.pair_id] = reader.review.caption.get("1.0", "end").strip()
        reader.press("Right")
    assert [texts[f"pair_000{i}"] for i in range(3)] == ["UNCONDITIONAL", "UNCONDITIONAL", ""]
    assert str(reader.review.check_label.cget("text")) == "1 fault"


def test_edits_have_their_source_to_the_left(read, tmp_path):
    def add_sources(output: Path) -> None:
        (output / "source").mkdir()
        for place, pair in enumerate(scan_finalized_pairs(output)):
            if place < 2:
                Image.new("RGB", (64, 64), (0, 200, place)).save(output / "source" / f"{pair.pair_id}.png")
        second = output / "source" / f"{scan_finalized_pairs(output)[1].pair_id}.2.png"
        Image.new("RGB", (64, 64), (0, 200, 9)).save(second)

    reader = read(spoil=add_sources)
    source, (chosen, rejected) = reader.review.source_view, reader.review.views
    assert source.winfo_rootx() + source.winfo_width() <= chosen.winfo_rootx() < rejected.winfo_rootx()
    width = source.winfo_width()
    assert abs(width - chosen.winfo_width()) <= 1

    def colour() -> tuple[int, int, int]:
        reader.until(lambda: source.shown is not None, "the source")
        photo = source._photo
        return reader.tk_colour(photo, photo.width() // 2, photo.height() // 2)

    assert colour() == (0, 200, 0)
    reader.press("Right")
    reader.until(lambda: source.shown == source.path, "the second source")
    assert colour() == (0, 200, 1) and source._caption.startswith("Source 1 of 2")
    reader.press("Right")
    reader.until(lambda: not source.winfo_ismapped(), "no source")
    reader.until(lambda: chosen.winfo_width() > width, "more room for the sides")
    reader.press("Home")
    reader.until(lambda: source.winfo_ismapped(), "the source again")
    assert colour() == (0, 200, 0)
