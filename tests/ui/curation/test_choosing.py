"""What single keys and clicks do while choosing."""

from __future__ import annotations

import json
import sqlite3
import tkinter as tk
from pathlib import Path
from typing import Any

import pytest

from modules.curation.CurationMode import CurationMode
from modules.ui.curation.ChoosingPage import ChoosingPage
from modules.ui.curation.ExportPage import ExportPage
from modules.ui.widgets.tk_support import BAD, GOOD
from modules.util.dpo_curation_util import load_manifest
from tests.ui.curation.drivers import CONTROL, SHIFT, Hands, answer_as_liked, make_images

pytestmark = pytest.mark.gui


def logged(tmp_path: Path) -> list[dict[str, Any]]:
    """The events that hold, read from the disk as another program would."""
    with sqlite3.connect(tmp_path / "pairs" / "curation.sqlite") as base:
        rows = base.execute("SELECT kind, payload FROM events WHERE undone = 0 ORDER BY seq").fetchall()
    return [{"kind": kind, **json.loads(payload)} for kind, payload in rows]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("Left", {"best": 0}),
        ("Right", {"best": 1}),
        ("KP_Right", {"best": 1}),
        ("Up", {"tie": True}),
        ("b", {"both_bad": True}),
        ("Down", {}),
        ("space", {}),
    ],
)
def test_every_key_of_a_question_of_two_is_on_the_disk_at_once(sit_down, tmp_path, key, expected):
    hands = sit_down()
    hands.begin(CurationMode.ELO)
    places = [hands.name(i) for i in hands.question]
    hands.press(key)
    (event,) = logged(tmp_path)
    assert event["places"] == places
    best = expected.get("best")
    assert event["best"] == (None if best is None else places[best])
    assert (event["tie"], event["both_bad"]) == (expected.get("tie", False), expected.get("both_bad", False))
    counted = str(hands.page.count_label.cget("text"))
    assert counted.startswith(f"seen 1 \u00b7 skipped {int(not expected)} \u00b7 paired 0")


def test_undo_goes_back_without_limit_and_into_earlier_prompts(sit_down, tmp_path):
    hands = sit_down(groups=2, per_group=3)
    hands.begin(CurationMode.ELO)
    first = hands.shot.group.key
    hands.press("Left", "Right", "p")
    assert hands.phase == "question"  # one image is left of three, so the next prompt follows by itself
    second = hands.shot.group.key
    assert second != first
    assert len(load_manifest(tmp_path / "pairs")["pairs"]) == 1
    hands.press("Up")
    hands.press("z", state=CONTROL)
    assert hands.shot.group.key == second
    hands.press("z", state=CONTROL)
    assert hands.shot.group.key == first
    assert load_manifest(tmp_path / "pairs")["pairs"] == []
    hands.press("BackSpace", "BackSpace")
    assert logged(tmp_path) == []
    hands.press("BackSpace")
    assert "nothing to undo" in str(hands.page.count_label.cget("text"))
    hands.press("Left", "Left", "p")
    assert hands.shot.group.key == second, "the prompt that was left comes again"


def test_after_a_pick_yes_keeps_scoring_and_undo_takes_the_pick_back(sit_down, tmp_path):
    hands = sit_down(groups=2, per_group=6)
    hands.begin(CurationMode.ELO)
    key = hands.shot.group.key
    hands.press("Left", "p")
    assert hands.phase == "continue"
    assert [view.cget("highlightbackground") for view in hands.page.view.views] == [GOOD, BAD]
    hands.press("BackSpace")
    assert hands.phase == "question"
    assert load_manifest(tmp_path / "pairs")["pairs"] == []
    hands.press("p", "y")
    assert (hands.phase, hands.shot.group.key) == ("question", key)
    assert len(hands.shot.state.alive) == 4
    hands.press("Left", "p", "n")
    assert hands.shot.group.key != key
    assert len(load_manifest(tmp_path / "pairs")["pairs"]) == 2


