"""The first and the last page."""

from __future__ import annotations

import json
import time
import tkinter as tk
from pathlib import Path

import pytest
from PIL import Image, PngImagePlugin

from modules.curation.CurationMode import CurationMode
from modules.ui.curation.DPOCurationWindow import DPOCurationWindow
from modules.ui.curation.ExportPage import ExportPage
from modules.ui.curation.PairToolMemory import FILE_NAME, PairToolMemory
from modules.ui.curation.StartPage import StartPage
from modules.ui.curation.windows import make_window
from modules.ui.state.SessionStore import SessionStore
from modules.ui.texts import export as export_words
from modules.ui.texts import start as words
from modules.ui.widgets.tk_support import ErrorDialog
from modules.util.dpo_curation_util import load_manifest, save_manifest
from modules.util.errors import UserError
from tests.ui.curation.drivers import Hands, make_images
from tests.usual import usual

pytestmark = pytest.mark.gui


@pytest.mark.parametrize(
    ("field", "text", "message"),
    [
        ("pairs_per_group", "0", "'0' is not a whole number from 1 to 1000"),
        pytest.param("pairs_per_group", "two", "'two' is not a whole number", marks=pytest.mark.slow),
        ("threshold", "50", "'50' is not a number from 50.1 to 99.99"),
        ("near_duplicates", "2.5", "'2.5' is not a whole number"),
        ("source", "no/such/folder", "no/such/folder does not exist"),
    ],
)
def test_a_wrong_value_is_refused_at_its_field(sit_down, tmp_path, field, text, message):
    hands = sit_down()
    hands.open_start()
    page = hands.start_page
    hands.type(page.entries[field], text)
    hands.press("Return")
    assert hands.start_page is page, "the session must not start"
    assert message in str(page.errors[field].cget("text"))
    assert "invalid" in page.entries[field].state()
    assert not (tmp_path / "pairs").exists()


def test_images_inside_the_output_folder_are_refused(sit_down, tmp_path):
    hands = sit_down()
    make_images(tmp_path / "pairs" / "new", 1, 2)
    hands.tool.memory.source = str(tmp_path / "pairs" / "new")
    hands.open_start()
    hands.start_page.go.invoke()
    assert "inside the output folder" in str(hands.start_page.errors["source"].cget("text"))


def test_without_an_output_folder_one_beside_the_images_is_offered(sit_down, tmp_path):
    hands = sit_down()
    hands.tool.memory.output = ""
    hands.open_start()
    hands.until(lambda: hands.start_page.output.get() == str(tmp_path / "images-pairs"))


def test_the_folder_for_pairs_follows_the_images_until_it_is_edited(sit_down, tmp_path):
    hands = sit_down()
    hands.tool.memory.source = hands.tool.memory.output = ""
    hands.open_start()
    page = hands.start_page
    wrong, right = make_images(tmp_path / "images" / "wrong", 1, 2), tmp_path / "images"
    hands.type(page.entries["source"], str(wrong))
    assert page.output.get() == f"{wrong}-pairs"
    hands.type(page.entries["source"], str(right))
    assert page.output.get() == f"{right}-pairs"
    hands.type(page.entries["output"], str(tmp_path / "mine"))
    hands.type(page.entries["source"], str(wrong))
    assert page.output.get() == str(tmp_path / "mine")


