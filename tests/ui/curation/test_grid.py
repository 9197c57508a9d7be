"""GRID in the window: marks by mouse and keys on a page of many prompts, seeing, undo, and what is left of it all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from modules.curation.CurationMode import CurationMode
from modules.curation.GroupsAhead import Found, GroupsAhead, ScanControl
from modules.curation.ImageGroup import ImageGroup
from modules.curation.marking.Marks import Marks, Preferred
from modules.curation.store import CurationStore
from modules.ui.curation.SheetGrid import SheetGrid
from scripts.train_reward import listed_comparisons
from tests.source_tree import ROOT
from tests.ui.curation.drivers import CONTROL, Hands, go_to, make_images, mark_page

pytestmark = pytest.mark.gui


def marks_of(hands: Hands) -> dict[str, bool | None]:
    """What the page says of its images; new ones are left out."""
    return {
        name: strip.mark(name)
        for strip in hands.shot.strips
        for name in strip.files
        if not strip.is_new(name)
    }


def begin(hands: Hands, prompts: int) -> None:
    hands.begin(CurationMode("GRID"))
    hands.until(lambda: len(hands.shot.strips) == prompts, "the page")
    grid = hands.page.view.grid_of_images
    hands.until(lambda: all(grid.is_drawn(i) for i in grid._visible()), "the images")


def click(hands: Hands, place: int, button: int = 1) -> None:
    """A real click in the middle of an image."""
    grid = hands.page.view.grid_of_images
    left, top = grid._corner(place)
    x, y = left + grid.cell // 2, top + grid.cell // 2 - int(grid.canvas.canvasy(0))
    grid.canvas.event_generate(f"<ButtonPress-{button}>", x=x, y=y)
    grid.canvas.event_generate(f"<ButtonRelease-{button}>", x=x, y=y)
    hands.settle()


def test_clicks_and_keys_mark_and_take_marks_off_again(sit_down):
    hands = sit_down(groups=2, per_group=3)
    begin(hands, 2)
    first, second = (strip.files for strip in hands.shot.strips)
    click(hands, 0)
    assert marks_of(hands).get(first[0]) is True
    click(hands, 3, button=3)
    assert marks_of(hands)[second[0]] is False
    click(hands, 0)
    assert marks_of(hands)[first[0]] is None, "a second click takes the mark off; the image was seen"
    go_to(hands, 4)
    hands.press("l")
    assert marks_of(hands)[second[1]] is True
    hands.press("d")
    assert marks_of(hands)[second[1]] is False, "the other mark takes its place"
    hands.press("Delete")
    assert marks_of(hands)[second[1]] is None
    hands.press("z", state=CONTROL)
    assert marks_of(hands)[second[1]] is False
    for _ in range(5):
        hands.press("z", state=CONTROL)
    assert not [like for like in marks_of(hands).values() if like is not None], "every mark was taken back"
    hands.press("z", state=CONTROL)
    assert "nothing to undo" in str(hands.page.count_label.cget("text"))


def test_keys_pressed_faster_than_the_disk_all_count(sit_down):
    hands = sit_down(groups=2, per_group=4)
    begin(hands, 2)
    canvas = hands.root.focus_get() or hands.root
    for key in ("space", "Right", "space", "Right", "d", "Right", "space", "space"):
        canvas.event_generate(f"<KeyPress-{key}>")
    hands.settle()
    files = [name for strip in hands.shot.strips for name in strip.files]
    said = marks_of(hands)
    assert [said.get(name) for name in files[:4]] == [True, True, False, None]


def test_what_is_on_the_screen_for_a_second_is_seen_and_what_is_scrolled_away_is_not(sit_down):
    hands = sit_down(groups=6, per_group=8)
    begin(hands, 6)
    grid = hands.page.view.grid_of_images
    inside = {hands.page.view._images[i][1] for i in grid.in_view()}
    assert 0 < len(inside) < 48
    assert not marks_of(hands), "nothing is seen before a second has passed"
    hands.until(lambda: marks_of(hands).keys() == inside, "exactly what is in view to be seen")
    hands.press("End")
    hands.until(lambda: marks_of(hands).keys() > inside, "the end of the page to be seen")
    assert hands.shot.counts.seen == len(marks_of(hands))
    assert len(marks_of(hands)) < 48
    hands.press("Home")
    hands.press("Down")
    assert grid._corner(grid.cursor)[1] > grid._corner(0)[1]


def test_likes_become_pairs_with_the_next_page_and_one_undo_brings_the_page_back(sit_down):
    hands = sit_down(groups=2, per_group=3)
    begin(hands, 2)
    mark_page(hands)
    before = marks_of(hands)
    hands.press("Return")
    assert hands.phase == "finished"
    pairs = hands.tool.controller._open_store().pairs()
    assert sorted(pair["sources"]["chosen"].rsplit("_i", 1)[1] for pair in pairs) == ["02.png", "02.png"]
    hands.press("z", state=CONTROL)
    hands.until(lambda: len(hands.shot.strips) == 2, "the page")
    assert marks_of(hands) == before
    assert hands.shot.counts.paired == 0
    hands.press("n")
    assert hands.shot.counts.paired == 2


def test_marks_are_there_when_the_folder_is_opened_again(sit_down, root, tmp_path):
    hands = sit_down(groups=2, per_group=3)
    begin(hands, 2)
    mark_page(hands)
    before = marks_of(hands)
    hands.close()
    again = Hands(root, tmp_path / "images", tmp_path / "pairs", tmp_path / "settings2")
    begin(again, 2)
    assert marks_of(again) == before
    assert again.shot.counts.liked == 2
    again.close()


def found_in_two_parts(monkeypatch: pytest.MonkeyPatch, source: Path) -> threading.Event:
    """The first of two prompts is found with two images, and with all once the event is set."""
    files = sorted(path.name for path in source.glob("*.png"))
    groups = [[name for name in files if name.startswith(f"g00{number}")] for number in range(2)]
    go_on = threading.Event()

    def part(number: int, count: int) -> ImageGroup:
        return ImageGroup(f"key {number}", f"fox {number}", "1:1", source, tuple(groups[number][:count]))

    def scan(control: ScanControl) -> Iterator[Found]:
        yield part(0, 2)
        yield part(1, 8)
        control.counted(2)
        while not go_on.wait(0.01) and not control.stopped():
            pass
        yield part(0, 8)

    def search(
        source: object, output: object, options: object, finished: object, changed: object, **more: object
    ) -> GroupsAhead:
        return GroupsAhead(scan, finished, changed, gentle=True)

    monkeypatch.setattr("modules.ui.curation.PairController.search_folder", search)
    return go_on


def test_images_found_later_come_into_the_open_prompt_and_the_cursor_stays_on_its_image(
    sit_down, monkeypatch, tmp_path
):
    hands = sit_down(groups=2, per_group=8)
    go_on = found_in_two_parts(monkeypatch, tmp_path / "images")
    begin(hands, 2)
    go_to(hands, 3)
    at = hands.page.view._images[3][1]
    go_on.set()
    hands.until(lambda: len(hands.page.view._images) == 16, "the page with the new images")
    assert [(one.group.key, len(one.files)) for one in hands.shot.strips] == [("key 0", 8), ("key 1", 8)]
    grid = hands.page.view.grid_of_images
    assert hands.page.view._images[grid.cursor][1] == at
    go_to(hands, 7)
    hands.until(lambda: grid.is_drawn(7), "the new image")
    hands.press("space")
    assert marks_of(hands)["g000_i07.png"] is True
    hands.press("Return")
    assert (hands.phase, hands.shot.finished) == ("finished", 2)


def test_a_page_of_which_nothing_was_drawn_is_not_finished(sit_down, monkeypatch):
    hands = sit_down(groups=14, per_group=2)
    begin(hands, 12)
    with monkeypatch.context() as undrawn:
        undrawn.setattr(SheetGrid, "is_drawn", lambda grid, index: False)
        for _ in range(5):
            hands.root.focus_get().event_generate("<KeyPress-Return>")
            hands.root.update()
        assert not hands.tool.controller.waiting
        assert (len(hands.shot.strips), hands.shot.finished) == (12, 0)
    hands.press("Return")
    assert (len(hands.shot.strips), hands.shot.finished) == (2, 12)


def test_a_page_whose_images_were_all_deleted_can_be_finished(sit_down, monkeypatch, tmp_path):
    hands = sit_down(groups=2, per_group=2)
    with monkeypatch.context() as lost:
        lost.setattr("modules.ui.widgets.ImagePrefetcher.ImagePrefetcher.get", lambda *_: None)
        lost.setattr("modules.ui.widgets.ImagePrefetcher.ImagePrefetcher.failure", lambda *_: "no image")
        hands.begin(CurationMode("GRID"))
        hands.until(lambda: len(hands.shot.strips) == 2, "the page")
        hands.press("Return")
    assert (hands.phase, hands.shot.finished) == ("finished", 2)


def test_answers_of_other_ways_of_choosing_are_no_images_that_were_looked_at(sit_down, tmp_path):
    hands = sit_down(groups=2, per_group=3)
    with CurationStore(tmp_path / "pairs") as store:
        for _ in range(40):
            store.append("another", "judge", {"file": "1.png", "good": True})
    begin(hands, 2)
    mark_page(hands)
    seen = len(marks_of(hands))
    assert hands.shot.counts.seen == 40 + seen
    assert str(hands.page.certainty_label.cget("text")) == "Taste: not measured yet; look at 30 more"


def test_a_deleted_image_is_in_no_comparison_a_taste_learns_from(sit_down, tmp_path):
    hands = sit_down(groups=2, per_group=3)
    begin(hands, 2)
    mark_page(hands)
    found: list[Preferred] = []
    ask = lambda: hands.tool.controller.comparisons(found.extend)  # noqa: E731
    ask()
    hands.until(lambda: found, "the comparisons")
    lost = found[0].worse
    left = [one for one in found if lost != one.worse]
    assert 0 < len(left) < len(found)
    Path(lost).unlink()
    found.clear()
    ask()
    hands.until(lambda: found, "the comparisons")
    assert found == left
    listed = tmp_path / "listed.json"
    listed.write_text(json.dumps([asdict(one) for one in found]))
    assert len(listed_comparisons(listed)) == len(left)


@pytest.mark.slow
def test_the_bar_says_what_to_do_and_is_measured_without_stopping_a_key(sit_down):
    hands = sit_down(groups=6, per_group=5)
    begin(hands, 6)
    said = lambda: str(hands.page.certainty_label.cget("text"))  # noqa: E731
    assert said() == "Taste: not measured yet; look at 30 more"
    for number in range(6):
        go_to(hands, 5 * number + 4)
        hands.until(lambda: hands.page.view.grid_of_images.is_drawn(hands.page.view.grid_of_images.cursor))
        hands.until(lambda: not [i for i in hands.page.view.grid_of_images.in_view()
                                 if hands.page.view._images[i][0].is_new(hands.page.view._images[i][1])])  # fmt: skip
        hands.press("space")
    hands.until(lambda: hands.page.gauge._busy or hands.page.gauge.known, "the measuring to begin")
    if hands.page.gauge.known is None:
        began = time.monotonic()
        hands.press("d")
        assert hands.page.gauge.known is not None or time.monotonic() - began < 5
        assert hands.shot.counts.disliked == 1, "a mark counts while the head is measured"
    end = time.monotonic() + 180
    while hands.page.gauge._busy:
        assert time.monotonic() < end, "waited in vain for the figure"
        hands.root.update()
        time.sleep(0.01)
    assert not hands.page.gauge.problem
    known = hands.page.gauge.known
    assert 0 <= known.low <= known.share <= known.high <= 1
    assert f"{known.share:.0%} of your choices predicted ({known.low:.0%} to {known.high:.0%})" in said()


KILLED = """
import sys, tkinter as tk
from pathlib import Path
from modules.curation.CurationMode import CurationMode
from tests.ui.curation.drivers import Hands
folder = Path(sys.argv[1])
root = tk.Tk(); root.geometry("1000x640"); root.errors = []; root.update()
hands = Hands(root, folder / "images", folder / "pairs", folder / "settings")
hands.begin(CurationMode("GRID"))
grid = lambda: hands.page.view.grid_of_images
hands.until(lambda: len(hands.shot.strips) == 2)
hands.until(lambda: grid().is_drawn(0) and grid().is_drawn(1))
hands.press("space"); hands.press("Right"); hands.press("d")
liked = [n for s in hands.shot.strips for n in s.files if s.mark(n) is True]
bad = [n for s in hands.shot.strips for n in s.files if s.mark(n) is False]
print(liked[0], bad[0], flush=True)
while True:
    root.update()
"""


@pytest.mark.slow
def test_marks_on_the_screen_survive_a_kill(display, tmp_path):
    make_images(tmp_path / "images", 2, 3)
    window = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert window.stdout is not None
    liked, disliked = window.stdout.readline().split()
    window.send_signal(signal.SIGKILL)
    window.wait(20)
    window.stdout.close()
    with CurationStore(tmp_path / "pairs") as store:
        listed = Marks(store.events()).listed()
    assert [(one["file"], one["mark"]) for one in listed] == [(liked, "like"), (disliked, "dislike")]
    assert all(one["prompt"].startswith("a fox number") for one in listed)