def test_without_asking_the_next_prompt_follows_and_one_undo_brings_it_back(sit_down, tmp_path):
    hands = sit_down(groups=2, per_group=6)
    hands.begin(CurationMode.ELO, ask_to_continue=False)
    key = hands.shot.group.key
    hands.press("Left", "p")
    assert hands.shot.group.key != key
    hands.press("BackSpace")
    assert (hands.phase, hands.shot.group.key) == ("question", key)
    assert load_manifest(tmp_path / "pairs")["pairs"] == []


def test_smart_saves_by_itself_and_shows_the_certainty_on_the_way(sit_down, tmp_path):
    hands = sit_down(groups=1, per_group=6)
    hands.begin(CurationMode.SMART, certainty=80.0)
    shown = []
    while hands.phase == "question":
        shown.append(str(hands.page.certainty_label.cget("text")))
        left, right = (hands.quality(i) for i in hands.question)
        hands.press("Left" if left > right else "Right")
    assert shown[0] == "50% sure; a pair is saved at 80%"
    assert len(set(shown)) > 1
    (pair,) = load_manifest(tmp_path / "pairs")["pairs"]
    assert pair["prompt"] == "a fox number 0 in the snow"
    assert pair["sources"]["chosen"] > pair["sources"]["rejected"], "this person likes later images better"


def test_blind_mode_shows_neither_names_nor_ratings(sit_down):
    hands = sit_down()
    hands.begin(CurationMode.ELO)

    def texts() -> str:
        views = hands.page.view.views
        return " ".join(v.itemcget(i, "text") for v in views for i in v.find_all() if v.type(i) == "text")

    assert "1500" in texts()
    assert "_i0" in texts()
    hands.press("h")
    assert texts() == ""
    hands.press("Left")
    assert texts() == ""


@pytest.mark.slow
def test_the_prompt_folds_away(sit_down):
    hands = sit_down()
    hands.begin(CurationMode.ELO)
    box = hands.page.prompt_box
    assert box.get("1.0", "end").startswith("a fox number")
    assert box.winfo_ismapped()
    hands.press("t")
    hands.until(lambda: not box.winfo_ismapped())
    hands.press("t")
    hands.until(box.winfo_ismapped)


def test_all_images_zoom_and_move_together_and_the_next_question_is_whole_again(sit_down):
    hands = sit_down()
    hands.begin(CurationMode.ELO)
    views, zoom = hands.page.view.views, hands.page.context.zoom
    hands.press("plus")
    assert zoom.factor is not None
    factor = zoom.factor
    views[1].event_generate("<Button-4>", x=30, y=40)
    hands.settle()
    assert zoom.factor == pytest.approx(factor * 1.25)
    assert zoom.centre[0] < 0.5
    before = zoom.centre
    views[0].event_generate("<ButtonPress-1>", x=200, y=200)
    views[0].event_generate("<B1-Motion>", x=150, y=200)
    views[0].event_generate("<ButtonRelease-1>", x=150, y=200)
    hands.settle()
    assert zoom.centre[0] > before[0]
    assert hands.shot.state.events == 0, "dragging is no answer"
    hands.press("z")
    assert zoom.factor is None
    hands.press("z")
    assert zoom.factor == 1.0
    hands.press("Right")
    assert zoom.factor is None


def test_a_click_picks_the_image(sit_down, tmp_path):
    hands = sit_down()
    hands.begin(CurationMode.ELO)
    best = hands.name(hands.question[1])
    view = hands.page.view.views[1]
    view.event_generate("<ButtonPress-1>", x=60, y=60)
    view.event_generate("<ButtonRelease-1>", x=61, y=60)
    hands.settle()
    assert logged(tmp_path)[0]["best"] == best


def test_holding_f_shows_each_image_in_the_others_place_until_it_is_let_go(sit_down):
    hands = sit_down()
    hands.begin(CurationMode.ELO)
    left, right = hands.page.view.views
    paths = [left.path, right.path]
    hands.root.event_generate("<KeyPress-f>")
    hands.root.update()
    assert [left.path, right.path] == paths[::-1]
    for _ in range(3):  # as the key repeats
        hands.root.event_generate("<KeyRelease-f>")
        hands.root.event_generate("<KeyPress-f>")
    hands.root.update()
    assert hands.page.view._flickering is not None
    hands.root.event_generate("<KeyRelease-f>")
    hands.until(lambda: hands.page.view._flickering is None)
    assert [left.path, right.path] == paths


