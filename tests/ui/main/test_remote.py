"""Training on another computer from the window: a real SSH server, real keys, a trainer that trains nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from modules.remote import Attendance, again, computers, records
from modules.remote.Connection import Refused, Unreachable
from modules.remote.Far import Far
from modules.remote.there.runs import RUNS
from modules.runner.RunDirectory import RunDirectory
from modules.runner.status import read_status
from modules.ui.dialogs import Dialog
from modules.ui.pages.RunPage import RunPage
from modules.ui.remote.windows import PasswordDialog, TrustDialog
from modules.ui.state.ConfigState import Problem
from modules.ui.texts import remote as words
from modules.util.config.remote.RemoteConfig import RemoteConfig
from modules.util.files.user_folder import settings_folder
from tests.remote.conftest import home, program, remote, server, trusted
from tests.remote.server import Server
from tests.remote.support import write_light
from tests.remote.test_trust import kept_on_the_disk
from tests.runner.support import wait_until
from tests.source_tree import ROOT
from tests.ui.main.conftest import OpenWindow
from tests.ui.main.drivers import Hands

pytestmark = pytest.mark.gui
__all__ = ["home", "program", "remote", "server", "trusted"]

TRAINER = f"""import argparse, sys
sys.path.insert(0, {str(ROOT)!r})
from tests.ui.main.trainer import RunDirectory, train
run = RunDirectory(sys.argv[sys.argv.index("--run-dir") + 1])
sys.exit(train(run, argparse.Namespace(steps=5000, pace=0.02, fail="", sampling=False)))
"""
LONG = 60.0
"""Seconds that a busy computer may need for a connection, which starts several processes."""
Open = Callable[..., Hands]


@pytest.fixture(autouse=True)
def fetches_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person waits ten seconds for the log; a test need not."""
    monkeypatch.setattr(Attendance, "FETCH_SECONDS", 0.2)


@pytest.fixture
def opened(
    program: Path, server: Server, remote: RemoteConfig, tmp_path: Path, open_window: OpenWindow
) -> Iterator[Open]:
    """Opens a window whose settings name the other computer. Its key is not trusted yet."""
    (program / "scripts" / "train.py").write_text(TRAINER)
    (Path.home() / ".ssh" / "known_hosts").unlink()

    def open_one(**changes: object) -> Hands:
        config = write_light(tmp_path / "job", remote.model_copy(update=changes))
        hands = open_window()
        assert hands.window.files.load(config)
        hands.keys("<Alt-End>")
        hands.wait(lambda: hands.window.page == "remote")
        return hands

    yield open_one
    for path in (server.home / "tastemaker" / RUNS).glob("*"):
        if (run := RunDirectory(path)).trainer() is not None:
            run.post("stop")


def trust(hands: Hands, server: Server) -> None:
    """Trust the computer in the dialog, with its button."""
    dialog = hands.dialog()
    assert isinstance(dialog, TrustDialog) and dialog.fingerprint.get() == server.fingerprint
    hands.focus(dialog.trust_button)
    hands.keys("<Return>")


def said(hands: Hands, text: str) -> None:
    """The line of the page says this."""
    hands.wait(
        lambda: text in hands.window.remote.said,
        f"it says {hands.window.remote.said!r} and does {hands.window.remote.doing!r}",
    )


def started(hands: Hands, server: Server) -> records.Record:
    """Start there with the button, until the run is followed on the Run page."""
    hands.click(hands.button(words.START))
    hands.wait(lambda: isinstance(hands.dialog(), TrustDialog))
    trust(hands, server)
    hands.wait(lambda: hands.window.page == "run", "the Run page is not shown", LONG)
    hands.wait(lambda: hands.window.control.state == "running", "the run is not followed", LONG)
    return records.find(None)


def line(hands: Hands) -> str:
    """What the Run page says about the connection."""
    page = hands.window.current_page()
    assert isinstance(page, RunPage)
    return str(page.strip.line.cget("text")) if page.strip.winfo_viewable() else ""