def test_earlier_pairs_are_found_in_a_folder_below_that_of_the_user(sit_down, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    output = tmp_path / "earlier"
    output.mkdir()
    save_manifest(output, {"pairs": []})
    hands = sit_down()
    hands.open_start()
    page = hands.start_page
    hands.type(page.entries["output"], "~/earlier")
    hands.until(lambda: str(page.go.cget("text")) == words.CONTINUE)
    assert "0 pairs" in str(page.found.cget("text"))


def test_ways_of_choosing_are_picked_by_arrow_keys(sit_down):
    hands = sit_down()
    hands.open_start()
    page = hands.start_page
    hands.focus(page.mode_buttons[CurationMode.SMART])
    hands.press("Down", "Down")
    assert page.mode is CurationMode.FOUR_UP
    hands.press("Down")
    assert page.mode is CurationMode.SELECT
    assert "disabled" in page.entries["threshold"].state()
    hands.press("Up")
    assert "disabled" not in page.entries["threshold"].state()


def test_tab_alone_reaches_every_field_and_the_button(sit_down):
    hands = sit_down()
    hands.open_start()
    page = hands.start_page
    start = page.entries["source"]
    hands.focus(start)
    reached = {start}
    for _ in range(40):
        hands.press("Tab")
        reached.add(hands.root.focus_get())
    assert {page.go, *page.entries.values(), *page.mode_buttons.values()} <= reached


def test_the_form_is_remembered(sit_down, tmp_path, root):
    hands = sit_down()
    hands.begin(CurationMode.TRIAGE, pairs_per_group=3, near_duplicates=-1, blind=True)
    hands.close()
    memory = PairToolMemory.load(tmp_path / "settings")
    assert (memory.mode, memory.pairs_per_group, memory.near_duplicates, memory.blind) == (
        "TRIAGE",
        3,
        -1,
        True,
    )
    assert memory.recent == [[str(tmp_path / "images"), str(tmp_path / "pairs")]]
    again = Hands(root, Path("elsewhere"), Path("other"), tmp_path / "settings")
    again.open_start()
    page = again.start_page
    assert (page.mode, page.pairs.get(), page.merge.get()) == (CurationMode.TRIAGE, "3", False)
    page._take_recent(0)
    assert (page.source.get(), page.output.get()) == (str(tmp_path / "images"), str(tmp_path / "pairs"))
    again.close()


def test_two_pair_tools_keep_the_folders_that_the_other_opened(tmp_path):
    first, second = PairToolMemory.load(tmp_path), PairToolMemory.load(tmp_path)
    for memory, name in ((first, "first"), (second, "second")):
        memory.source, memory.output = name, f"{name}-pairs"
        memory.remember()
        memory.save(tmp_path)
    first.save(tmp_path)
    found = PairToolMemory.load(tmp_path)
    assert sorted(found.recent) == [["first", "first-pairs"], ["second", "second-pairs"]]


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '{"mode": "NO", "recent": [1, ["a"], [2, 3]], "certainty": "x", "blind": 1}']
)
def test_a_damaged_memory_is_like_none(tmp_path, text):
    (tmp_path / FILE_NAME).write_text(text)
    assert PairToolMemory.load(tmp_path) == PairToolMemory()


def finish_two_pairs(hands: Hands) -> ExportPage:
    hands.begin(CurationMode.ELO, ask_to_continue=False)
    hands.press("Left", "p", "Right", "p", "e")
    page = hands.tool.page
    assert isinstance(page, ExportPage)
    hands.until(lambda: "pairs from" in str(page.summary.cget("text")))
    return page


def finalise(hands: Hands, page: ExportPage, percentage: str) -> None:
    hands.type(page.entry, percentage)
    hands.press("Return")
    hands.until(lambda: page.result.cget("text") or page.error.cget("text"))


def test_finalising_is_repeatable_and_the_session_goes_on_after_it(sit_down, tmp_path):
    hands = sit_down(groups=3, per_group=4)
    page = finish_two_pairs(hands)
    assert "0 for training, 0 for validation, 2 not finalised yet" in str(page.summary.cget("text"))
    assert "2 questions: 2 answered" in str(page.answers.cget("text"))
    finalise(hands, page, "50")
    assert "1 pair for training, 1 for validation" in str(page.result.cget("text"))
    hands.until(lambda: "1 for training, 1 for validation, 0 not" in str(page.summary.cget("text")))
    hands.press("Escape")
    hands.press("Left", "p", "e")
    page = hands.tool.page
    finalise(hands, page, "0")
    assert "3 pairs for training, 0 for validation" in str(page.result.cget("text"))
    hands.close()
    assert len(list((tmp_path / "pairs" / "chosen" / "train").glob("*.png"))) == 3
    concepts = json.loads((tmp_path / "pairs" / "concepts.json").read_text())
    assert [concept["enabled"] for concept in concepts] == [True, True, False, False]