def test_f_let_go_in_another_window_counts_as_let_go(sit_down):
    hands = sit_down()
    hands.begin(CurationMode.ELO)
    left, right = hands.page.view.views
    paths = [left.path, right.path]
    hands.root.event_generate("<KeyPress-f>")
    hands.root.event_generate("<F1>")
    hands.until(lambda: hands.root.focus_get() in hands.root.winfo_children()[1:], "the window of the keys")
    keys = hands.root.focus_get()
    keys.event_generate("<KeyRelease-f>")
    keys.event_generate("<Escape>")
    hands.until(lambda: not keys.winfo_exists() and hands.page.view._flickering is None)
    assert [left.path, right.path] == paths


@pytest.mark.parametrize("how", ["click", "key"])
def test_what_is_picked_while_images_are_in_each_others_places_is_the_image_that_is_seen_there(
    sit_down, tmp_path, how
):
    hands = sit_down()
    hands.begin(CurationMode.ELO)
    view = hands.page.view.views[0]
    hands.root.event_generate("<KeyPress-f>")
    hands.root.update()
    seen = view.path.name
    if how == "click":
        view.event_generate("<ButtonPress-1>", x=60, y=60)
        view.event_generate("<ButtonRelease-1>", x=60, y=60)
    else:
        hands.root.event_generate("<Left>")
    hands.root.event_generate("<KeyRelease-f>")
    hands.settle()
    assert logged(tmp_path)[0]["best"] == seen


def test_in_four_up_a_click_marks_the_image_that_is_seen(sit_down, tmp_path):
    hands = sit_down(groups=1, per_group=5)
    hands.begin(CurationMode.FOUR_UP)
    view = hands.page.view.views
    names = []
    hands.root.event_generate("<KeyPress-f>")
    hands.root.update()
    for place in (1, 2):
        names.append(view[place].path.name)
        view[place].event_generate("<ButtonPress-1>", x=60, y=60)
        view[place].event_generate("<ButtonRelease-1>", x=60, y=60)
    hands.root.event_generate("<KeyRelease-f>")
    hands.settle()
    event = logged(tmp_path)[0]
    assert [event["best"], event["worst"]] == names


def test_in_four_up_the_first_key_is_the_best_and_the_second_the_worst(sit_down, tmp_path):
    hands = sit_down(groups=1, per_group=5)
    hands.begin(CurationMode.FOUR_UP)
    names = [hands.name(i) for i in hands.question]
    hands.press("3")
    assert logged(tmp_path) == []
    hands.press("3", "2", "4")
    event = logged(tmp_path)[0]
    assert (event["best"], event["worst"]) == (names[1], names[3])
    names = [hands.name(i) for i in hands.question]
    hands.press("1", "Return")
    event = logged(tmp_path)[1]
    assert (event["best"], event["worst"]) == (names[0], None)


def test_select_by_mouse(sit_down, tmp_path):
    hands = sit_down(groups=1, per_group=4)
    hands.begin(CurationMode.SELECT)
    grid = hands.page.view.grid_of_images
    names = [hands.name(i) for i in hands.question]
    middle, second = grid.cell // 2, grid.cell + grid.cell // 2
    for button, x in ((1, second), (3, middle)):
        grid.canvas.event_generate(f"<ButtonPress-{button}>", x=x, y=middle)
        grid.canvas.event_generate(f"<ButtonRelease-{button}>", x=x, y=middle)
    hands.settle()
    (pair,) = load_manifest(tmp_path / "pairs")["pairs"]
    ends = [Path(pair["sources"][side]).name for side in ("chosen", "rejected")]
    assert ends == [names[1], names[0]]


def test_triage_passes_over_what_is_neither(sit_down, tmp_path):
    hands = sit_down(groups=1, per_group=4)
    hands.begin(CurationMode.TRIAGE)
    neither = hands.name(hands.question[0])
    hands.press("Down", "Right", "Left", "g")
    (pair,) = load_manifest(tmp_path / "pairs")["pairs"]
    assert neither not in {Path(path).name for path in pair["sources"].values()}
    assert hands.phase == "continue"
    hands.press("z", state=CONTROL)
    assert load_manifest(tmp_path / "pairs")["pairs"] == []
    assert hands.phase == "question"