def _open_dialogs(hands: Hands) -> list[Dialog]:
    return [child for child in hands.window.winfo_children() if isinstance(child, Dialog)]


def command(hands: Hands, name: str) -> None:
    hands.click(hands.window.bottom_bar.buttons[name])


def test_an_unknown_computer_is_trusted_only_by_its_button(opened: Open, server: Server) -> None:
    hands = opened()
    trusted_keys = settings_folder() / "known_hosts"
    for key in ("<Escape>", "<Return>"):  # the button that has the focus is Cancel
        hands.click(hands.button(words.CHECK))
        dialog = hands.dialog()
        assert isinstance(dialog, TrustDialog) and dialog.fingerprint.get() == server.fingerprint
        hands.keys(key, to=dialog if key == "<Escape>" else hands.window.focus_get())
        hands.wait(lambda: not _open_dialogs(hands))
        assert not trusted_keys.exists() and not server.commands
    hands.click(hands.button(words.CHECK))
    trust(hands, server)
    said(hands, "answers")
    assert server.key.export_public_key().decode().split()[1] in trusted_keys.read_text()
    assert [one.address() for one in computers.saved()] == [f"me@127.0.0.1:{server.port}"]


def test_another_key_than_the_trusted_one_has_no_button(opened: Open, server: Server, home: Path) -> None:
    import asyncssh

    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    (home / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{server.port} {other}")
    hands = opened()
    hands.click(hands.button(words.CHECK))
    hands.expect_dialog("is not the trusted one")
    assert not server.commands


# One connection follows the run, one passes commands on; a start of each of them takes most of the time of this test.
def test_a_run_there_is_started_followed_and_commanded_like_one_here(
    opened: Open, server: Server, tmp_path: Path
) -> None:
    hands = opened()
    record = started(hands, server)
    hands.wait(lambda: hands.window.control.history.samples, "no sample is reported")
    first = hands.window.control.file(hands.window.control.history.samples[0].path)
    hands.wait(first.is_file, "the sample does not come")
    page = hands.window.current_page()
    assert isinstance(page, RunPage)
    hands.wait(lambda: page.gallery._samples, "the sample is not shown")
    assert all(hands.window.control.file(one.path).is_file() for one in page.gallery._samples)
    hands.wait(lambda: "training begins" in hands.window.control.run.log_path.read_text())
    assert "connected" in line(hands) and record.folder.parent == tmp_path / "job"
    assert "step" in hands.window.bottom_bar._text.cget("text")

    command(hands, "pause")
    hands.wait(lambda: hands.window.control.state == "paused", "it does not pause")
    assert hands.window.bottom_bar.buttons["pause"].cget("text") == "Resume"
    command(hands, "pause")
    hands.wait(lambda: hands.window.control.state == "running", "it does not resume")
    before = len(hands.window.control.history.samples)
    command(hands, "sample")
    hands.wait(lambda: len(hands.window.control.history.samples) > before, "no sample is made")
    command(hands, "backup")
    hands.expect_status("A backup will be made")
    command(hands, "stop")
    hands.wait(lambda: hands.window.control.state == "stopped", "it does not stop")
    hands.wait(lambda: "has ended" in line(hands), "its end is not told", LONG)

    hands.click(hands.button(words.FETCH))
    said(hands, "fetched")
    server.commands.clear()
    hands.click(hands.button(words.RESUME))
    hands.wait(lambda: hands.window.control.state == "running", "it does not resume there", LONG)
    assert records.find(None).run == record.run and len(list(record.folder.parent.glob("run-*"))) == 1


@pytest.mark.slow
def test_the_run_is_followed_again_after_the_window_was_closed(
    opened: Open, server: Server, open_window: OpenWindow
) -> None:
    hands = opened()
    record = started(hands, server)
    store = hands.window.store
    hands.close()
    other = open_window(store=store)
    other.wait(
        lambda: other.window.control.run is not None and other.window.control.run.path == record.folder
    )
    other.window.show_page("run")
    other.wait(lambda: other.window.control.state == "running", "it is not followed", LONG)
    command(other, "stop")
    other.wait(lambda: other.window.control.state == "stopped", "it does not stop")


def test_a_command_pressed_right_before_the_window_closes_arrives(opened: Open, server: Server) -> None:
    hands = opened()
    record = started(hands, server)
    command(hands, "stop")
    hands.expect_status("Sending the command")
    hands.close()
    there = RunDirectory(server.home / "tastemaker" / RUNS / record.run)
    wait_until(lambda: read_status(there).state == "stopped")


@pytest.mark.slow
def test_a_cut_connection_is_made_again_and_an_end_is_reported(opened: Open, server: Server) -> None:
    hands = opened()
    started(hands, server)
    lines: list[str] = []
    watch = hands.window.remote.watch
    hands.window.remote.listen(lambda: lines.append(watch.line), hands.window.bottom_bar)
    server.cut()
    hands.wait(lambda: any("trying again" in one for one in lines), "the cut is not noticed")
    again = lines.index(next(one for one in lines if "trying again" in one)) + 1
    hands.wait(lambda: any(one.endswith(": connected") for one in lines[again:]), "no new connection", LONG)
    hands.wait(lambda: hands.window.control.state == "running", "it is not followed", LONG)
    command(hands, "stop")
    hands.expect_status("Training stopped")


def test_a_password_is_typed_once_and_only_held_in_memory(
    opened: Open, server: Server, home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import asyncssh

    other = home / ".ssh" / "other"
    other.write_bytes(asyncssh.generate_private_key("ssh-ed25519").export_private_key())
    server.password = "Kiefernzapfen7"
    hands = opened(key_file=str(other))
    hands.click(hands.button(words.CHECK))
    trust(hands, server)

    def answer(text: str, press: str) -> PasswordDialog:
        hands.wait(lambda: isinstance(hands.dialog(), PasswordDialog))
        dialog = hands.dialog()
        hands.focus(dialog.entry)
        hands.type(text)
        assert dialog.entry.cget("show")
        hands.click(hands.button(press, dialog))
        hands.wait(lambda: not dialog.winfo_exists())
        return dialog

    answer("wrong", words.OK)
    hands.wait(lambda: isinstance(hands.dialog(), PasswordDialog))
    assert any(
        "Not accepted" in str(child.cget("text")) for child in hands.dialog().body.winfo_children()[:1]
    )
    answer("x", words.CANCEL)
    said(hands, words.CANCELLED)
    hands.click(hands.button(words.CHECK))
    answer(server.password, words.OK)
    said(hands, "answers")
    hands.click(hands.button(words.CHECK))
    said(hands, "answers")
    assert not _open_dialogs(hands)
    hands.close()
    assert not kept_on_the_disk(server.password, home, tmp_path, settings_folder(), server.home)
    assert server.password not in caplog.text


def test_a_refused_answer_is_forgotten_even_if_no_dialog_tells_it(opened: Open) -> None:
    remote = opened().window.remote
    remote._answers._known["Passphrase of key: "] = "wrong"
    remote.watch._failed(remote.watch._turn, False, Refused("the key stays locked"))
    assert not remote._answers._known


def test_a_start_can_be_cancelled_while_it_copies(opened: Open, server: Server, tmp_path: Path) -> None:
    hands = opened()
    (tmp_path / "job" / "model.safetensors").write_bytes(b"m" * (9 << 20))
    reached: list[int] = []

    def slow(received: int) -> None:
        if received > 5 << 20 and not reached:
            reached.append(received)
            time.sleep(1.0)

    server.on_data = slow
    hands.click(hands.button(words.START))
    trust(hands, server)
    hands.wait(lambda: reached, "nothing is copied")
    hands.click(hands.button(words.CANCEL))
    said(hands, words.CANCELLED)
    assert not records.known() and not list((server.home / "tastemaker" / RUNS).glob("*"))
    assert hands.window.page == "remote"


def test_a_start_that_cannot_be_cancelled_says_so_and_is_recorded(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, reached, held = Far.ask, threading.Event(), threading.Event()

    async def slow(self: Far, kind: type[Any], verb: str, **fields: Any) -> Any:
        if verb == "begin":
            reached.set()
            await asyncio.to_thread(held.wait, LONG)
        return await real(self, kind, verb, **fields)

    monkeypatch.setattr(Far, "ask", slow)
    hands = opened()
    (settings_folder() / computers.NAME).parent.mkdir(parents=True, exist_ok=True)
    (settings_folder() / computers.NAME).write_text("[]")
    hands.click(hands.button(words.START))
    trust(hands, server)
    hands.wait(reached.is_set, "the trainer is not told to begin", LONG)
    assert len(records.known()) == 1
    hands.click(hands.button(words.CANCEL))
    assert hands.status() == words.TOO_LATE
    hands.answer("Keep it open")
    hands.window.ask_quit()
    assert "starts there even if you close the window" in hands.asked[-1]
    held.set()
    hands.wait(lambda: hands.window.page == "run", "the Run page is not shown", LONG)
    hands.expect_dialog("is not a list of computers")  # which does not concern the run
    hands.wait(lambda: hands.window.control.state == "running", "the run is not followed", LONG)


@pytest.mark.parametrize(
    ("begin", "title", "what"),
    [
        ("check", words.CHECK_TITLE, words.CHECKING),
        ("fetch", words.FETCH_TITLE, words.FETCHING),
    ],
)
def test_closing_the_window_names_what_is_being_done(
    begin: str, title: str, what: str, opened: Open, remote: RemoteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles: list[str] = []

    async def silent(*_: object, **__: object) -> None:
        await asyncio.sleep(LONG)

    monkeypatch.setattr("modules.ui.remote.RemoteRuns.persistently", silent)
    monkeypatch.setattr("modules.ui.remote.RemoteRuns.far_side", lambda *_: _Silent())
    hands = opened()
    runs = hands.window.remote
    runs.watch.record = records.Record("run-1", remote, Path("run"), 0.0)
    runs.check() if begin == "check" else runs.fetch(False)
    runs.doing = runs.doing if begin == "check" else "samples/a.png (12 bytes)"

    def asked(_ui: object, heading: str, text: str, *_: object) -> bool:
        titles.append(heading)
        assert what.format(address=remote.address()) in text and runs.doing in text
        return False

    monkeypatch.setattr("modules.ui.MainWindow.confirm", asked)
    hands.window.ask_quit()
    assert titles == [title]
    runs.cancel()
    said(hands, words.CANCELLED)


class _Silent:
    """A connection that never comes."""

    async def __aenter__(self) -> None:
        await asyncio.sleep(LONG)

    async def __aexit__(self, *_: object) -> None:
        return None


def test_a_window_opened_without_a_network_follows_the_run_once_it_is_there(
    opened: Open, server: Server, open_window: OpenWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands = opened()
    record = started(hands, server)
    store = hands.window.store
    hands.close()
    damaged = settings_folder() / records.FOLDER / "taste-29991231-000000-ffff.json"
    damaged.write_text("{")
    down, real = [True], again.far_side

    @contextlib.asynccontextmanager
    async def reached(*given: Any) -> AsyncIterator[Far]:
        if down:
            raise Unreachable("the network is down")
        async with real(*given) as far:
            yield far

    monkeypatch.setattr(again, "far_side", reached)
    other = open_window(store=store)
    other.wait(lambda: "trying again" in other.window.remote.watch.line, "it does not try again")
    assert other.window.remote.watch.record == record
    down.clear()
    other.wait(lambda: other.window.control.connected, "it is not followed", LONG)
    command(other, "stop")
    other.wait(lambda: other.window.control.state == "stopped", "it does not stop")


def test_start_and_start_there_wait_for_the_same_check(opened: Open, server: Server, tmp_path: Path) -> None:
    hands = opened()
    (tmp_path / "hold").touch()
    hands.window.check._of_files = [Problem("", "it was missing")]  # so that Start checks first, too
    there, here = hands.button(words.START), hands.window.bottom_bar.buttons["start"]
    for button in (there, here, there):  # the last one says that it is busy
        hands.click(button)
    assert hands.window.remote.doing == words.CHECKING_SETTINGS
    (tmp_path / "hold").unlink()
    hands.wait(lambda: isinstance(hands.dialog(), TrustDialog), "nothing is started there")
    hands.keys("<Escape>", to=hands.dialog())
    hands.wait(lambda: hands.window.control.run is not None, "nothing is started here")
    assert not hands.window.control.is_mirror and not records.known()


def test_what_lies_where_the_result_would_be_saved_here_is_no_fault_of_a_run_there(
    opened: Open, tmp_path: Path
) -> None:
    def checked() -> list[str]:
        """Where the runs that were checked would save their result."""
        lines = (tmp_path / "asked").read_text().splitlines() if (tmp_path / "asked").exists() else []
        return [json.loads(one)["output_model_destination"] for one in lines]

    hands = opened()
    here = hands.window.state_.config.output_model_destination
    hands.click(hands.button(words.START))
    hands.wait(lambda: isinstance(hands.dialog(), TrustDialog), "nothing is started there")
    hands.keys("<Escape>", to=hands.dialog())
    hands.wait(lambda: checked()[-1] == here, "a run here is not checked again")
    (there,) = (Path(place) for place in checked() if place != here)
    assert there.name == Path(here).name and not there.parent.exists()


@pytest.mark.slow
def test_many_lines_of_the_other_computer_are_shown_without_drawing_the_run_for_each(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, drawn, real = threading.Event(), list[bool](), Far.ask
    hands = opened()
    remote = hands.window.remote

    async def talkative(self: Far, kind: type[Any], verb: str, **fields: Any) -> Any:
        for number in range(200):
            remote._tell(f"file {number}")
        await asyncio.to_thread(held.wait, LONG)
        return await real(self, kind, verb, **fields)

    monkeypatch.setattr(Far, "ask", talkative)
    monkeypatch.setattr(remote, "_heard", lambda: drawn.append(True))
    hands.click(hands.button(words.CHECK))
    trust(hands, server)
    page = hands.window.current_page()
    hands.wait(lambda: page.job.label.cget("text") == "file 199", "the last line is not shown", LONG)
    assert len(drawn) < 10
    held.set()
    said(hands, "answers")


def test_saved_computers_are_chosen_and_forgotten(opened: Open, remote: RemoteConfig) -> None:
    for host in ("gpu.example.org", "other.example.org"):
        computers.keep(RemoteConfig(host=host, user="me", directory="/workspace"))
    hands = opened()
    page = hands.window.current_page()
    hands.wait(lambda: len(page.saved.cget("values")) == 2)
    hands.focus(page.saved)
    hands.keys("<Down>")
    popdown = hands.window.tk.call("ttk::combobox::PopdownWindow", page.saved)
    listbox = f"{popdown}.f.l"
    hands.wait(lambda: hands.window.tk.call("winfo", "viewable", listbox))
    hands.window.tk.call("focus", "-force", listbox)
    hands.rest()
    hands.window.tk.call("event", "generate", listbox, "<Down>")
    hands.window.tk.call("event", "generate", listbox, "<Return>")
    hands.wait(lambda: hands.window.state_.config.remote.host == "gpu.example.org")
    assert hands.window.state_.config.remote.directory == "/workspace"
    hands.click(page.forget_button)
    hands.wait(lambda: len(page.saved.cget("values")) == 1)
    assert [one.host for one in computers.saved()] == ["other.example.org"]


@pytest.mark.parametrize(
    ("changes", "message"), [({"port": 1}, "cannot be reached"), ({"host": ""}, "no computer to train on")]
)
def test_what_is_wrong_is_one_clear_message(opened: Open, changes: dict[str, object], message: str) -> None:
    hands = opened(**changes)
    hands.click(hands.button(words.START))
    hands.expect_dialog(message)
    assert not hands.dialogs() and not records.known()
