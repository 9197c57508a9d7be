"""Concepts, samples and pairs by keys and clicks."""

from __future__ import annotations

import tkinter as tk
from pathlib import Path

import pytest
from PIL import Image

from modules.ui.items.ConceptWindow import ConceptWindow
from modules.ui.items.ItemDialog import ItemDialog
from modules.ui.pages.DataPage import DataPage
from modules.ui.pages.RlhfPage import RlhfPage
from modules.ui.pages.SamplingPage import SamplingPage
from modules.ui.texts import lists as words
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.enum.ConceptType import ConceptType
from tests.ui.main.drivers import Hands

pytestmark = pytest.mark.gui


def images(folder: Path, count: int, caption: str = "a fox") -> Path:
    folder.mkdir(parents=True)
    for index in range(count):
        Image.new("RGB", (64, 48), (index * 20, len(str(folder)), 0)).save(folder / f"pair_{index}.png")
        (folder / f"pair_{index}.txt").write_text(caption)
    return folder


def data_page(hands: Hands) -> DataPage:
    hands.window.show_page("data")
    hands.rest()
    page = hands.window.current_page()
    assert isinstance(page, DataPage)
    return page


def paths(hands: Hands) -> list[str]:
    return [Path(concept.path).name for concept in hands.window.state_.value("concepts") or []]


def test_the_list_by_keys(hands: Hands, tmp_path: Path) -> None:
    page = data_page(hands)
    page.add([images(tmp_path / name, 2) for name in "abc"])
    tree = page.table.tree
    hands.wait(lambda: tree.item("2", "values")[3] == "2", "images are not counted")
    page.table.select([0])
    hands.focus(tree)
    hands.keys("<space>")
    assert [concept.enabled for concept in hands.window.state_.value("concepts")] == [False, True, True]
    assert tree.item("0", "values")[0] == ""
    hands.keys("<Alt-Down>")
    assert paths(hands) == ["b", "a", "c"]
    assert page.table.selected() == [1]
    hands.keys("<Control-d>")
    assert paths(hands) == ["b", "a", "c", "a"]
    hands.keys("<Delete>")
    assert paths(hands) == ["b", "a", "c"]
    hands.keys("<Control-z>", "<Control-z>", "<Control-z>", "<Control-z>")
    assert paths(hands) == ["a", "b", "c"]
    assert len(tree.get_children()) == 3


def test_a_missing_folder_is_marked(hands: Hands, tmp_path: Path) -> None:
    page = data_page(hands)
    page.add([tmp_path / "none"])
    hands.wait(lambda: page.table.tree.item("0", "values")[3] == "missing")
    assert page.table.tree.item("0", "tags") == ("wrong",)


@pytest.mark.slow
def test_thousands_of_concepts_stay_usable(hands: Hands, tmp_path: Path) -> None:
    page = data_page(hands)
    hands.window.state_.set_value("concepts", [ConceptConfig(path=f"/none/{i}") for i in range(2000)])
    hands.wait(lambda: len(page.table.tree.get_children()) == 2000)
    page.table.select([1999])
    hands.focus(page.table.tree)
    hands.keys("<Delete>")
    assert len(hands.window.state_.value("concepts")) == 1999


def test_the_window_of_a_concept(hands: Hands, tmp_path: Path) -> None:
    page = data_page(hands)
    page.add([images(tmp_path / "set", 3)])
    page.table.select([0])
    hands.focus(page.table.tree)
    hands.keys("<Return>")
    window = hands.dialog()
    assert isinstance(window, ConceptWindow)
    hands.wait(lambda: window.grab_status() == "local")
    assert window.title() == "Concept set"
    hands.wait(lambda: "3 images" in str(window.stats.cget("text")))
    name = window.forms[0].rows["name"].input.focus_widget
    hands.focus(name)
    hands.keys("<Control-slash>", "<Delete>")
    hands.type("foxes")
    seed = window.forms[0].rows["seed"].input.focus_widget
    hands.focus(seed)
    hands.type("x")
    hands.keys("<Control-Return>")
    assert window.winfo_exists() and "Seed" in str(window.wrong.cget("text"))
    hands.keys("<BackSpace>", "<Control-Return>")
    assert not window.winfo_exists()
    assert hands.window.state_.value("concepts")[0].name == "foxes"
    assert page.table.tree.item("0", "values")[1] == "foxes"


def test_captions_are_counted_again_under_another_extension(hands: Hands, tmp_path: Path) -> None:
    page = data_page(hands)
    folder = images(tmp_path / "set", 3)
    for text in folder.glob("*.txt"):
        text.rename(text.with_suffix(".caption"))
    page.add([folder])
    page.table.select([0])
    hands.focus(page.table.tree)
    hands.keys("<Return>")
    window = hands.dialog()
    assert isinstance(window, ConceptWindow)
    hands.wait(lambda: "0 captions, 3 images without one" in str(window.stats.cget("text")))
    window.tabs.select(2)
    hands.focus(window.forms[2].rows["text.caption_extension"].input.focus_widget)
    hands.keys("<Control-slash>", "<Delete>")
    hands.type(".caption")
    hands.wait(lambda: "\n3 captions\n" in str(window.stats.cget("text")))
    hands.keys("<Escape>")