def test_a_ranking_is_put_in_order_and_exported_in_one_go(sit_down, tmp_path):
    hands = sit_down(groups=1, per_group=6)
    hands.begin(CurationMode.ELO)
    hands.press("Left", "r")
    view = hands.page.view
    order = list(view.order)
    hands.press("Right", state=SHIFT)
    assert view.order == [order[1], order[0], *order[2:]]
    view.move(0, 1)
    hands.press("plus", "plus", "plus")
    assert view.count == 3
    hands.press("minus", "Return")
    pairs = load_manifest(tmp_path / "pairs")["pairs"]
    made = [tuple(Path(p["sources"][side]).name for side in ("chosen", "rejected")) for p in pairs]
    assert made == [
        (hands.name(order[0]), hands.name(order[5])),
        (hands.name(order[1]), hands.name(order[4])),
    ]


def test_escape_leaves_the_ranking_without_a_pair(sit_down, tmp_path):
    hands = sit_down(groups=1, per_group=6)
    hands.begin(CurationMode.ELO)
    hands.press("r", "Escape", "Left")
    assert [event["kind"] for event in logged(tmp_path)] == ["answer"]


def test_a_pair_of_a_ranking_is_taken_back_by_undo_and_never_by_escape(sit_down, tmp_path):
    hands = sit_down(groups=1, per_group=6)
    hands.begin(CurationMode.ELO)
    hands.press("Left", "r", "Return")
    assert hands.phase == "continue"
    hands.press("Escape", "Escape", "Escape")
    assert len(load_manifest(tmp_path / "pairs")["pairs"]) == 1
    assert hands.phase == "continue", "there is no view to leave"
    hands.press("z", state=CONTROL)
    assert load_manifest(tmp_path / "pairs")["pairs"] == []
    assert hands.phase == "question"


@pytest.mark.parametrize("mode", [CurationMode.ELO, CurationMode.SMART], ids=lambda mode: mode.value)
def test_a_pair_of_images_nobody_has_compared_is_not_saved(sit_down, tmp_path, mode):
    hands = sit_down(groups=1, per_group=4)
    hands.begin(mode)
    hands.press("p")
    assert load_manifest(tmp_path / "pairs")["pairs"] == []
    assert hands.failures == []
    assert "No image has been preferred to another one yet" in str(hands.page.count_label.cget("text"))
    shown = {hands.name(i) for i in hands.question}
    hands.press("Left", "p")
    (pair,) = load_manifest(tmp_path / "pairs")["pairs"]
    assert {Path(path).name for path in pair["sources"].values()} == shown


def test_an_image_that_was_deleted_leaves_its_prompt_and_the_session_goes_on(sit_down, tmp_path):
    hands = sit_down(groups=1, per_group=5)
    hands.begin(CurationMode.SMART, certainty=70.0)
    best = "g000_i04.png"
    (tmp_path / "images" / best).unlink()
    notes = []
    for _ in range(60):
        if hands.phase != "question":
            break
        answer_as_liked(hands)
        notes.append(str(hands.page.count_label.cget("text")))
    assert hands.failures == []
    assert f"No pair was saved: {best} was deleted, replaced or damaged." in notes
    (pair,) = load_manifest(tmp_path / "pairs")["pairs"]
    assert best not in {Path(path).name for path in pair["sources"].values()}


@pytest.mark.slow
def test_images_that_look_equal_end_by_themselves(sit_down, tmp_path):
    hands = sit_down(groups=2, per_group=4)
    hands.begin(CurationMode.SMART)
    first = hands.shot.group.key
    ties = 0
    while hands.shot.group.key == first and ties < 60:
        hands.press("Up")
        ties += 1
    assert 18 <= ties <= 40
    assert "These look equal: no pair was saved." in str(hands.page.count_label.cget("text"))
    hands.press("Left")
    assert "without a pair 1" in str(hands.page.count_label.cget("text"))
    hands.press("BackSpace", "BackSpace")
    assert hands.shot.group.key == first
    assert load_manifest(tmp_path / "pairs")["pairs"] == []


