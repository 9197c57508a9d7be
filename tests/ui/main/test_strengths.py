"""Images of an adapter at several strengths, asked for on the Runs page with mouse and keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from modules.runner.known_runs import note_run
from modules.ui.pages.RunsPage import RunsPage
from modules.ui.run.StrengthsDialog import StrengthsDialog
from modules.ui.state.runs import strengths
from modules.util.files.user_folder import FOLDER_VARIABLE
from modules.util.program_files import ROOT
from tests.ui.main.conftest import OpenWindow
from tests.ui.main.drivers import Hands
from tests.ui.main.test_runs_page import a_run

pytestmark = pytest.mark.gui
DEMO_MODEL = ROOT / "resources" / "demo_model"
SAMPLER = """
import sys, time
from pathlib import Path
from PIL import Image
options = [one.split("=", 1) for one in sys.argv[1:] if "=" in one]
said = dict(zip(sys.argv[1::2], sys.argv[2::2]))
out = Path(sys.argv[sys.argv.index("--out") + 1])
prompts = [value for name, value in options if name == "--prompt"]
out.mkdir(parents=True, exist_ok=True)
if "fail" in prompts:
    sys.exit("error: the model is not there\\n  -> fetch it")
for strength in dict(options)["--strengths"].split(","):
    for place, prompt in enumerate(prompts):
        path = out / f"{place:04d}-{strength}.png"
        Image.new("RGB", (8, 8), (int(100 * float(strength)), place, 0)).save(path)
        print(path, flush=True)
        if prompt == "wait":
            time.sleep(60)
"""
Opened = Callable[..., tuple[Hands, RunsPage]]


@pytest.fixture
def opened(open_window: OpenWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    def open_one(adapter: bytes = b"x", **changes: object) -> tuple[Hands, RunsPage]:
        monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "settings"))
        file = tmp_path / "taste.safetensors"
        file.write_bytes(adapter)
        model = {
            "base_model_name": str(DEMO_MODEL),
            "output_model_destination": str(file),
            "train_device": "cpu",
        }
        note_run(a_run(tmp_path / "work" / "first", 10, **model, **changes))
        hands = open_window()
        hands.window.show_page("runs")
        page = hands.window.current_page()
        assert isinstance(page, RunsPage)
        hands.wait(lambda: len(page.runs) == 1, "the run is not listed")
        page.tabs.select(3)
        hands.rest(0.2)
        return hands, page

    return open_one


def asked(hands: Hands, page: RunsPage, prompts: str, wanted: str) -> StrengthsDialog:
    """The dialog with both texts typed."""
    hands.click(page.strengths.button)
    dialog = hands.dialog()
    assert isinstance(dialog, StrengthsDialog)
    for widget, text in ((dialog.prompts, prompts), (dialog.strengths, wanted)):
        hands.focus(widget)
        hands.keys("<Control-a>", "<Delete>")
        hands.type(text)
    return dialog


def fake(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    script = folder / "sampler.py"
    script.write_text(SAMPLER)
    monkeypatch.setattr(strengths, "SCRIPT", script)


def test_a_grid_of_two_prompts_at_three_strengths(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(monkeypatch, tmp_path)
    hands, page = opened()
    hands.click(page.strengths.button)
    dialog = hands.dialog()
    assert isinstance(dialog, StrengthsDialog)
    assert dialog.prompts.get("1.0", "end").strip() == "a fox", "the prompts of the run's samples are offered"
    hands.keys("<Escape>")
    dialog = asked(hands, page, "a fox", "0, 0.5, twelve")
    hands.keys("<Return>")
    assert "twelve" in dialog.error.cget("text") and dialog.winfo_exists()
    hands.focus(dialog.strengths)
    hands.keys("<Control-a>", "<Delete>")
    hands.type("0,0.5,1.5")
    hands.click(dialog.make)
    panel = page.strengths
    hands.wait(lambda: panel.said.cget("text") == "3 images", str(panel.said.cget("text")))
    assert (panel.grid_._grid.rows, panel.grid_._grid.columns) == (("a fox",), ("0", "0.5", "1.5"))
    shades = [Image.open(panel.grid_._grid.cells[0, at].path).getpixel((0, 0)) for at in range(3)]
    assert shades == [(0, 0, 0), (50, 0, 0), (150, 0, 0)]
    hands.wait(lambda: len(panel.grid_._thumbnails._photos) == 3, "the images are not shown")
    before = dict(panel.grid_._thumbnails._photos)
    dialog = asked(hands, page, "a house", "0,0.5,1.5")
    hands.click(dialog.make)
    hands.wait(lambda: panel.grid_._grid.rows == ("a house",), str(panel.said.cget("text")))
    hands.wait(lambda: len(panel.grid_._thumbnails._photos) == 3, "the images are not shown")
    again = panel.grid_._thumbnails._photos
    assert again.keys() == before.keys() and all(again[key] is not before[key] for key in again)
    folders = {cell.path.parent for cell in panel.grid_._grid.cells.values()}
    assert folders == {tmp_path / "work" / "first" / "strengths" / "0-taste"}


def test_what_the_sampler_says_is_shown_and_stop_keeps_what_is_there(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(monkeypatch, tmp_path)
    hands, page = opened()
    dialog = asked(hands, page, "fail", "1")
    hands.click(dialog.make)
    hands.expect_dialog("the model is not there")
    dialog = asked(hands, page, "wait", "0,1")
    hands.click(dialog.make)
    panel = page.strengths
    hands.wait(lambda: panel.said.cget("text") == "1 of 2 images", str(panel.said.cget("text")))
    assert panel.button.cget("text") == "Stop"
    hands.click(panel.button)
    hands.wait(lambda: panel.said.cget("text") == "1 image", str(panel.said.cget("text")))
    assert set(panel.grid_._grid.cells) == {(0, 0)}
    assert panel.button.cget("text") != "Stop"


@pytest.mark.slow  # loads torch and the demo model
def test_the_programs_own_sampler_makes_them(opened: Opened, tmp_path: Path) -> None:
    from modules.adapter.AdapterOptions import AdapterOptions
    from modules.adapter.formats import save_adapter
    from modules.adapter.PeftAdapter import attach
    from modules.modelSetup.registry import create_model_setup

    model = create_model_setup("STABLE_DIFFUSION_15").load(str(DEMO_MODEL))
    handle = attach(model, AdapterOptions(rank=2, parts=("unet",)))
    for _, weight in handle.named_parameters():
        weight.data.fill_(0.05)
    save_adapter(handle, tmp_path / "made.safetensors")
    sample = {"prompt": "a red circle", "width": 64, "height": 64, "diffusion_steps": 2, "seed": 3}
    hands, page = opened((tmp_path / "made.safetensors").read_bytes(), samples=[sample])
    dialog = asked(hands, page, "a red circle", "0,1")
    hands.click(dialog.make)
    hands.wait(lambda: page.strengths.said.cget("text") == "2 images", hands.status(), seconds=200)
    base, changed = (Image.open(page.strengths.grid_._grid.cells[0, at].path) for at in range(2))
    assert base.size == changed.size == (64, 64)
    assert base.tobytes() != changed.tobytes(), "the strength changes nothing"
    hands.picture(tmp_path / "strengths.png")
