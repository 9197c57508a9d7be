"""The page of preference training for modes that make their own images."""

from __future__ import annotations

import tkinter as tk
from pathlib import Path

import pytest

from modules.ui.items.NamedItemDialog import NamedItemDialog
from modules.ui.pages.RlhfPage import RlhfPage
from modules.ui.widgets.tk_support import ErrorDialog, make_modal, show_error
from modules.util.config.section.RewardConfig import AcceleratorConfig, RewardConfig
from modules.util.enum.RLHFMode import RLHFMode
from modules.util.errors import UserError
from tests.ui.main.drivers import Hands

pytestmark = pytest.mark.gui

CARDS = {
    "DPO": {"Mode", "Pairs and reference", "Masks", "Loss", "Noise", "Memory", "Validation", "Acceleration"},
    "GRPO": {"Policy loss"},
    "GSPO": {"Policy loss"},
    "DGPO": {"Policy loss", "Group loss", "Old policy"},
    "ONLINE_DPO": {"Group loss", "Pair loss"},
    "NFT": {"Loss", "Policy loss", "Group loss", "Old policy", "Pair loss"},
    "AWM": {"Loss", "Policy loss", "Group loss", "Old policy"},
}
ALL_ONLINE = {"Mode", "Images and reference", "Prompts", "Rollout", "Reward", "Advantage", "Acceleration"}


@pytest.fixture
def page(hands: Hands) -> RlhfPage:
    hands.window.show_page("rlhf")
    hands.rest()
    found = hands.window.current_page()
    assert isinstance(found, RlhfPage)
    found.show_more(True)
    return found


def _mode(hands: Hands, mode: str) -> None:
    hands.window.state_.set_values({"rlhf_enabled": True, "rlhf_mode": RLHFMode(mode)}, "mode")
    hands.rest(0.1)


def test_each_mode_shows_its_cards_and_rows_alone(hands: Hands, page: RlhfPage) -> None:
    assert {mode.value for mode in RLHFMode} == CARDS.keys()
    for mode, wanted in CARDS.items():
        _mode(hands, mode)
        shown = {title for title, card in page.form.cards.items() if card.winfo_manager()}
        assert shown == (wanted if mode == "DPO" else wanted | ALL_ONLINE), mode
        rows = {path for path, row in page.form.rows.items() if row.shown}
        assert ("rlhf_dpo_beta" in rows) == (mode == "DPO")
        assert ("rlhf_reward" in rows) == (mode != "DPO")
        for name, modes in (
            ("rlhf_sde_window", {"GRPO", "GSPO"}),
            ("rlhf_grpo_guard", {"GRPO"}),
            ("rlhf_gspo_weighting", {"GSPO"}),
            ("rlhf_dgpo_beta", {"DGPO"}),
            ("rlhf_online_dpo_beta", {"ONLINE_DPO"}),
            ("rlhf_nft_beta", {"NFT"}),
            ("rlhf_timestep_range_high", {"DGPO", "ONLINE_DPO", "NFT", "AWM"}),
        ):
            assert (name in rows) == (mode in modes), (name, mode)


def _dialog(hands: Hands) -> NamedItemDialog:
    found = hands.dialog()
    assert isinstance(found, NamedItemDialog)
    return found


def test_a_window_keeps_the_input_after_a_window_on_top_of_it_is_cancelled(
    hands: Hands, page: RlhfPage
) -> None:
    _mode(hands, "GRPO")
    page.online.rewards.add()
    window = _dialog(hands)
    hands.click(window.more)
    top = hands.dialog()
    assert top is not window
    hands.wait(lambda: top.grab_status() == "local")
    hands.wait(lambda: (focus := hands.window.focus_get()) and focus.winfo_toplevel() is top)
    hands.keys("<Escape>")
    hands.wait(lambda: not top.winfo_exists())
    assert window.grab_status() == "local", "the settings behind it can be changed"
    hands.expect_focus(window.more)


