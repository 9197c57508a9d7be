"""Home: a project of edits begun with the mouse and the keys alone, as taste.py new begins it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from modules.project.Project import Project
from modules.ui.home.EditsDialog import EditsDialog
from modules.ui.home.StartView import StartView
from tests.curation.edits import edit_folder, save
from tests.project.simulated import told
from tests.project.test_from_images import by_a1111
from tests.ui.conftest import Desktop
from tests.ui.main.conftest import OpenWindow
from tests.ui.main.drivers import Hands
from tests.usual import usual
from tests.util.image_metadata.edit_graphs import kontext, qwen

SHOTS = os.environ.get("TASTEMAKER_SHOTS")
pytestmark = pytest.mark.gui


def picture(hands: Hands, name: str) -> None:
    if SHOTS:
        hands.rest(0.5)
        hands.picture(Path(SHOTS) / f"{name}.png")


def base_model(folder: Path) -> Path:
    """A folder that says which type of model it is; nothing here loads it."""
    folder.mkdir()
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "FluxKontextPipeline"}))
    return folder


@pytest.fixture
def hands(open_window: OpenWindow) -> Hands:
    return open_window()


@pytest.fixture
def form(hands: Hands, tmp_path: Path) -> StartView:
    """The form, with folder and base model typed."""
    start = hands.window.current_page().view  # type: ignore[attr-defined]
    assert isinstance(start, StartView)
    for name, path in (("folder", tmp_path / "p"), ("base", base_model(tmp_path / "base"))):
        hands.focus(start.entries[name])
        hands.type(str(path))
    return start


def press(hands: Hands, button: object) -> None:
    hands.focus(button)  # type: ignore[arg-type]
    hands.keys("Return")


def dialog_of(hands: Hands) -> EditsDialog:
    found = hands.dialog()
    assert isinstance(found, EditsDialog)
    return found


def create(hands: Hands, form: StartView) -> Project:
    hands.click(form.create_button)
    hands.wait(lambda: form.watch.project is not None, "no project is made")
    assert form.watch.project is not None
    return form.watch.project


def written(project: Path) -> dict[str, object]:
    """All that ``new`` writes."""
    names = sorted(path.relative_to(project) for path in project.rglob("*") if path.is_file())
    return {
        str(name): json.loads((project / name).read_text())
        if name.suffix == ".json"
        else (project / name).read_bytes()
        for name in names
    }


@pytest.mark.parametrize("graph", usual([kontext, qwen], kontext))
def test_edits_of_comfyui_begin_the_project_that_the_command_begins(
    graph, hands: Hands, form: StartView, tmp_path: Path, desktop: Desktop, capsys: pytest.CaptureFixture[str]
) -> None:
    images, inputs = edit_folder(tmp_path, instructions=4, per_group=2, graph=graph)
    desktop.answers(images)
    press(hands, form.images_button)
    hands.wait(lambda: any(isinstance(child, EditsDialog) for child in hands.window.winfo_children()))
    dialog = dialog_of(hands)
    assert dialog.images.value.get() == str(images)
    hands.expect_focus(dialog.sources.entry)
    desktop.answers(inputs)
    press(hands, dialog.sources.buttons[0])
    hands.wait(lambda: dialog.sources.value.get() == str(inputs), "the folder is not taken")
    picture(hands, "edits_dialog")
    press(hands, dialog.read_button)
    hands.wait(lambda: "edits of 4 source images" in form.proposed.cget("text"), "nothing is proposed")
    assert "8 images" in form.proposed.cget("text") and not form.to_edit.entry.winfo_viewable()
    picture(hands, "edits_form")
    made = create(hands, form)
    picture(hands, "edits_project")
    assert made.file.edits and len({task.source for task in made.tasks()}) == 3
    again = tmp_path / "again"
    told(capsys, "new", again, "--images", images, "--input-dir", inputs, "--base-model", tmp_path / "base")
    assert written(made.folder) == written(again)


def test_edits_that_do_not_name_their_sources(
    hands: Hands, form: StartView, tmp_path: Path, desktop: Desktop, capsys: pytest.CaptureFixture[str]
) -> None:
    images = tmp_path / "images"
    by_a1111(images, ["make it night", "make it day", "paint it red"], model="kontext")
    for number, path in enumerate(sorted(images.iterdir())):
        save(images / "source" / path.name, 100 + number)
    press(hands, form.edits_button)
    dialog = dialog_of(hands)
    hands.expect_focus(dialog.images.entry)
    hands.keys("Return")
    assert "Choose the folder" in dialog.error.cget("text")
    hands.type(str(images))
    hands.focus(dialog.sources.entry)
    hands.type(str(tmp_path / "nowhere"))
    hands.keys("Return")
    assert "does not exist" in dialog.error.cget("text") and dialog.error.winfo_viewable()
    picture(hands, "edits_dialog_wrong")
    hands.keys("<Control-a>", "<Delete>", "Return")
    hands.wait(lambda: "edits of 3 source images" in form.proposed.cget("text"), "nothing is proposed")
    made = create(hands, form)
    again = tmp_path / "again"
    told(capsys, "new", again, "--images", images, "--edits", "--base-model", tmp_path / "base")
    assert written(made.folder) == written(again)


def test_dropped_edits_ask_for_one_source_of_all(hands: Hands, form: StartView, tmp_path: Path) -> None:
    images, inputs = edit_folder(tmp_path, instructions=3, per_group=1)
    form.take_images(sorted(images.iterdir()))
    hands.wait(lambda: any(isinstance(child, EditsDialog) for child in hands.window.winfo_children()))
    dialog = dialog_of(hands)
    labels = [child for child in dialog.body.winfo_children() if child.winfo_class() == "TLabel"]
    assert "3 images" in [str(label.cget("text")) for label in labels]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    hands.type(str(elsewhere))
    hands.keys("Return")
    hands.wait(lambda: not dialog.winfo_exists())
    hands.wait(lambda: any(isinstance(child, EditsDialog) for child in hands.window.winfo_children()))
    dialog = dialog_of(hands)
    assert dialog.sources.value.get() == str(elsewhere)
    hands.expect_focus(dialog.sources.entry)
    hands.keys("<Control-a>", "<Delete>")
    hands.type(str(inputs / "sub" / "source0.png"))
    hands.keys("Return")
    hands.wait(lambda: "edits of 1 source image," in form.proposed.cget("text"), "nothing is proposed")


def test_instructions_can_be_removed_and_not_added(hands: Hands, form: StartView, tmp_path: Path) -> None:
    images, inputs = edit_folder(tmp_path, instructions=4, per_group=1)
    for number in range(3):  # the same instruction for several sources is one line
        name = f"more{number}.png"
        save(inputs / name, 2000 + number)
        save(images / name, 3000 + number, kontext(name))
    form.take_images(images)
    hands.wait(lambda: any(isinstance(child, EditsDialog) for child in hands.window.winfo_children()))
    dialog_of(hands)
    hands.type(str(inputs))
    hands.keys("Return")
    hands.wait(lambda: "edits of 7 source images" in form.proposed.cget("text"), "nothing is proposed")
    lines = form.prompts.get("1.0", "end").split("\n")
    assert len([line for line in lines if line]) == 5 and "keeps the source images" in form.tip.cget("text")
    hands.focus(form.prompts)
    hands.keys("<Control-End>")
    form.prompts.insert("insert", "\n")
    hands.type("paint it red")
    hands.click(form.create_button)
    assert "paint it red" in form.error.cget("text") and "no source" in form.error.cget("text")
    picture(hands, "edits_added")
    at = form.prompts.search("paint it red", "1.0")
    form.prompts.delete(at, f"{at} lineend")
    at = form.prompts.search("make it night 0", "1.0")
    form.prompts.delete(at, f"{at} lineend +1c")
    made = create(hands, form)
    prompts = [one.task.prompt for one in made.given()]
    assert sorted(prompts) == [*["make it night"] * 3, *(f"make it night {n}" for n in (1, 2, 3))]


def test_a_cleared_list_takes_prompts_of_ones_own(hands: Hands, form: StartView, tmp_path: Path) -> None:
    images, inputs = edit_folder(tmp_path, instructions=3, per_group=1)
    for path in sorted(images.iterdir()):
        (inputs / "sub" / f"source{int(path.stem[1:4])}.png").rename(images / f"{path.stem}-source.png")
    form.take_images(images)
    hands.wait(lambda: "edits of 3 source images" in form.proposed.cget("text"), "nothing is proposed")
    hands.focus(form.prompts)
    hands.keys("<<SelectAll>>", "<Delete>")
    hands.wait(form.to_edit.entry.winfo_viewable, "images to edit are not offered")
    assert not form.edits


def test_each_instruction_for_each_image_of_a_folder(
    hands: Hands, form: StartView, tmp_path: Path, desktop: Desktop, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        save(tmp_path / "photos" / "sub" / f"{number}.png", number)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("make it night\nmake it {day|rain}\n")
    hands.click(form.create_button)
    assert "prompts" in form.error.cget("text")
    desktop.answers(tmp_path / "photos")
    press(hands, form.to_edit.buttons[0])
    desktop.answers(prompts)
    press(hands, form.prompts_button)
    picture(hands, "edits_to_edit")
    made = create(hands, form)
    assert len(made.given()) == 9 and made.file.edits
    again = tmp_path / "again"
    told(
        capsys, "new", again, "--prompts", prompts, "--to-edit", tmp_path / "photos",
        "--base-model", tmp_path / "base", "--model-type", "FLUX_KONTEXT_DEV_1",
    )  # fmt: skip
    assert written(made.folder) == written(again)


def test_images_to_edit_are_offered_only_to_models_that_edit(hands: Hands, form: StartView) -> None:
    assert form.to_edit.entry.winfo_viewable()
    hands.click(form.demo_button)
    hands.rest()
    assert not form.to_edit.entry.winfo_viewable()