@pytest.mark.parametrize("text", usual(["many", "-1", "100.5", ""], "many", "100.5"))
def test_a_wrong_percentage_is_refused(sit_down, tmp_path, text):
    hands = sit_down()
    page = finish_two_pairs(hands)
    finalise(hands, page, text)
    assert "is not a percentage" in str(page.error.cget("text"))
    assert not (tmp_path / "pairs" / "concepts.json").exists()


def test_a_pair_that_lost_a_file_stops_finalising_with_its_name(sit_down, tmp_path):
    hands = sit_down()
    page = finish_two_pairs(hands)
    name = load_manifest(tmp_path / "pairs")["pairs"][0]["chosen_file"]
    (tmp_path / "pairs" / name).unlink()
    finalise(hands, page, "10")
    assert "pair_0000" in str(page.error.cget("text"))


FORMS = [("datasets", "train/metadata.jsonl"), ("jsonl", "train.jsonl")]


@pytest.mark.parametrize(("kind", "wanted"), usual(FORMS, FORMS[0]))
def test_other_forms_are_written_after_finalising(sit_down, tmp_path, kind, wanted):
    hands = sit_down()
    page = finish_two_pairs(hands)
    page.export(kind, tmp_path / "copy")
    hands.until(lambda: page.error.cget("text"))
    finalise(hands, page, "0")
    page.export(kind, tmp_path / "copy")
    hands.until(lambda: "2 pairs copied" in str(page.result.cget("text")))
    assert len((tmp_path / "copy" / wanted).read_text().splitlines()) == 2


def test_files_that_were_left_out_are_listed_with_their_reason(sit_down, tmp_path):
    hands = sit_down()
    (tmp_path / "images" / "empty.png").touch()
    page = finish_two_pairs(hands)
    boxes = [
        w
        for card in page._inside.winfo_children()
        for w in card.winfo_children()
        if w.winfo_class() == "Text"
    ]
    assert boxes[0].get("1.0", "end").startswith("empty.png: ")


def test_looks_are_changed_remembered_and_nothing_typed_is_lost(display, tmp_path):
    store = SessionStore(tmp_path / "settings")
    root = make_window(store, make_images(tmp_path / "images", 1, 2))
    errors: list[BaseException] = []
    root.report_callback_exception = lambda kind, error, trace: errors.append(error)
    (tool,) = (child for child in root.winfo_children() if isinstance(child, DPOCurationWindow))

    def until(done):
        end = time.monotonic() + 20
        while not done():
            assert time.monotonic() < end
            root.update()

    until(lambda: isinstance(tool.page, StartPage) and tool.page.output.get())
    before = tool.page
    tool.page.output.set(str(tmp_path / "elsewhere"))
    tool.page.set_mode(CurationMode.SELECT)
    width = tool.page.go.winfo_reqwidth()
    appearance, scale = before.look_boxes
    appearance.set("Light")
    scale.set("150 %")
    scale.event_generate("<<ComboboxSelected>>")
    until(lambda: tool.page is not before)
    assert (tool.page.output.get(), tool.page.mode) == (str(tmp_path / "elsewhere"), CurationMode.SELECT)
    assert tool.page.go.winfo_reqwidth() > 1.3 * width
    memory, _ = store.load_window()
    assert (memory.appearance, memory.scale) == ("Light", 150)
    tool.close()
    with pytest.raises(tk.TclError):
        until(lambda: not root.winfo_exists())
    assert errors == []