def test_prompts_passed_over_are_counted_listed_and_opened_again(sit_down):
    hands = sit_down(groups=4, per_group=4)
    hands.begin(CurationMode.ELO)
    passed = hands.shot.group.prompt
    hands.press("n", "Left", "p", "n", "n", "n")
    assert hands.phase == "finished"
    said = str(hands.page.message.cget("text"))
    assert "All 4 prompts are done: 1 pair." in said
    assert "3 prompts ended without a pair" in said
    hands.press("e")
    page = hands.tool.page
    hands.until(lambda: page.passed)
    rows = page.passed.list.get(0, "end")
    assert len(rows) == 3
    (row,) = (i for i, text in enumerate(rows) if text.startswith(passed + " "))
    hands.focus(page.passed.list)
    hands.press(*["Down"] * row)
    hands.press("Return")
    hands.until(lambda: hands.phase == "question")
    assert hands.shot.group.prompt == passed
    hands.press("Left", "p", "n")
    assert hands.phase == "finished"
    assert (hands.shot.counts.paired, hands.shot.counts.passed) == (2, 2)


def test_a_finished_prompt_with_new_images_comes_again_and_says_why(sit_down, tmp_path, root):
    hands = sit_down(groups=2, per_group=4)
    hands.begin(CurationMode.ELO, ask_to_continue=False)
    hands.press("Left", "p", "Left", "p")
    assert hands.phase == "finished"
    hands.close()
    make_images(tmp_path / "more", 1, 4, 56)
    for number in range(2):
        source = tmp_path / "more" / f"g000_i{number:02d}.png"
        source.rename(tmp_path / "images" / f"g000_i{10 + number}.png")
    again = Hands(root, tmp_path / "images", tmp_path / "pairs", tmp_path / "settings")
    again.begin(CurationMode.ELO, ask_to_continue=False)
    assert again.shot.group.prompt == "a fox number 0 in the snow"
    assert "shown again: 2 images added since it was finished" in again.page.prompt_box.get("1.0", "end")
    again.press("Left", "p")
    assert (again.phase, again.shot.counts.paired) == ("finished", 3)
    again.close()


def test_the_count_of_files_left_out_stays_after_a_review(sit_down, tmp_path):
    hands = sit_down(groups=2, per_group=4)
    for group in range(2):
        copy = (tmp_path / "images" / f"g00{group}_i00.png").read_bytes()
        (tmp_path / "images" / f"g00{group}_j00.png").write_bytes(copy)
    hands.begin(CurationMode.ELO, ask_to_continue=False)
    hands.press("Left", "p", "Left", "p")
    assert (hands.phase, hands.shot.search.faults) == ("finished", 2)
    hands.tool.show_review(tmp_path / "pairs")
    hands.settle()
    hands.press("Escape")
    hands.until(lambda: isinstance(hands.tool.page, ChoosingPage))
    hands.settle()
    assert (hands.phase, hands.shot.search.faults) == ("finished", 2)


def test_an_answer_counts_only_when_the_images_are_on_the_screen(sit_down, tmp_path):
    hands = sit_down()
    hands.begin(CurationMode.ELO)
    hands.page.view.views[0].forget()
    hands.root.event_generate("<KeyPress-Left>")
    hands.root.update()
    hands.page.view.draw()
    hands.press("Right")
    assert len(logged(tmp_path)) == 1


def test_closing_and_continuing_where_it_stopped(sit_down, tmp_path, root):
    hands = sit_down(groups=3, per_group=4)
    hands.begin(CurationMode.ELO)
    hands.press("Left", "p", "n", "Right")
    key, events = hands.shot.group.key, hands.shot.state.events
    hands.close()
    again = Hands(root, tmp_path / "images", tmp_path / "pairs", tmp_path / "settings")
    again.tool.show_start()
    again.until(lambda: str(again.start_page.go.cget("text")) == "Continue choosing")
    assert "Continues where you stopped: 1 pair so far." in str(again.start_page.found.cget("text"))
    again.begin(CurationMode.ELO)
    again.press("t")
    for _ in range(3):
        if again.shot.group.key == key:
            break
        again.press("n")
    assert (again.shot.group.key, again.shot.state.events) == (key, events)
    assert again.shot.counts.paired == 1
    again.close()


