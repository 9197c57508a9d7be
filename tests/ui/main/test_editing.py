"""Fields, faults, undo, search and resets by keys and clicks."""

from __future__ import annotations

import tkinter as tk
from tkinter import ttk

import pytest

from tests.ui.main.conftest import OpenWindow
from tests.ui.main.drivers import Hands

pytestmark = pytest.mark.gui


def test_typing_sets_the_value_and_marks_the_field(hands: Hands) -> None:
    row = hands.fill("learning_rate", "3e-5")
    assert hands.window.state_.config.learning_rate == 3e-5
    assert row._mark is not None and row._mark.winfo_viewable()
    assert hands.window.title().startswith("untitled *")


@pytest.mark.usefixtures("settles_at_once")
def test_a_bad_text_is_refused_at_the_field_in_the_list_and_in_the_sidebar(hands: Hands) -> None:
    row = hands.fill("batch_size", "many")
    assert row.input.focus_widget.instate(["invalid"])  # type: ignore[attr-defined]
    assert row._fault is not None and row._fault.winfo_viewable()
    assert "whole number" in str(row._fault.cget("text"))
    hands.wait(lambda: hands.window.bottom_bar.problems.cget("text").startswith("1 error"))
    assert hands.window.side_bar.buttons["training"].cget("text") == "Training  (1)"
    hands.window.show_page("project")
    hands.keys("<F4>", to=hands.window)
    tree = hands.window.problems.tree
    assert tree.item("0", "values")[0] == "Batch size"
    hands.focus(tree)
    hands.keys("<Return>")
    assert hands.window.page == "training"
    hands.expect_focus(row.input.focus_widget)
    hands.fill("batch_size", "8")
    assert hands.window.state_.config.batch_size == 8
    assert not row._fault.winfo_viewable()
    problems = hands.window.bottom_bar.problems
    hands.wait(lambda: problems.cget("text") == "No problems")


def test_a_start_with_problems_is_refused_with_their_list(hands: Hands) -> None:
    hands.fill("epochs", "-1")
    hands.keys("<F5>")
    assert hands.window.problems.winfo_viewable()
    hands.expect_status("Training cannot start: Epochs: must be at least 1, not -1")
    assert hands.window.control.run is None


def test_undo_and_redo_by_keys(hands: Hands) -> None:
    row = hands.fill("epochs", "77")
    hands.keys("<Control-z>")
    assert hands.window.state_.config.epochs == 10
    assert row.input.focus_widget.get() == "10"  # type: ignore[attr-defined]
    hands.keys("<Control-y>")
    assert hands.window.state_.config.epochs == 77
    assert row.input.focus_widget.get() == "77"  # type: ignore[attr-defined]


@pytest.mark.slow
def test_redo_by_key_pastes_nothing(hands: Hands) -> None:
    hands.window.clipboard_clear()
    hands.window.clipboard_append("from the clipboard")
    row = hands.fill("epochs", "77")
    hands.keys("<Control-z>")
    hands.keys("<Control-y>")
    assert row.input.focus_widget.get() == "77"  # type: ignore[attr-defined]
    hands.keys("<Control-slash>", "<Control-v>")
    assert row.input.focus_widget.get() == "from the clipboard"  # type: ignore[attr-defined]


def test_reset_by_key_and_by_a_click_on_the_mark(hands: Hands) -> None:
    row = hands.fill("epochs", "77")
    hands.keys("<Control-r>")
    assert hands.window.state_.is_default("epochs")
    hands.fill("epochs", "78")
    assert row._mark is not None
    hands.click(row._mark)
    assert hands.window.state_.is_default("epochs")
    assert not row._mark.winfo_viewable()


def test_a_switch_by_space_and_by_click_shows_what_depends_on_it(hands: Hands) -> None:
    switch = hands.row("rlhf_enabled").input.focus_widget
    page = hands.window.current_page()
    assert not page.form.rows["rlhf_dpo_beta"].shown  # type: ignore[attr-defined]
    hands.focus(switch)
    hands.keys("<space>")
    assert hands.window.state_.config.rlhf_enabled
    assert hands.row("rlhf_dpo_beta").label.winfo_viewable()
    hands.click(switch, x=8)
    assert not hands.window.state_.config.rlhf_enabled


def test_a_choice_by_keys(hands: Hands) -> None:
    combo = hands.row("optimizer.optimizer").input.focus_widget
    hands.focus(combo)
    hands.keys("<Down>")
    popdown = combo.tk.call("ttk::combobox::PopdownWindow", str(combo))
    hands.wait(lambda: combo.tk.call("winfo", "viewable", popdown), "the list does not open")
    combo.tk.call("event", "generate", f"{popdown}.f.l", "<Down>")
    combo.tk.call("event", "generate", f"{popdown}.f.l", "<Return>")
    hands.rest()
    assert hands.window.state_.config.optimizer.optimizer.value == "ADAM"


