"""The token of a Hugging Face account: typed once, kept in one file, used for downloads, shown nowhere."""

from __future__ import annotations

import json
import os
import stat
import sys
import tkinter as tk
from pathlib import Path

import pytest

from modules.ui.shell.AccountDialog import AccountDialog
from modules.util.config.SecretsConfig import SecretsConfig
from tests.trainer.builders import settings
from tests.ui.main.conftest import OpenWindow
from tests.ui.main.drivers import Hands

pytestmark = pytest.mark.gui
ROOT = Path(__file__).resolve().parents[3]
TOKEN = "hf_AbC123_secretvalue"
TRAINER = """
import runpy, sys
import huggingface_hub
from huggingface_hub.errors import LocalEntryNotFoundError
asked = sys.argv[1]
def download(name, token=None, **_):
    open(asked, "w").write(f"{name} {token}")
    raise LocalEntryNotFoundError(f"no network for {name}")
huggingface_hub.snapshot_download = download
sys.path.insert(0, sys.argv[2])
script = sys.argv[2] + "/scripts/train.py"
sys.argv = [script, "--config-path", sys.argv[3] + "/config.json", "--run-dir", sys.argv[3]]
runpy.run_path(script, run_name="__main__")
"""
"""With what would be written where it is to be asked for, the program, and the folder of the run."""


def opened(hands: Hands) -> AccountDialog:
    hands.window.show_page("tools")
    hands.rest()
    waiting: list[tk.Misc] = [hands.window.current_page()]
    while waiting:
        widget = waiting.pop()
        if widget.winfo_class() == "TButton" and "Hugging Face" in str(widget.cget("text")):
            hands.focus(widget)
            hands.keys("<space>")
            break
        waiting.extend(widget.winfo_children())
    dialog = hands.dialog()
    assert isinstance(dialog, AccountDialog)
    hands.wait(lambda: hands.window.focus_get() is dialog.entry, "the entry has no focus")
    return dialog


def store(hands: Hands, token: str = TOKEN) -> None:
    dialog = opened(hands)
    hands.type(token)
    hands.keys("<Return>")
    assert not dialog.winfo_exists()


def stored(hands: Hands) -> str:
    return SecretsConfig.load_if_there(hands.window.store.folder / "secrets.json").huggingface_token


def holding(folder: Path, text: str) -> list[str]:
    return sorted(p.name for p in folder.rglob("*") if p.is_file() and text.encode() in p.read_bytes())


def test_it_is_typed_masked_and_kept_for_the_owner_alone(hands: Hands, tmp_path: Path) -> None:
    dialog = opened(hands)
    assert "No token" in str(dialog.about.cget("text")) and dialog.remove_button.instate(["disabled"])
    hands.type(TOKEN)
    assert dialog.entry.get() == TOKEN and str(dialog.entry.cget("show")) == "\u2022"
    hands.window.clipboard_clear()
    hands.window.clipboard_append("before")
    dialog.entry.selection_range(0, "end")
    dialog.entry.event_generate("<<Copy>>")
    hands.rest()
    assert TOKEN not in hands.window.clipboard_get()
    hands.keys("<Return>")
    assert not dialog.winfo_exists() and stored(hands) == TOKEN
    path = hands.window.store.folder / "secrets.json"
    assert os.name == "nt" or stat.S_IMODE(path.stat().st_mode) == 0o600
    hands.expect_status("The token is stored")
    hands.window.autosave.now()
    assert holding(tmp_path, TOKEN) == ["secrets.json"]


def test_a_stored_one_is_not_shown_and_can_be_replaced_or_removed(hands: Hands) -> None:
    store(hands)
    dialog = opened(hands)
    assert dialog.entry.get() == "" and "A token is stored" in str(dialog.about.cget("text"))
    hands.keys("<Escape>")
    assert stored(hands) == TOKEN
    store(hands, "hf_another-one.1")
    assert stored(hands) == "hf_another-one.1"
    dialog = opened(hands)
    hands.focus(dialog.remove_button)
    hands.keys("<space>")
    assert not dialog.winfo_exists() and stored(hands) == ""


def test_what_is_no_token_is_refused_at_the_field(hands: Hands) -> None:
    dialog = opened(hands)
    for wrong in ("", "hf_a b", "short"):
        dialog.entry.delete(0, "end")
        hands.type(wrong)
        hands.keys("<Return>")
        assert "This is not a token" in str(dialog.fault.cget("text")) and dialog.entry.instate(["invalid"])
    assert stored(hands) == ""
    hands.keys("<Escape>")


def test_a_damaged_file_is_told_and_replaced(hands: Hands) -> None:
    path = hands.window.store.folder / "secrets.json"
    path.write_text('{"huggingface_token": ')
    dialog = opened(hands)
    assert "not valid JSON" in str(dialog.fault.cget("text"))
    hands.type(TOKEN)
    hands.keys("<Return>")
    assert stored(hands) == TOKEN


def test_a_folder_that_cannot_be_written_is_told(hands: Hands, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    dialog = AccountDialog(hands.window.ui, tmp_path / "file" / "secrets.json")
    dialog.present(dialog.entry)
    dialog.entry.insert(0, TOKEN)
    dialog.accept()
    assert "cannot be saved" in str(dialog.fault.cget("text"))
    dialog.cancel()


@pytest.mark.usefixtures("forked_trainer")
def test_the_trainer_downloads_with_it_and_writes_it_nowhere(
    open_window: OpenWindow, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TASTEMAKER_SETTINGS", str(tmp_path / "settings"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    data = settings(tmp_path, base_model_name="owner/gated-model")
    (tmp_path / "config.json").write_text(json.dumps(data), encoding="utf-8")
    hands = open_window()
    asked = tmp_path / "asked.txt"
    trainer = tmp_path / "trainer.py"
    trainer.write_text(TRAINER)
    hands.window.control._command = lambda run: [
        sys.executable, str(trainer), str(asked), str(ROOT), str(run.path)
    ]  # fmt: skip
    store(hands)
    assert hands.window.files.load(tmp_path / "config.json")
    hands.keys("<F5>", to=hands.window)
    hands.wait(lambda: hands.dialogs(), "nothing is told", 300.0)
    run = hands.window.control.run
    assert asked.read_text() == f"owner/gated-model {TOKEN}"
    assert TOKEN not in hands.dialogs()[0].message
    hands.expect_dialog("owner/gated-model")
    assert run is not None and run.log_path.is_file() and run.events_path.is_file()
    hands.window.autosave.now()
    assert holding(tmp_path, TOKEN) == ["asked.txt", "secrets.json"]