def test_undo_reaches_into_an_earlier_session_and_into_other_folders(sit_down, tmp_path, root):
    hands = sit_down(groups=1, per_group=4)
    hands.begin(CurationMode.ELO, ask_to_continue=False)
    hands.press("Left", "p")
    assert hands.phase == "finished"
    hands.close()
    other = make_images(tmp_path / "others", 1, 4, 32)
    again = Hands(root, other, tmp_path / "pairs", tmp_path / "settings")
    again.tool.memory.source = str(other)
    for path in other.iterdir():
        data = path.read_bytes().replace(b"a fox", b"a cat")
        path.write_bytes(data)
    again.begin(CurationMode.ELO)
    assert again.shot.counts.paired == 1
    again.press("BackSpace")
    assert again.shot.counts.paired == 0
    assert "not in the image folder" in str(again.page.count_label.cget("text"))
    again.close()
    back = Hands(root, tmp_path / "images", tmp_path / "pairs", tmp_path / "settings")
    back.tool.memory.source = str(tmp_path / "images")
    back.begin(CurationMode.ELO)
    assert (back.phase, back.shot.state.events) == ("question", 1)
    back.press("BackSpace")
    assert back.shot.state.events == 0
    back.close()


def test_a_folder_that_is_open_elsewhere_is_refused_on_the_start_page(sit_down, tmp_path):
    from modules.curation.store import CurationStore

    hands = sit_down()
    with CurationStore(tmp_path / "pairs"):
        hands.begin(CurationMode.ELO)
        hands.until(lambda: hands.failures)
    assert "open in another window" in str(hands.failures[0])
    assert hasattr(hands.tool.page, "go")


def test_a_folder_with_nothing_to_compare_says_so(sit_down):
    hands = sit_down(groups=3, per_group=1)
    hands.begin(CurationMode.SMART)
    assert "nothing to compare" in str(hands.page.message.cget("text"))
    hands.press("Return")
    assert isinstance(hands.tool.page, ExportPage)


@pytest.mark.slow
def test_all_keys_are_listed(sit_down):
    hands = sit_down()
    hands.begin(CurationMode.ELO)
    hands.press("F1")
    (window,) = [w for w in hands.page.winfo_toplevel().winfo_children() if isinstance(w, tk.Toplevel)]
    words = [str(w.cget("text")) for body in window.winfo_children() for w in body.winfo_children()]
    assert {"Left is better", "Undo", "Ctrl+Z, BackSpace", "F, held"} <= set(words)
    window.destroy()


def test_keys_with_alt_are_left_to_the_window_manager(sit_down, tmp_path):
    hands = sit_down()
    hands.begin(CurationMode.ELO)
    hands.press("Left", "b", state=0x8)
    assert logged(tmp_path) == []


def test_a_window_that_cannot_save_at_the_end_says_so_and_closes_at_the_second_try(sit_down, monkeypatch):
    hands = sit_down()
    hands.begin(CurationMode.ELO)
    store = hands.tool.controller._store
    real = store.close

    def full_disk() -> None:
        real()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "close", full_disk)
    hands.tool.close()
    hands.until(lambda: hands.failures, "the error")
    assert "No space left" in str(hands.failures[0])
    assert not hands.closed
    hands.close()


def test_after_a_failed_pick_the_window_shows_the_question_that_is_answered_next(sit_down, tmp_path):
    hands = sit_down(groups=1)
    hands.begin(CurationMode.SMART, ask_to_continue=False)
    source = Path(hands.tool.memory.source)
    away = source.rename(tmp_path / "away")
    while not hands.failures:
        answer_as_liked(hands)
    assert "is missing" in str(hands.failures[0])
    asked = hands.tool.controller._walk.state().question
    assert hands.page.view.question == asked
    away.rename(source)
    hands.failures.clear()
    hands.settle()
    answer_as_liked(hands)
    assert len(hands.tool.controller._store.pairs()) == 1
