"""A screen for the windows under test: a virtual one for each test process where there is no other."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import time
import tkinter as tk
from collections.abc import Iterator
from pathlib import Path

import pytest

SCREEN = "1280x720x24"
DIALOG_SECONDS = 90


@pytest.fixture(scope="session")
def display(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A display with a window manager; under xdist each worker has its own, so that they do not fight for the focus."""
    shared = os.environ.get("DISPLAY") and not os.environ.get("PYTEST_XDIST_WORKER")
    if not sys.platform.startswith("linux") or shared:
        yield
        return
    program = shutil.which("Xvfb")
    if program is None:
        pytest.skip("there is neither a display nor Xvfb")
    read, write = os.pipe()
    command = [program, "-displayfd", str(write), "-screen", "0", SCREEN, "-nolisten", "tcp"]
    server = subprocess.Popen(command, pass_fds=[write], stderr=subprocess.DEVNULL)
    os.close(write)
    with os.fdopen(read) as stream:
        number = stream.readline().strip()
    if not number:
        server.kill()
        pytest.fail("Xvfb did not start")
    before = os.environ.get("DISPLAY")
    os.environ["DISPLAY"] = f":{number}"
    manager = _window_manager(tmp_path_factory.mktemp("screen"))
    yield
    if manager is not None:
        manager.terminate()
        manager.wait(10)
    server.terminate()
    server.wait(10)
    if before is None:
        del os.environ["DISPLAY"]
    else:
        os.environ["DISPLAY"] = before


def _window_manager(folder: Path) -> subprocess.Popen[bytes] | None:
    """Started and ready: a window that opens while it starts loses the focus for good."""
    program = shutil.which("openbox")
    if program is None:
        return None
    ready = folder / "ready"
    command = [program, "--sm-disable", "--startup", f"touch {shlex.quote(str(ready))}"]
    manager = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 20
    while not ready.exists() and manager.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    return manager


def take_focus(window: tk.Tk, seconds: float = 20.0) -> None:
    """Wait until ``window`` is on the screen and has the focus; the window manager may still be starting."""
    end = time.monotonic() + seconds
    window.update()
    while not window.winfo_viewable() or window.focus_get() is None:
        assert time.monotonic() < end, "the window does not get the focus"
        window.focus_force()
        window.update()
        time.sleep(0.002)


@pytest.fixture
def root(display: None) -> Iterator[tk.Tk]:
    """A window with the focus; errors in its callbacks fail the test."""
    window = tk.Tk()
    window.geometry("1000x640+20+20")
    errors: list[BaseException] = []

    def report(kind: type[BaseException], error: BaseException, trace: object) -> None:
        errors.append(error.with_traceback(trace))  # type: ignore[arg-type]

    window.report_callback_exception = report  # type: ignore[assignment]
    window.errors = errors  # type: ignore[attr-defined]
    take_focus(window)
    yield window
    with contextlib.suppress(tk.TclError):  # closed by the test
        window.destroy()
    if errors:
        raise errors[0]


@pytest.fixture(autouse=True)
def dialogs_that_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A window that keeps all input to itself, or never appears, fails its test after a while instead of hanging it."""
    late: list[str] = []
    grab_set, wait_visibility = tk.Misc.grab_set, tk.Misc.wait_visibility

    def end(window: tk.Misc, does: str) -> None:
        late.append(f"a window {does} after {DIALOG_SECONDS} s and was closed: {window} {_texts(window)}")
        window.destroy()

    def end_grab(window: tk.Misc) -> None:
        if window.winfo_exists() and window.grab_status() is not None:
            end(window, "still keeps all input to itself")

    def grabbing(self: tk.Misc) -> None:
        grab_set(self)
        self._root().after(DIALOG_SECONDS * 1000, end_grab, self)  # type: ignore[attr-defined]

    def waiting(self: tk.Misc, window: tk.Misc | None = None) -> None:
        root, awaited = self._root(), window or self  # type: ignore[attr-defined]
        timer = root.after(DIALOG_SECONDS * 1000, end, awaited, "is not on the screen")
        wait_visibility(self, window)
        root.after_cancel(timer)

    monkeypatch.setattr(tk.Misc, "grab_set", grabbing)
    monkeypatch.setattr(tk.Misc, "wait_visibility", waiting)
    yield
    if late:
        pytest.fail("\n".join(late), pytrace=False)


def _texts(widget: tk.Misc) -> list[str]:
    """What a window says."""
    own = [str(widget.cget("text"))] if "text" in (widget.keys() or ()) else []
    return own + [text for child in widget.winfo_children() for text in _texts(child) if text]


class Desktop:
    """A desktop with a file window of its own, which answers at once.

    Args:
        folder: where its program lies; ``PATH`` names it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def answers(self, path: Path | str, code: int = 0, program: str = "zenity") -> None:
        """From now on the person chooses this; 1 as ``code`` is Cancel."""
        script = self._folder / program
        script.write_text(
            f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {self._folder}/asked\n"
            f"printf '%s\\n' {shlex.quote(str(path))}\nexit {code}\n"
        )
        script.chmod(0o755)

    def asked(self) -> list[str]:
        """The arguments of the last question."""
        return (self._folder / "asked").read_text().splitlines()


@pytest.fixture
def desktop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desktop:
    """Only on Linux have desktops such programs."""
    if not sys.platform.startswith("linux"):
        pytest.skip("the desktop's file windows are Tk's here")
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("XDG_CURRENT_DESKTOP", raising=False)
    return Desktop(folder)