@pytest.mark.slow
def test_a_message_over_a_window_that_keeps_the_input_gets_the_keys(hands: Hands, page: RlhfPage) -> None:
    _mode(hands, "GRPO")
    page.online.rewards.add()
    window = _dialog(hands)
    hands.wait(lambda: window.grab_status() == "local")
    message = show_error(window, UserError("the disk is full"))
    assert message is not None
    hands.wait(lambda: (focus := hands.window.focus_get()) and focus.winfo_toplevel() is message)
    hands.keys("<Escape>")
    hands.wait(lambda: not message.winfo_exists())
    assert window.grab_status() == "local", "the settings behind it can be changed"
    hands.wait(lambda: (focus := hands.window.focus_get()) and focus.winfo_toplevel() is window)


def test_a_message_that_comes_while_a_window_opens_keeps_the_input_until_it_is_closed(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = tk.Toplevel(hands.window)
    window.withdraw()
    shown: list[ErrorDialog] = []

    def becomes_visible() -> None:
        message = show_error(hands.window, UserError("the disk is full"))
        assert message is not None
        hands.wait(lambda: message.grab_status() == "local")
        shown.append(message)

    monkeypatch.setattr(window, "wait_visibility", becomes_visible)
    make_modal(window, hands.window)
    assert shown[0].grab_status() == "local", "the message cannot be closed with the mouse"
    hands.click(shown[0].close_button)
    hands.wait(lambda: not shown[0].winfo_exists())
    assert window.grab_status() == "local"
    window.destroy()


@pytest.mark.slow
@pytest.mark.parametrize("first", ["lowest", "middle"])
def test_the_input_returns_to_a_window_that_is_still_open(first: str, hands: Hands) -> None:
    window = hands.window
    hands.wait(window.winfo_viewable)

    def on_top_of(other: tk.Misc) -> tk.Toplevel:
        made = tk.Toplevel(window)
        make_modal(made, other)
        return made

    lowest = on_top_of(window)
    middle = on_top_of(lowest)
    top = on_top_of(middle)
    closed, stays = (lowest, middle) if first == "lowest" else (middle, lowest)
    closed.destroy()
    hands.rest(0.2)
    assert top.grab_status() == "local"
    top.destroy()
    hands.rest(0.2)
    assert stays.grab_status() == "local"
    stays.destroy()  # asking a window that is gone would be an error, which ``hands`` raises
    hands.rest(0.2)


def test_rewards_are_edited_as_a_list(hands: Hands, page: RlhfPage) -> None:
    _mode(hands, "GRPO")
    page.online.rewards.add()
    window = _dialog(hands)
    assert window.about.cget("text").startswith("Mean luma")
    box = window.forms[0].rows["reward"].input.focus_widget
    assert "preference_head" in box.cget("values")  # type: ignore[attr-defined]
    window.source.set_value("reward", "jpeg_compressibility")
    window.source.set_value("weight", 0.5)
    assert "quality" in window.about.cget("text")
    given = window.open_parameters()
    hands.rest()
    row = given.rows[0]
    assert "quality" in row.name.cget("values")
    row.name.insert(0, "quality")
    row.kind.set("whole number")
    row.value.insert(0, "80")
    hands.wait(lambda: given.grab_status() == "local")
    hands.click(hands.button("OK", given))
    hands.rest()
    hands.wait(lambda: window.grab_status() == "local")
    hands.click(hands.button("OK", window))
    state = hands.window.state_
    expected = RewardConfig(reward="jpeg_compressibility", weight=0.5, params={"quality": 80})
    assert state.value("rlhf_rewards") == [expected]
    table = page.online.rewards.table
    assert table.tree.item("0", "values") == ("jpeg_compressibility", "0.5", "quality = 80")
    line = page.form.rows["rlhf_reward"].input.focus_widget
    assert line.instate(["disabled"])  # type: ignore[attr-defined]
    table.select([0])
    table.duplicate()
    fault = page.online.rewards.fault
    hands.wait(fault.winfo_viewable, "the fault is not told")
    assert "listed twice" in fault.cget("text")
    hands.window.jump("rlhf_rewards[1].weight")
    hands.expect_focus(table.tree)
    hands.keys("<Control-z>", "<Control-z>")
    assert state.value("rlhf_rewards") == []
    assert not line.instate(["disabled"])  # type: ignore[attr-defined]
    hands.fill("rlhf_reward", "brightnes")
    row_ = page.form.rows["rlhf_reward"]
    hands.wait(lambda: row_._fault is not None and row_._fault.winfo_viewable(), "the name is not doubted")
    assert "did you mean 'brightness'" in str(row_._fault.cget("text"))  # type: ignore[union-attr]


def test_accelerators_have_a_list_for_each_slot(hands: Hands, page: RlhfPage) -> None:
    _mode(hands, "DGPO")
    for path, name in (("acceleration.shared", "torch_compile"), ("acceleration.rollout", "diffusers_cache")):
        page.online.speed[path].add()
        window = _dialog(hands)
        assert window.source.value("name") == name
        hands.wait(lambda window=window: window.grab_status() == "local")
        hands.click(hands.button("OK", window))
        hands.rest()
        assert hands.window.state_.value(path) == [AcceleratorConfig(name=name)]
    _mode(hands, "DPO")
    fault = page.online.speed["acceleration.rollout"].fault
    hands.wait(fault.winfo_viewable, "nobody says that there are no rollouts")


def test_prompts_are_counted_and_faults_told_at_the_field(
    hands: Hands, page: RlhfPage, tmp_path: Path
) -> None:
    _mode(hands, "GRPO")
    label, state = page.online.count, hands.window.state_
    hands.wait(lambda: "captions" in label.cget("text"))
    path = tmp_path / "prompts.txt"
    path.write_text("a\n# no\nb\n", encoding="utf-8")
    state.set_value("rlhf_prompts_file", str(path))
    hands.wait(lambda: "2 prompts in the file. Each epoch makes 64 images." in label.cget("text"))
    edits = tmp_path / "edits.jsonl"
    edits.write_text('{"prompt": "a", "source": "a.png"}', encoding="utf-8")
    state.set_value("rlhf_prompts_file", str(edits))
    hands.wait(lambda: "1 prompt in the file" in label.cget("text"), "edits are not counted")
    state.set_value("rlhf_prompts_file", str(tmp_path / "none.txt"))
    row = page.form.rows["rlhf_prompts_file"]
    hands.wait(lambda: row._fault is not None and row._fault.winfo_viewable(), "the fault is not told")
    assert "cannot be read" in str(row._fault.cget("text"))  # type: ignore[union-attr]
    state.set_value("rlhf_prompts_file", "")
    hands.wait(lambda: not row._fault.winfo_viewable())  # type: ignore[union-attr]


def test_kept_images_open_in_the_pair_tool(hands: Hands, page: RlhfPage, tmp_path: Path) -> None:
    hands.window.state_.set_value("workspace_dir", str(tmp_path / "run"))
    _mode(hands, "GRPO")
    button = page.online.buttons["Make pairs"]
    assert button.instate(["disabled"])
    kept = tmp_path / "run" / "rollouts" / "epoch-0"
    kept.mkdir(parents=True)
    page.opened()
    assert not button.instate(["disabled"])
    button.invoke()
    hands.rest()
    window = hands.dialog()
    from modules.ui.curation.DPOCurationWindow import DPOCurationWindow

    tool = next(child for child in window.winfo_children() if isinstance(child, DPOCurationWindow))
    assert tool.memory.source == str(kept.parent)
    window.destroy()


@pytest.mark.slow
def test_no_torch_in_the_window(tmp_path: Path, display: None) -> None:
    """No page, no family and no online mode needs torch or diffusers, and closing the window does not either."""
    import subprocess
    import sys

    code = f"""
import sys
import tkinter as tk
from pathlib import Path
from modules.ui.MainWindow import MainWindow
from modules.ui.state.SessionStore import SessionStore
from modules.util.enum.ModelType import ModelType
from modules.util.enum.RLHFMode import RLHFMode
from modules.util.errors import UserError
window = MainWindow(SessionStore(Path({str(tmp_path)!r})))
for page in window.pages:
    window.show_page(page.key)
    window.update()
for family in ModelType:
    window.state_.set_value("model_type", family)
window.state_.set_values({{"rlhf_enabled": True, "rlhf_mode": RLHFMode.GRPO}}, "mode")
window.update()
heavy = {{"torch", "diffusers", "transformers", "peft", "accelerate", "tensorboard"}}
window.quit_window()
loaded = heavy & set(sys.modules)
sys.exit(f"loaded: {{loaded}}" if loaded else 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
