"""Whether Start would begin, as far as the window knows: settings at once, files and model a moment later."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from modules.ui.run import StartCheck
from modules.ui.state.ConfigState import Problem
from modules.ui.state.DryRun import DRY_RUN, DryRun
from modules.ui.texts.run import NO_IMAGES
from tests.children.warm import start_warm
from tests.ui.main.conftest import OpenWindow
from tests.ui.main.drivers import Hands

pytestmark = pytest.mark.gui
MISSING = {"field": "base_model_name", "message": "there is no model in /gone", "hint": "choose another"}


def outcome(tmp_path: Path, errors: list[object], warnings: list[str] | None = None) -> None:
    (tmp_path / "outcome.json").write_text(json.dumps({"errors": errors, "warnings": warnings or []}))


def calls(tmp_path: Path, name: str = "calls") -> int:
    path = tmp_path / name
    return len(path.read_text().split()) if path.exists() else 0


def said(hands: Hands) -> str:
    return str(hands.window.bottom_bar.problems.cget("text"))


@pytest.mark.usefixtures("settles_at_once")
def test_a_first_start_without_images_says_so(open_window: OpenWindow, tmp_path: Path) -> None:
    (tmp_path / "training_concepts" / "concepts.json").rename(tmp_path / "elsewhere.json")
    hands = open_window()
    hands.fill("epochs", "3")
    hands.wait(lambda: said(hands).startswith("1 error"))
    hands.rest(0.6)  # the change has been checked
    hands.click(hands.window.bottom_bar.buttons["start"])
    hands.expect_status(NO_IMAGES)
    assert hands.window.control.run is None
    panel = hands.window.problems
    assert panel.winfo_viewable()
    assert NO_IMAGES in panel.tree.item("0", "values")[1]
    hands.keys("<Return>", to=panel.tree)
    assert hands.window.page == "data"
    hands.rest(0.6)
    assert calls(tmp_path) == 0  # no dry run is needed to know that


@pytest.mark.usefixtures("settles_at_once")
def test_no_problems_is_said_when_the_files_were_looked_at(open_window: OpenWindow, tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    hands = open_window()
    hands.wait(lambda: calls(tmp_path) == 1, "nobody looks at the files")
    assert said(hands) == "Checking files\u2026"
    (tmp_path / "hold").unlink()
    hands.wait(lambda: said(hands) == "No problems")


@pytest.mark.usefixtures("settles_at_once")
def test_a_fault_in_a_file_is_shown_at_its_field_and_keeps_start_from_starting(
    open_window: OpenWindow, tmp_path: Path
) -> None:
    outcome(tmp_path, [MISSING], ["2 captions are empty"])
    hands = open_window()
    hands.wait(lambda: said(hands) == "1 error, 1 warning")
    row = hands.row("base_model_name")
    assert row._fault is not None and "there is no model in /gone" in str(row._fault.cget("text"))
    hands.keys("<F5>", to=hands.window)
    hands.wait(lambda: "Training cannot start: Base model: there is no model in /gone" in hands.status())
    assert hands.window.control.run is None


@pytest.mark.usefixtures("settles_at_once")
def test_start_looks_again_before_it_refuses(open_window: OpenWindow, tmp_path: Path) -> None:
    outcome(tmp_path, [MISSING])
    hands = open_window()
    hands.wait(lambda: said(hands) == "1 error")
    outcome(tmp_path, [])
    hands.keys("<F5>", to=hands.window)
    hands.wait(lambda: hands.window.control.state == "finished", "it does not start")
    hands.wait(lambda: said(hands) == "No problems")


def test_a_change_ends_the_look_under_way_and_only_the_last_one_counts(
    open_window: OpenWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome(tmp_path, [MISSING])
    (tmp_path / "hold").touch()
    with monkeypatch.context() as first:
        first.setattr("modules.ui.run.StartCheck.SETTLED_MS", 100)
        hands = open_window()
        hands.wait(lambda: calls(tmp_path) == 1)
    # a timer keeps the delay that it was made with
    hands.window.check._settling._delay = StartCheck.SETTLED_MS
    hands.fill("epochs", "3")
    outcome(tmp_path, [])
    assert calls(tmp_path) == 1, "the next look must begin after the first would have ended"
    (tmp_path / "hold").unlink()
    hands.wait(lambda: said(hands) == "No problems")
    assert calls(tmp_path) == 2
    assert calls(tmp_path, "ended") == 1, "the first look went on"


@pytest.mark.usefixtures("settles_at_once")
def test_mended_files_are_noticed_when_the_person_comes_back(open_window: OpenWindow, tmp_path: Path) -> None:
    outcome(tmp_path, [MISSING])
    hands = open_window()
    hands.wait(lambda: said(hands) == "1 error")
    outcome(tmp_path, [])
    hands.window.event_generate("<FocusIn>")
    hands.wait(lambda: said(hands) == "No problems")


@pytest.mark.parametrize(
    "code", ["print('{')", "import sys; sys.exit('out of luck')", "print('{\"errors\": [1]}')"]
)
def test_a_dry_run_that_fails_is_a_warning_and_not_no_problems(code: str) -> None:
    (problem,) = DryRun((sys.executable, "-c", code), {}).run().problems
    assert problem.warning and "could not be checked" in problem.message


def test_a_dry_run_that_was_cancelled_before_it_began_does_not_begin(tmp_path: Path) -> None:
    run = DryRun((sys.executable, "-c", f"open({str(tmp_path / 'x')!r}, 'w')"), {})
    run.cancel()
    assert run.run().problems == []
    assert not (tmp_path / "x").exists()


@pytest.fixture
def forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dry runs are forks that have imported everything."""

    def start(run: DryRun, config: Path) -> SimpleNamespace:
        _, script, *options = run._command
        said, complaints = tmp_path / "said", tmp_path / "complaints"
        process = start_warm(Path(script), [*options, "--config-path", str(config)], said, complaints)

        def communicate() -> tuple[str, str]:
            process.wait(120)
            return said.read_text(), complaints.read_text()

        return SimpleNamespace(pid=process.pid, communicate=communicate)

    monkeypatch.setattr(DryRun, "_start", start)


@pytest.mark.usefixtures("forked")
def test_the_dry_run_of_the_trainer_names_field_and_remedy(open_window: OpenWindow, tmp_path: Path) -> None:
    """The trainer is really asked, once, to see that both halves understand each other."""
    hands = open_window()
    images = tmp_path / "images"
    images.mkdir()
    Image.new("RGB", (64, 64)).save(images / "a.png")
    (images / "a.txt").write_text("nothing")
    state = hands.window.state_
    state.set_values(
        {
            "concepts": [{"path": str(images)}],
            "base_model_name": str(tmp_path / "gone.safetensors"),
            "resolution": "64",
        },
        "a project",
    )
    found = DryRun(DRY_RUN, state.config.to_dict()).run().problems
    assert [(one.path, one.warning) for one in found] == [("base_model_name", False)], found
    assert "gone.safetensors" in found[0].message
    assert isinstance(found[0], Problem)