def test_the_wheel_scrolls_and_never_changes_a_choice(hands: Hands) -> None:
    combo = hands.row("optimizer.optimizer").input.focus_widget
    page = hands.window.current_page()
    before = page.scroll.canvas.canvasy(0)  # type: ignore[attr-defined]
    value = combo.get()  # type: ignore[attr-defined]
    for _ in range(3):
        combo.event_generate("<Button-5>", x=5, y=5)
    hands.rest()
    assert combo.get() == value  # type: ignore[attr-defined]
    assert page.scroll.canvas.canvasy(0) > before  # type: ignore[attr-defined]


@pytest.mark.slow
def test_the_learning_rate_is_the_one_of_the_run(hands: Hands) -> None:
    hands.keys("<Control-f>", to=hands.window)
    hands.wait(lambda: hands.window.focus_get() is hands.window.top_bar.search.entry)
    hands.type("learning rate")
    found = [hands.window.top_bar.search.list.get(n) for n in range(30)]
    unseen = ["(not shown now)" in text for text in found if text]
    assert unseen == sorted(unseen)
    hands.keys("<Return>")
    hands.expect_focus(hands.row("learning_rate").input.focus_widget)


def test_search_jumps_to_the_field(hands: Hands) -> None:
    hands.window.state_.set_value("rlhf_enabled", True)
    hands.keys("<Control-f>", to=hands.window)
    hands.wait(lambda: hands.window.focus_get() is hands.window.top_bar.search.entry)
    hands.type("beta")
    assert hands.window.top_bar.search.list.winfo_viewable()
    assert hands.window.top_bar.search.found[0].path == "rlhf_dpo_beta"
    hands.keys("<Return>")
    assert hands.window.page == "rlhf"
    row = hands.row("rlhf_dpo_beta")
    hands.expect_focus(row.input.focus_widget)
    assert not hands.window.top_bar.search.list.winfo_viewable()


@pytest.mark.slow
def test_what_is_found_can_be_read_to_its_end(hands: Hands) -> None:
    hands.keys("<Control-f>", to=hands.window)
    hands.wait(lambda: hands.window.focus_get() is hands.window.top_bar.search.entry)
    hands.type("learning rate")
    found = hands.window.top_bar.search.list
    hands.wait(found.winfo_viewable)
    assert any("(not shown now)" in line for line in found.get(0, "end"))
    assert found.xview() == (0.0, 1.0)


def test_search_tells_what_shows_a_hidden_field(hands: Hands) -> None:
    hands.window.jump("rlhf_dpo_beta")
    assert hands.window.page == "rlhf"
    hands.expect_status("Beta is shown when Preference training is on and Mode is DPO and Objective is not IPO.")


def test_escape_closes_the_search(hands: Hands) -> None:
    hands.keys("<Control-f>", to=hands.window)
    hands.type("rate")
    hands.keys("<Down>", "<Escape>")
    assert not hands.window.top_bar.search.list.winfo_viewable()
    assert hands.window.top_bar.search.entry.get() == ""


def test_pages_by_keys(hands: Hands) -> None:
    home, *others = hands.window.pages
    numbered = [page for page in others if not page.key_name]
    for number, page in enumerate(numbered[:10], 1):
        hands.keys(f"<Control-Key-{number % 10}>", to=hands.window)
        assert hands.window.page == page.key
    hands.window.show_page(others[-1].key)
    hands.keys("<Control-Tab>", to=hands.window)
    assert hands.window.page == home.key == "home"
    hands.window.show_page("rlhf")
    hands.keys("<Alt-Home>", to=hands.window)
    assert hands.window.page == "home"
    hands.keys("<Alt-End>", to=hands.window)
    assert hands.window.page == "remote"


def test_tab_reaches_every_field_of_a_page_and_the_focus_is_in_sight(hands: Hands) -> None:
    hands.window.show_page("training")
    hands.rest()
    page = hands.window.current_page()
    page.show_more(True)  # type: ignore[attr-defined]
    hands.rest()
    wanted = {str(row.input.focus_widget) for row in page.form.rows.values() if row.shown}  # type: ignore[attr-defined]
    hands.focus(page.form.rows["epochs"].input.focus_widget)  # type: ignore[attr-defined]
    canvas = page.scroll.canvas  # type: ignore[attr-defined]
    reached: set[str] = set()
    for _ in range(150):
        widget = hands.window.focus_get()
        assert isinstance(widget, tk.Misc)
        if str(widget) in wanted:
            reached.add(str(widget))
            top = widget.winfo_rooty() - canvas.winfo_rooty()
            assert 0 <= top <= canvas.winfo_height() - widget.winfo_height()
        hands.keys("<Tab>")
    assert reached == wanted


