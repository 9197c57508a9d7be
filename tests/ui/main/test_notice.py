"""The notice of the desktop when a run ends."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ui.main.drivers import Hands

pytestmark = pytest.mark.gui
SERVICE = Path(__file__).with_name("notification_service.py")


@pytest.fixture
def notices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A session bus with a service of notices; the file has a line for each."""
    daemon = shutil.which("dbus-daemon")
    if daemon is None:
        pytest.skip("there is no dbus-daemon")
    bus = subprocess.Popen(
        [daemon, "--session", "--print-address=1", "--nofork"], stdout=subprocess.PIPE, text=True
    )
    assert bus.stdout is not None
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", bus.stdout.readline().strip())
    path = tmp_path / "notices"
    service = subprocess.Popen([sys.executable, str(SERVICE), str(path)])
    end = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < end and service.poll() is None, "no service of notices"
        time.sleep(0.02)
    yield path
    for process in (service, bus):
        process.kill()
        process.wait(10)


def given(path: Path) -> list[list[str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_desktop_shows_a_notice_when_a_run_ends(notices: Path, hands: Hands) -> None:
    hands.keys("<F5>", to=hands.window)
    hands.wait(lambda: given(notices), "there is no notice")
    assert given(notices) == [["Run ended: run", "the training is complete"]]


def test_one_switch_turns_it_off_and_is_remembered(notices: Path, hands: Hands) -> None:
    hands.window.open_view()
    dialog = hands.dialog()
    (switch,) = [
        one for one in dialog.winfo_children()[0].winfo_children() if one.winfo_class() == "TCheckbutton"
    ]
    hands.click(switch, x=8)
    hands.click(hands.button("OK", dialog))
    hands.keys("<F5>", to=hands.window)
    hands.wait(lambda: hands.window.control.state == "finished")
    hands.rest(1.5)
    assert given(notices) == []
    hands.window.autosave.now()
    assert hands.window.store.load_window()[0].notices is False


def test_a_desktop_without_the_service_changes_nothing_but_the_log(
    hands: Hands, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nowhere/bus")
    with caplog.at_level(logging.WARNING):
        hands.keys("<F5>", to=hands.window)
        hands.wait(lambda: hands.window.control.state == "finished")
        hands.wait(lambda: caplog.records, "nothing is logged")
    assert [record for record in caplog.records if record.exc_info] == [], "a traceback helps nobody"
    assert "No such file" in caplog.text
    assert not hands.dialogs()
