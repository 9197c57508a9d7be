"""The demo project: its offer, its steps, and with real models the whole way from a first start to an adapter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from modules.ui.demo import demo_project
from modules.ui.demo.DemoOffer import DemoOffer, open_demo
from modules.ui.demo.DemoWindow import DemoWindow
from modules.ui.pages.RunPage import RunPage
from modules.ui.state.SessionStore import WindowMemory
from modules.util.dpo_curation_util import load_manifest
from tests.ui.main.conftest import OpenWindow
from tests.ui.main.demo_drivers import PATIENCE, choose_larger, draw_images
from tests.ui.main.drivers import Hands
from tests.usual import usual

pytestmark = pytest.mark.gui
SHOTS = os.environ.get("TASTEMAKER_SHOTS")
LONG = 420.0
SLOW_MAKER = """
import sys, time
from pathlib import Path
out = Path(sys.argv[sys.argv.index("--out") + 1])
for n in range(50):
    (out / f"{n:05}.png").write_bytes(b"")
    print(f"[00:00:00] making images to choose from: {n + 1}/50 images", flush=True)
    time.sleep(0.2)
"""
BAD_MAKER = """
print("a warning")
print("error: there is no model in resources/demo_model")
raise SystemExit(2)
"""


def shot(hands: Hands, name: str) -> None:
    if SHOTS:
        hands.rest(0.4)
        hands.picture(Path(SHOTS) / f"{name}.png")


def demo_window(hands: Hands) -> DemoWindow:
    """Accept the offer."""
    assert isinstance(hands.window.offer, DemoOffer)
    hands.click(hands.window.offer.yes)
    (found,) = demo_windows(hands)
    hands.wait(found.winfo_viewable)
    return found


def demo_windows(hands: Hands) -> list[DemoWindow]:
    return [child for child in hands.window.winfo_children() if isinstance(child, DemoWindow)]


def in_folder(hands: Hands, folder: Path) -> DemoWindow:
    demo = demo_window(hands)
    hands.focus(demo.entries["folder"])
    hands.keys("<Control-slash>", "<Delete>")
    hands.type(str(folder))
    assert demo.project.folder == folder
    hands.rest()
    return demo


def enabled(demo: DemoWindow) -> set[str]:
    return {name for name, button in demo.buttons.items() if not button.instate(["disabled"])} - {"browse"}


def test_it_is_offered_until_the_person_has_answered(open_window: OpenWindow) -> None:
    hands = open_window()
    assert hands.window.offer is not None and hands.window.offer.winfo_viewable()
    hands.close()
    hands = open_window()
    offer = hands.window.offer
    assert offer is not None and offer.winfo_viewable(), "nobody has answered"
    shot(hands, "offer")
    hands.focus(offer.no)
    hands.keys("<Return>")
    hands.expect_status("Tools page")
    assert not offer.winfo_exists()
    hands.window.set_view("Dark", 110)
    assert hands.window.offer is None
    hands.close()
    again = open_window()
    assert again.window.offer is None
    again.window.show_page("tools")
    again.rest()
    page = again.window.current_page()
    buttons = [w for w in _all(page) if w.winfo_class() == "TButton" and "Demo" in str(w.cget("text"))]
    again.click(buttons[0])
    (demo,) = demo_windows(again)
    again.wait(demo.winfo_viewable)
    assert enabled(demo) == {"images"}
    again.click(buttons[0])
    assert demo_windows(again) == [demo]
    again.keys("<Escape>", to=demo)
    assert not demo.winfo_exists()


def _all(widget):  # type: ignore[no-untyped-def]
    for child in widget.winfo_children():
        yield child
        yield from _all(child)


def test_the_folder_of_nobody_is_named_and_can_be_corrected(hands: Hands, tmp_path: Path) -> None:
    demo = demo_window(hands)
    hands.focus(demo.entries["folder"])
    hands.keys("<Control-slash>", "<Delete>")
    hands.type("~nobody-here")
    assert "nobody-here" in str(demo.error.cget("text")) and not enabled(demo)
    hands.keys("<Control-slash>", "<Delete>")
    hands.type(str(tmp_path / "mine"))
    assert demo.error.cget("text") == "" and enabled(demo) == {"images"} and not hands.dialogs()


def test_a_double_click_opens_one_demo_project(hands: Hands) -> None:
    hands.window.show_page("tools")
    button = hands.button("Demo project\u2026", hands.window.current_page())
    for _ in range(2):
        hands.click(button)
    hands.rest(0.2)
    assert len([one for one in hands.window.winfo_children() if isinstance(one, DemoWindow)]) == 1


def test_making_shows_progress_can_be_cancelled_and_goes_on(
    hands: Hands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "slow.py"
    script.write_text(SLOW_MAKER, encoding="utf-8")
    monkeypatch.setattr(demo_project, "SCRIPT", script)
    demo = in_folder(hands, tmp_path / "my project")
    demo.prompts.set("25")
    demo.per_prompt.set("2")
    hands.click(demo.buttons["images"])
    hands.wait(lambda: "of 50 images" in str(demo.about_images.cget("text")), "no progress", PATIENCE)
    assert enabled(demo) == {"cancel"} and float(demo.bar.cget("value")) > 0
    assert demo._maker is not None
    process = demo._maker.process
    hands.click(demo.buttons["cancel"])
    hands.wait(lambda: "images" in enabled(demo), "it is not cancelled")
    assert not process.alive() and 0 < demo.project.image_count() < 50
    assert demo.buttons["images"].cget("text") == "Make the rest" and not hands.dialogs()
    assert enabled(demo) == {"images", "choose", "person"}
    hands.click(demo.buttons["images"])
    hands.wait(lambda: demo._maker is not None and demo._maker.done, "it does not go on", PATIENCE)
    process = demo._maker.process
    hands.keys("<Escape>", to=demo)
    hands.wait(lambda: not process.alive(), "it outlives its window")
    again = open_demo(hands.window.ui)
    again.folder.set(str(tmp_path / "my project"))
    assert (again.prompts.get(), again.per_prompt.get()) == ("25", "2")
    again.cancel()


def test_mistakes_and_failures_are_told(
    hands: Hands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "bad.py"
    script.write_text(BAD_MAKER, encoding="utf-8")
    monkeypatch.setattr(demo_project, "SCRIPT", script)
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    demo = in_folder(hands, tmp_path / "file")
    hands.click(demo.buttons["images"])
    assert "cannot be created" in str(demo.error.cget("text"))
    demo.folder.set(str(tmp_path / "project"))
    demo.prompts.set("0")
    hands.click(demo.buttons["images"])
    assert "2 to 94" in str(demo.error.cget("text"))
    demo.prompts.set("3")
    hands.click(demo.buttons["images"])
    assert str(demo.error.cget("text")) == ""
    hands.wait(lambda: hands.dialogs(), "the failure is not told", PATIENCE)
    hands.expect_dialog("there is no model in resources/demo_model")
    assert enabled(demo) == {"images"}


def test_from_images_to_before_and_after(hands: Hands, tmp_path: Path) -> None:
    folder = tmp_path / "demo with blanks"
    draw_images(folder / "images", 4, 3)
    demo = in_folder(hands, folder)
    assert enabled(demo) >= {"choose", "person"} and "train" not in enabled(demo)
    asked = choose_larger(hands, demo)
    pairs = load_manifest(folder / "pairs")["pairs"]
    assert asked >= 4 and len(pairs) >= 4
    assert demo.about_pairs.cget("text") == f"{len(pairs)} pairs, ready for training"
    shot(hands, "demo-window")
    hands.focus(demo.buttons["train"])
    hands.keys("<Return>")
    hands.wait(lambda: not demo.winfo_exists(), "the settings are not opened")
    window = hands.window
    hands.wait(lambda: window.bottom_bar.problems.cget("text") == "No problems")
    assert window.page == "run"
    assert Path(window.files.path) == folder / "demo.json" and not window.state_.is_modified()
    assert (folder / "demo.json").is_file() and not (folder / "run-1").exists()
    config = window.state_.config
    assert Path(config.base_model_name) == demo_project.ROOT / "resources" / "demo_model"
    assert config.epochs % config.sample_after == 0 and config.sample_before_training
    assert config.cpu_threads == 1
    assert next(concept.path for concept in config.load_concepts()).startswith(str(folder / "pairs"))
    hands.click(window.bottom_bar.buttons["start"])
    hands.wait(lambda: window.control.state == "finished", "the run does not end", PATIENCE)
    page = window.current_page()
    assert isinstance(page, RunPage)
    hands.wait(lambda: page.gallery._rows and page.gallery._rows[0][0] is not None, "nothing side by side")
    first, last = page.gallery._rows[0]
    assert first is not None and first.step == 0 and last.step == 20
    hands.wait(lambda: len(page.gallery._thumbnails._photos) == 2, "the two images are not drawn")
    assert "before training" in str(page.gallery._note.cget("text"))


@pytest.mark.parametrize("scale", usual([100, 200], 200))
def test_every_button_can_be_reached_on_a_small_screen(open_window: OpenWindow, scale: int) -> None:
    hands = open_window(memory=WindowMemory(geometry="1240x680+10+10", appearance="Light", scale=scale))
    demo = demo_window(hands)
    hands.rest(0.2)
    assert demo.winfo_height() <= demo.winfo_screenheight() and demo.winfo_width() <= demo.winfo_screenwidth()
    shot(hands, f"demo-{scale}")
    visible = demo.scroll.canvas
    for button in demo.buttons.values():
        demo.scroll.see(button)
        hands.rest()
        top = button.winfo_rooty() - visible.winfo_rooty()
        assert top >= 0 and top + button.winfo_height() <= visible.winfo_height()
        left = button.winfo_rootx() - visible.winfo_rootx()
        assert left >= 0 and left + button.winfo_width() <= visible.winfo_width()


@pytest.mark.slow
def test_the_whole_way_with_the_real_model(
    open_window: OpenWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hands = open_window()
    window, control = hands.window, hands.window.control
    control._command = None  # the real trainer
    demo = in_folder(hands, tmp_path / "demo")
    for name, text in (("prompts", "3"), ("per_prompt", "3")):
        hands.focus(demo.entries[name])
        hands.keys("<Control-slash>", "<Delete>")
        hands.type(text)
    hands.click(demo.buttons["images"])
    hands.wait(lambda: enabled(demo) == {"choose", "person"}, "no images are made", LONG)
    assert demo.project.image_count() == 9
    assert choose_larger(hands, demo) >= 3
    hands.click(demo.buttons["train"])
    hands.wait(lambda: not demo.winfo_exists(), "the settings are not opened")
    hands.fill("sample_after", "10")
    hands.fill("epochs", "20")
    window.show_page("run")
    page = window.current_page()
    assert isinstance(page, RunPage)
    hands.click(window.bottom_bar.buttons["start"])
    hands.wait(lambda: any(s.step >= 10 for s in control.history.samples), "no samples", LONG)
    hands.wait(lambda: any(len(c.x) >= 2 for c in page.plots[0].curves), "no curve", LONG)
    hands.wait(
        lambda: page.gallery._rows and page.gallery._rows[0][0] is not None, "nothing side by side", LONG
    )
    hands.click(window.bottom_bar.buttons["stop"])
    hands.wait(lambda: control.state == "stopped" and control.outcome is not None, "it does not stop", LONG)
    done = int(control.history.series["loss/train_step"].steps[-1])
    assert 10 <= done < 20
    hands.click(window.bottom_bar.buttons["start"])
    hands.wait(lambda: control.state == "finished", "it does not finish", LONG)
    steps = control.history.series["loss/train_step"].steps
    assert steps == sorted(set(steps)) and steps[0] == 1 and steps[-1] == 20
    hands.wait(lambda: page.gallery._rows[0][1].step == steps[-1], "no sample at the end", LONG)
    assert page.gallery._rows[0][0] is not None and len(page.gallery._rows) == 4
    assert (tmp_path / "demo" / "adapter-1.safetensors").is_file()
    assert not hands.dialogs()


@pytest.mark.slow
def test_the_window_needs_no_torch() -> None:
    code = (
        "import sys, modules.ui.MainWindow, modules.ui.demo.DemoWindow, modules.ui.curation.windows\n"
        "print(sorted({'torch', 'diffusers', 'transformers', 'scripts'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=demo_project.ROOT
    )
    assert done.stdout.strip() == "[]"
