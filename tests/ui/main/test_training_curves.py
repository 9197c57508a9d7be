"""Drawings of the learning rate and the noise levels, by keys; they follow the settings."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from modules.ui.state.runs import CurveHelper as helper_module
from modules.ui.state.runs.CurveHelper import CurveHelper
from modules.util.enum.choices import LearningRateScheduler
from modules.util.errors import UserError
from tests.ui.main.conftest import OpenWindow
from tests.ui.main.drivers import Hands
from tests.ui.main.test_parameters import training_page

ANSWERS = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    kind = asked["config"].get("learning_rate_scheduler", "CONSTANT")
    curve = {"x": [1.0, 2.0], "y": [0.5, 0.1 if kind == "LINEAR" else 0.5]}
    rate = {"error": "no such class"} if kind == "CUSTOM" else curve
    levels = {"drawn": curve, "own": curve, "size": asked["steps_per_epoch"], "shift": asked["steps"]}
    print(json.dumps({"number": asked["number"], "rate": rate, "levels": levels}), flush=True)
"""


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A helper that answers without torch; what the real one says is tested with the trainer."""
    program = tmp_path / "answers.py"
    program.write_text(ANSWERS)
    monkeypatch.setattr(CurveHelper.__init__, "__defaults__", ((sys.executable, str(program)),))


@pytest.mark.gui
def test_drawings_are_shown_follow_the_settings_and_hide(quick: None, hands: Hands) -> None:
    page = training_page(hands)
    rate, levels = page.curves.rate, page.curves.levels
    assert not rate.plot.winfo_ismapped()
    for drawing in (rate, levels):
        hands.focus(drawing.button)
        hands.keys("<Return>")
        hands.wait(lambda drawing=drawing: drawing.plot.curves)  # type: ignore[misc]
        assert drawing.plot.winfo_ismapped()
    assert [curve.name for curve in levels.plot.curves] == ["training", "the model"]
    assert levels.plot._limits()[2] == 0.0 < rate.plot._limits()[2]
    state = hands.window.state_
    state.set_value("max_steps", 7)
    hands.wait(lambda: "shift 7" in str(levels.said.cget("text")))
    state.set_value("learning_rate_scheduler", LearningRateScheduler.LINEAR)
    hands.wait(lambda: list(rate.plot.curves[0].y) == [0.5, 0.1])
    state.set_value("learning_rate_scheduler", LearningRateScheduler.CUSTOM)
    hands.wait(lambda: "no such class" in str(rate.said.cget("text")))
    assert not rate.plot.curves and levels.plot.curves
    hands.focus(rate.button)
    hands.keys("<Return>")
    hands.wait(lambda: not rate.plot.winfo_ismapped())


@pytest.mark.gui
@pytest.mark.usefixtures("settles_at_once")
def test_drawings_follow_the_length_that_the_check_finds(
    quick: None, open_window: OpenWindow, tmp_path: Path
) -> None:
    (tmp_path / "hold").touch()
    hands = open_window()
    levels = training_page(hands).curves.levels
    hands.focus(levels.button)
    hands.keys("<Return>")
    hands.wait(lambda: "shift 1e+03" in str(levels.said.cget("text")))
    memory = {"unknown": "it is not looked for"}
    found = {"errors": [], "warnings": [], "steps": 24, "steps_per_epoch": 8, "memory": memory}
    (tmp_path / "outcome.json").write_text(json.dumps(found))
    (tmp_path / "hold").unlink()
    hands.wait(lambda: "at 8 pixels with shift 24)" in str(levels.said.cget("text")))


ONCE = """
import json, sys
asked = json.loads(sys.stdin.readline())
print(json.dumps({"number": asked["number"], "rate": 1}), flush=True)
"""


def test_a_helper_that_ends_is_an_error_and_is_started_again(tmp_path: Path) -> None:
    program = tmp_path / "once.py"
    program.write_text(ONCE)
    helper = CurveHelper((sys.executable, str(program)))
    assert helper.ask({}, 1) == {"rate": 1}
    assert helper._process is not None
    helper._process.wait()
    with pytest.raises(UserError, match="cannot be drawn"):
        helper.ask({}, 1)
    assert helper.ask({}, 1) == {"rate": 1}
    helper.end()
    with pytest.raises(UserError):
        helper.ask({}, 1)
    assert json.dumps(helper_module.COMMAND[1]).endswith('curves.py"')


@pytest.mark.parametrize("line", ["hello", "[]", '{"rate": 2}', '{"number": 7, "rate": 2}'])
def test_a_line_that_is_no_answer_does_not_shift_later_answers(line: str, tmp_path: Path) -> None:
    program, seen = tmp_path / "loud.py", tmp_path / "seen"
    program.write_text(
        f"import pathlib\nseen = pathlib.Path({str(seen)!r})\n"
        f"if not seen.exists():\n    seen.touch()\n    print({line!r}, flush=True)\n{ONCE}"
    )
    helper = CurveHelper((sys.executable, str(program)))
    with pytest.raises(UserError):
        helper.ask({}, 1)
    assert helper.ask({}, 1) == {"rate": 1}
    helper.end()