def test_escape_leaves_a_concept_as_it_was(hands: Hands, tmp_path: Path) -> None:
    page = data_page(hands)
    page.add([images(tmp_path / "set", 1)])
    window = page.open_concept(0)
    hands.wait(lambda: window.grab_status() == "local")
    window.source.set_value("enabled", False)
    window.event_generate("<Escape>")
    hands.rest()
    assert not window.winfo_exists()
    assert hands.window.state_.value("concepts")[0].enabled


def test_a_double_click_opens_a_concept_that_takes_the_keys(hands: Hands, tmp_path: Path) -> None:
    page = data_page(hands)
    page.add([images(tmp_path / "set", 1)])
    tree = page.table.tree
    hands.rest()
    left, top, width, height = tree.bbox("0", "1")  # type: ignore[misc]
    for _press in range(2):
        hands.click(tree, left + width // 2, top + height // 2)
    window = hands.dialog()
    hands.wait(lambda: window.grab_status() == "local")
    hands.rest(0.3)
    focus = hands.window.focus_get()
    assert focus is not None and focus.winfo_toplevel() is window


def test_augmentation_of_pairs_is_off_with_the_reason(hands: Hands, tmp_path: Path) -> None:
    page = data_page(hands)
    page.add([images(tmp_path / "set", 1)])
    window = page.open_concept(0)
    flip = window.forms[1].rows["image.enable_random_flip"].input.focus_widget
    assert flip.instate(["!disabled"])  # type: ignore[attr-defined]
    window.source.set_value("type", "DPO_CHOSEN")
    assert flip.instate(["disabled"])  # type: ignore[attr-defined]
    window.tabs.select(1)
    hands.rest()
    assert "preference pairs" in str(window._notes[0].cget("text"))
    assert window._notes[0].winfo_viewable()
    source = window.forms[2].rows["text.prompt_source"].input.focus_widget
    assert source.instate(["!disabled"])  # type: ignore[attr-defined]
    hands.wait(lambda: window.grab_status() == "local")
    hands.click(hands.button("OK", window))
    assert hands.window.state_.value("concepts")[0].type is ConceptType.DPO_CHOSEN


def test_the_preview_shows_the_images(hands: Hands, tmp_path: Path) -> None:
    page = data_page(hands)
    page.add([images(tmp_path / "set", 4)])
    window = page.open_concept(0)
    window.tabs.select(3)
    hands.wait(lambda: len(window.grid_view._photos) == 4, "the images do not appear")
    window.cancel()


def test_samples(hands: Hands) -> None:
    hands.window.show_page("sampling")
    hands.rest()
    page = hands.window.current_page()
    assert isinstance(page, SamplingPage)
    page.add()
    window = hands.dialog()
    assert isinstance(window, ItemDialog)
    hands.wait(lambda: window.grab_status() == "local")
    hands.focus(window.forms[0].rows["prompt"].input.focus_widget)
    hands.type("a red fox")
    width = window.forms[0].rows["width"].input.focus_widget
    hands.focus(width)
    hands.keys("<Control-slash>", "<Delete>")
    hands.type("500")
    hands.click(hands.button("OK", window))
    assert "multiple of 8" in str(window.wrong.cget("text"))
    hands.focus(width)
    hands.keys("<Control-slash>", "<Delete>")
    hands.type("768")
    hands.click(hands.button("OK", window))
    sample = hands.window.state_.value("samples")[0]
    assert (sample.prompt, sample.width) == ("a red fox", 768)
    assert page.table.tree.item("0", "values")[1] == "a red fox"


@pytest.mark.parametrize(
    ("path", "value", "other", "choice"),
    [
        pytest.param("rlhf_dpo_reference_cache", True, "rlhf_dpo_objective", "MAPO", marks=pytest.mark.slow),
        pytest.param("rlhf_norm_guard", 0.5, "rlhf_dpo_objective", "MAPO", marks=pytest.mark.slow),
        ("rlhf_kl_beta", 0.1, "rlhf_mode", "ONLINE_DPO"),
    ],
)
def test_a_setting_that_another_one_refuses_can_be_set_back(
    path: str, value: object, other: str, choice: str, hands: Hands
) -> None:
    state, at_first = hands.window.state_, hands.window.state_.value(path)
    hands.window.show_page("rlhf")
    page = hands.window.current_page()
    assert isinstance(page, RlhfPage)
    for name, chosen in (("rlhf_enabled", True), (path, value), (other, choice)):
        state.set_value(name, chosen)
    hands.wait(lambda: any(one.path == path and not one.warning for one in hands.window.check.problems()))
    hands.window.jump(path)
    hands.wait(lambda: page.form.rows[path].shown, "the row with the error is hidden")
    state.set_value(path, at_first)
    hands.wait(lambda: not page.form.rows[path].shown, "the row stays although nothing is wrong")


def test_preference_page_derives_and_checks(hands: Hands, tmp_path: Path) -> None:
    hands.fill("lora_model_name", "")
    hands.window.show_page("rlhf")
    hands.rest()
    page = hands.window.current_page()
    assert isinstance(page, RlhfPage)
    assert "Ordinary training" in str(page.kind.cget("text"))
    hands.window.state_.set_value("rlhf_enabled", True)
    assert "The reference is the base model" in str(page.kind.cget("text"))
    paper, usual = str(page.paper.cget("text")).splitlines()
    assert paper.endswith("beta 10000")
    assert usual.startswith("Usual for ") and "beta 2500" in usual
    hands.fill("rlhf_dpo_beta", "250")
    assert str(page.paper.cget("text")).splitlines()[0].endswith("beta 500")
    hands.window.state_.set_value("rlhf_dpo_execution_mode", "SEQUENTIAL")
    assert "One image at a time" in str(page.memory.cget("text"))
    hands.window.state_.set_value("lora_model_name", "models/mine.safetensors")
    assert "mine.safetensors" in str(page.kind.cget("text"))
    hands.window.state_.set_value("rlhf_dpo_objective", "IPO")
    assert not page.form.rows["rlhf_dpo_beta"].shown and "beta" not in str(page.paper.cget("text"))
    hands.window.state_.set_value("rlhf_dpo_objective", "MAPO")
    told = str(page.kind.cget("text"))
    assert "mine.safetensors" in told and "no reference" in told and "frozen" not in told
    assert str(page.paper.cget("text")) == "Usual for MAPO: beta 10 to 50"
    hands.window.state_.set_value("rlhf_dpo_execution_mode", "POLICY_CONCURRENT")
    assert "the reference processes" not in str(page.memory.cget("text"))
    assert not {"rlhf_dpo_reference_cache", "rlhf_dpo_anchor_weight", "rlhf_norm_guard"} & {
        path for path, row in page.form.rows.items() if row.shown
    }
    hands.window.state_.set_value("rlhf_mode", "NFT")
    assert not str(page.paper.cget("text"))
    hands.window.state_.set_value("rlhf_mode", "DPO")
    page.check()
    hands.expect_dialog("no concepts with chosen and rejected")
    folders = images(tmp_path / "chosen", 3), images(tmp_path / "rejected", 3, "a hen")
    kinds = (ConceptType.DPO_CHOSEN, ConceptType.DPO_REJECTED)
    hands.window.state_.set_value(
        "concepts", [ConceptConfig(path=str(f), type=k) for f, k in zip(folders, kinds, strict=True)]
    )
    hands.click(page.pair_buttons["Check pairs"])
    hands.wait(lambda: "Check pairs: " in hands.status())
    window = hands.dialog()
    text = window.body.winfo_children()[1].get("1.0", "end")  # type: ignore[attr-defined]
    assert "different captions" in text
    window.event_generate("<Escape>")
    hands.rest()
    page.buckets()
    hands.wait(lambda: "Bucket analysis: done" in hands.status())
    window = hands.dialog()
    assert "3 training pairs" in window.body.winfo_children()[1].get("1.0", "end")  # type: ignore[attr-defined]
    window.event_generate("<Escape>")


def test_the_pair_tool_opens_from_the_page(hands: Hands) -> None:
    hands.window.show_page("rlhf")
    hands.rest()
    page = hands.window.current_page()
    assert isinstance(page, RlhfPage)
    hands.click(page.pair_buttons["Open pair tool"])
    window = hands.dialog()
    assert window.title()
    window.tk.call(window.protocol("WM_DELETE_WINDOW"))
    hands.wait(lambda: not window.winfo_exists(), "it does not close")


@pytest.mark.slow
@pytest.mark.parametrize("key", ["<Return>", "<space>"])
def test_keys_pressed_quickly_open_one_window(key: str, hands: Hands, tmp_path: Path) -> None:
    page = data_page(hands)
    page.add([images(tmp_path / "a", 1)])
    widget: tk.Misc = page.table.tree if key == "<Return>" else hands.button(words.EDIT, page.table)
    hands.focus(widget)
    for _ in range(3):
        widget.event_generate(key, when="tail")
    window = hands.dialog()
    hands.wait(lambda: window.grab_status() == "local")
    hands.rest(0.3)
    assert [c for c in hands.window.winfo_children() if isinstance(c, ConceptWindow)] == [window]
    hands.keys("<Escape>")
    hands.wait(lambda: not window.winfo_exists())
    hands.expect_focus(widget)