def test_pairs_without_a_prompt_are_told_of_while_choosing_and_after_finalising(sit_down, tmp_path):
    hands = sit_down(groups=1, per_group=2)
    for number in range(2):
        info = PngImagePlugin.PngInfo()
        info.add_text("parameters", "\nSteps: 20, Sampler: Euler, Seed: 1, Size: 48x48")
        image = Image.effect_noise((48, 48), 30 + 60 * number).convert("RGB")
        image.save(tmp_path / "images" / f"h000_i{number:02d}.png", pnginfo=info)
    hands.begin(CurationMode.ELO, ask_to_continue=False)
    shown = []
    for _ in range(2):
        shown.append(hands.page.prompt_box.get("1.0", "end").strip())
        hands.press("Left", "p")
    assert sum("no prompt: the pairs of these images get empty captions" in text for text in shown) == 1
    hands.press("e")
    page = hands.tool.page
    hands.until(lambda: "pairs from" in str(page.summary.cget("text")))
    finalise(hands, page, "0")
    assert "2 pairs for training" in str(page.result.cget("text"))
    assert "1 pair has no prompt" in str(page.warning.cget("text"))
    assert sorted(p.read_bytes() for p in (tmp_path / "pairs" / "chosen" / "train").glob("*.txt"))[0] == b""


def press_button(hands, page, text):
    """Click the button that says so with the mouse."""
    waiting = [page]
    while waiting:
        widget = waiting.pop(0)
        waiting += widget.winfo_children()
        if widget.winfo_class() == "TButton" and str(widget.cget("text")) == text:
            for event in ("<Enter>", "<ButtonPress-1>", "<ButtonRelease-1>"):
                widget.event_generate(event, x=5, y=5)
            return
    raise AssertionError(f"no button says {text}")


def test_folders_are_asked_for_in_the_window_of_the_desktop(sit_down, tmp_path, desktop):
    hands = sit_down()
    hands.open_start()
    page = hands.start_page
    photos = make_images(tmp_path / "my photos", 1, 2)
    desktop.answers(photos)
    hands.root.update()
    press_button(hands, page, words.BROWSE)
    hands.until(lambda: page.source.get() == str(photos), "the answer in the field")
    assert "--directory" in desktop.asked() and f"--title={words.IMAGES}" in desktop.asked()
    assert f"--filename={tmp_path / 'images'}/" in desktop.asked(), "it begins where the field points to"
    desktop.answers("", code=1)
    press_button(hands, page, words.BROWSE)
    assert page.source.get() == str(photos), "Cancel changes nothing"
    hands.close()
    assert PairToolMemory.load(tmp_path / "settings").folder == str(photos)


def test_the_folder_of_an_export_is_asked_for_in_the_window_of_the_desktop(sit_down, tmp_path, desktop):
    hands = sit_down(groups=2, per_group=2)
    hands.begin(CurationMode.ELO)
    hands.press("Left", "p", "e")
    page = hands.tool.page
    assert isinstance(page, ExportPage)
    hands.until(lambda: page.go.instate(["!disabled"]), "pairs")
    page.finalise()
    hands.until(lambda: "Ready to train" in str(page.result.cget("text")), "finalised pairs")
    target = tmp_path / "exported here"
    target.mkdir()
    desktop.answers(target)
    press_button(hands, page, export_words.EXPORT_JSONL)
    hands.until(lambda: list(target.iterdir()), "the export")
    hands.settle()
    assert "--directory" in desktop.asked() and str(target) in str(page.result.cget("text"))


def test_the_error_that_leads_back_to_the_start_page_has_the_focus_until_it_is_closed(sit_down, root, tmp_path):
    hands = sit_down()
    hands.open_start()
    dialog = ErrorDialog(root, UserError("the folder is open in another window"), "")
    hands.until(lambda: root.focus_get() is dialog.close_button, "the focus in the dialog")
    hands.tool.show_start()
    hands.settle()
    root.update()
    assert root.focus_get() is dialog.close_button
    hands.press("Return")
    hands.until(lambda: root.focus_get() is hands.start_page.go, "the focus on the page")