@pytest.mark.slow
def test_tab_stops_at_no_label(hands: Hands) -> None:
    hands.focus(hands.row("epochs").input.focus_widget)
    first = hands.window.focus_get()
    stops: list[str] = []
    while True:
        hands.keys("<Tab>")
        widget = hands.window.focus_get()
        assert widget is not None
        if widget is first:
            break
        stops.append(widget.winfo_class())
    assert {"TEntry", "TCombobox", "TButton"} <= set(stops)
    assert not {"TLabel", "TFrame"} & set(stops), "the focus is nowhere to be seen, and typing does nothing"


@pytest.mark.slow
def test_the_focus_moves_the_page_only_as_far_as_needed(hands: Hands) -> None:
    hands.window.show_page("training")
    hands.rest(0.2)
    page = hands.window.current_page()
    page.show_more(True)  # type: ignore[attr-defined]
    hands.rest(0.2)
    rows = page.form.rows  # type: ignore[attr-defined]
    hands.focus(rows["batch_size"].input.focus_widget)
    assert page.scroll.canvas.canvasy(0) == 0  # type: ignore[attr-defined]
    hands.focus(rows["validate_after"].input.focus_widget)
    assert page.scroll.canvas.canvasy(0) > 0  # type: ignore[attr-defined]
    hands.focus(rows["epochs"].input.focus_widget)
    assert rows["epochs"].input.focus_widget.winfo_rooty() > page.scroll.canvas.winfo_rooty()  # type: ignore[attr-defined]


def test_every_setting_has_a_row_on_some_page(open_window: OpenWindow) -> None:
    hands = open_window()
    rows: set[str] = set()
    for page in hands.window.pages:
        hands.window.show_page(page.key)
        hands.rest()
        form = getattr(hands.window.current_page(), "form", None)
        rows |= set(form.rows) if form is not None else set()
    wanted = {path for path, s in hands.window.state_.settings.items() if not s.hidden and s.kind != "table"}
    assert rows == wanted


def test_the_tip_of_the_field_in_focus_is_told(hands: Hands) -> None:
    row = hands.row("lora_rank")
    hands.focus(row.input.focus_widget)
    assert row.setting.tip in hands.status()


def test_real_keystrokes_from_outside(hands: Hands) -> None:
    import shutil
    import subprocess

    if shutil.which("xdotool") is None:
        pytest.skip("there is no xdotool")
    row = hands.row("epochs")
    hands.focus(row.input.focus_widget)
    subprocess.run(["xdotool", "key", "ctrl+slash", "Delete", "4", "2"], check=True, timeout=20)
    hands.wait(lambda: hands.window.state_.config.epochs == 42, "the keys do not arrive")
    subprocess.run(["xdotool", "key", "ctrl+z"], check=True, timeout=20)
    hands.wait(lambda: hands.window.state_.config.epochs == 10)
    assert isinstance(row.input.focus_widget, ttk.Entry)


def test_an_empty_optional_field_says_what_that_means(hands: Hands) -> None:
    entry = hands.row("optimizer.weight_decay").input.focus_widget
    hint = entry.winfo_children()[0]
    assert hint.winfo_viewable()
    hands.click(hint)
    hands.expect_focus(entry)
    hands.type("0.1")
    assert not hint.winfo_viewable()
    assert hands.window.state_.value("optimizer.weight_decay") == 0.1
    hands.keys("<Control-slash>", "<Delete>")
    assert hint.winfo_viewable()
    assert hands.window.state_.value("optimizer.weight_decay") is None


def test_what_contradicts_another_field_is_told_at_the_field(hands: Hands) -> None:
    row = hands.row("min_noising_strength")
    hands.fill("min_noising_strength", "0.9")
    hands.fill("max_noising_strength", "0.5")
    hands.wait(lambda: row._fault is not None and row._fault.winfo_viewable(), "the rule is not told")
    assert row._fault is not None and "not below" in str(row._fault.cget("text"))
    assert row.input.focus_widget.instate(["invalid"])  # type: ignore[attr-defined]
    hands.fill("max_noising_strength", "1")
    hands.wait(lambda: not row._fault.winfo_viewable(), "the fault stays")  # type: ignore[union-attr]
    hands.window.state_.set_values({"rlhf_enabled": True, "rlhf_dpo_beta": 0.0}, "no anchor")
    beta = hands.row("rlhf_dpo_beta")
    hands.wait(lambda: beta._fault is not None and beta._fault.winfo_viewable(), "the warning is not told")
    assert not beta.input.focus_widget.instate(["invalid"])  # type: ignore[attr-defined]


def test_a_click_on_a_long_path_leads_into_its_field(hands: Hands) -> None:
    row = hands.row("workspace_dir")
    hands.window.state_.set_value("workspace_dir", "/a/path/that/is/longer/than/its/field/" * 4)
    entry = row.input.focus_widget
    hands.focus(hands.row("seed").input.focus_widget)
    (cover,) = (child for child in entry.winfo_children() if child.winfo_viewable())
    hands.click(cover)
    hands.expect_focus(entry)
    hands.wait(lambda: not cover.winfo_viewable(), "the text stays covered")
