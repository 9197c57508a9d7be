"""Sizes, appearances, small screens, and where the window was."""

from __future__ import annotations

import os
import time
import tkinter as tk
from pathlib import Path
from tkinter import ttk

import customtkinter as ctk
import pytest

from modules.project.Project import Project
from modules.ui.home.CompareDialog import CompareDialog
from modules.ui.MainWindow import ICON, _on_screen
from modules.ui.state.SessionStore import WindowMemory
from modules.ui.widgets.ScrollFrame import ScrollFrame
from modules.ui.widgets.theme import DARK, LIGHT
from modules.ui.widgets.tk_support import bind_own
from tests.ui.main.conftest import OpenWindow
from tests.ui.main.drivers import Hands
from tests.usual import usual

SHOTS = os.environ.get("TASTEMAKER_SHOTS")
pytestmark = pytest.mark.gui


def shown(widget: tk.Misc) -> list[tk.Misc]:
    """All widgets on the screen below one."""
    found: list[tk.Misc] = []
    for child in widget.winfo_children():
        if child.winfo_viewable() and not isinstance(child, tk.Toplevel):
            found += [child, *shown(child)]
    return found


def cropped(window: tk.Misc) -> list[str]:
    """Texts that have less room than they need, and widgets that stick out of the window at the right."""
    right = window.winfo_rootx() + window.winfo_width()
    found = []
    for widget in shown(window):
        if widget.winfo_rootx() + widget.winfo_width() > right + 1:
            found.append(f"{widget} ends {widget.winfo_rootx() + widget.winfo_width() - right} px outside")
        if isinstance(widget, (ttk.Button, ttk.Checkbutton)) or (
            isinstance(widget, ttk.Label) and not str(widget.cget("width"))
        ):
            missing = widget.winfo_reqwidth() - widget.winfo_width()
            if missing > 1:
                found.append(f"{widget.cget('text')!r} lacks {missing} px")
    return found


@pytest.mark.parametrize("scale", usual([75, 100, 150, 200], 200))
def test_nothing_is_cropped_on_a_small_screen(open_window: OpenWindow, scale: int) -> None:
    hands = open_window(memory=WindowMemory(geometry="1280x690+0+0", scale=scale, appearance="Dark"))
    hands.window.state_.set_values({"rlhf_enabled": True, "rlhf_dpo_validation": True}, "more rows")
    for page in hands.window.pages:
        hands.window.show_page(page.key)
        hands.rest(0.1)
        assert cropped(hands.window) == [], f"{page.title} at {scale} %"
        if SHOTS:
            hands.picture(Path(SHOTS) / f"{page.key}-{scale}.png")


@pytest.mark.slow
def test_a_large_scale_keeps_its_room_however_small_the_window_is_made(open_window: OpenWindow) -> None:
    hands = open_window(memory=WindowMemory(geometry="760x480+0+0"))
    hands.wait(lambda: (hands.window.winfo_width(), hands.window.winfo_height()) == (760, 480))
    hands.window.set_view("Dark", 200)
    hands.wait(lambda: hands.window.winfo_width() >= 1200, "the window does not grow")
    assert cropped(hands.window) == []
    search, font = hands.window.top_bar.search.entry, hands.window.theme.fonts["text"]
    assert search.winfo_width() > font.measure("beta") + 2 * hands.window.theme.px(10), "no word can be read"
    offer, middle = hands.window.offer, hands.window.middle
    assert offer is not None
    hands.wait(lambda: offer.winfo_height() < middle.winfo_height() / 3, "the demo leaves the page no room")


@pytest.mark.slow
def test_tab_goes_through_the_buttons_of_a_dialog_as_they_are_drawn(open_window: OpenWindow) -> None:
    hands = open_window()
    hands.window.open_view()
    dialog = hands.dialog()
    buttons = [hands.button(text, dialog) for text in ("Cancel", "OK")]
    assert buttons[0].winfo_rootx() < buttons[1].winfo_rootx()
    hands.keys("<Tab>", "<Tab>", "<Tab>")
    for button in buttons:
        hands.expect_focus(button)
        hands.keys("<Tab>")
    hands.keys("Escape", to=dialog)


def test_a_pressed_button_at_the_edge_stays_under_the_pointer_and_tab_still_scrolls(hands: Hands) -> None:
    window = tk.Toplevel(hands.window)
    window.geometry("300x200")
    frame = ScrollFrame(window, hands.window.theme)
    frame.pack(fill="both", expand=True)
    buttons = [ttk.Button(frame.inside, text=str(number)) for number in range(12)]
    for button in buttons:
        button.pack()
    hands.focus(buttons[0])
    bottom = frame.canvas.winfo_rooty() + frame.canvas.winfo_height()
    last = [button for button in buttons if button.winfo_rooty() + 2 < bottom][-1]
    last.event_generate("<ButtonPress-1>", x=9, y=1)
    hands.window.update()
    assert (hands.window.focus_get(), frame.canvas.canvasy(0)) == (last, 0)
    last.event_generate("<ButtonRelease-1>", x=9, y=1)
    hands.keys("<Tab>")
    assert frame.canvas.canvasy(0) > 0
    window.destroy()


def test_sizes_by_keys_are_remembered_and_values_stay(open_window: OpenWindow) -> None:
    hands = open_window()
    hands.fill("epochs", "55")
    before = hands.window.theme.fonts["text"].cget("size")
    size = (hands.window.winfo_width(), hands.window.winfo_height())
    hands.keys("<Control-plus>", "<Control-plus>", to=hands.window)
    assert hands.window.memory.scale == 125
    assert abs(hands.window.theme.fonts["text"].cget("size")) > abs(before)
    assert hands.row("epochs").input.focus_widget.get() == "55"  # type: ignore[attr-defined]
    assert (hands.window.winfo_width(), hands.window.winfo_height()) == size
    hands.close()
    again = open_window()
    assert again.window.memory.scale == 125
    for _ in range(9):
        again.window.zoom(1)
    assert again.window.memory.scale == 200
    for _ in range(12):
        again.window.zoom(-1)
    assert again.window.memory.scale == 75
    again.window.zoom(0)
    assert again.window.memory.scale == 100


def test_appearance_changes_what_is_open(hands: Hands) -> None:
    for page in ("training", "run"):
        hands.window.show_page(page)
        hands.rest()
    hands.window.set_view("Light", 100)
    hands.rest(0.1)
    assert ctk.get_appearance_mode() == "Light"
    plot = hands.window.current_page().plots[0]  # type: ignore[attr-defined]
    assert str(plot.cget("background")) == LIGHT.panel
    assert hands.window.theme.style.lookup("TLabel", "foreground") == LIGHT.text
    hands.window.set_view("Dark", 100)
    assert str(plot.cget("background")) == DARK.panel


@pytest.mark.parametrize(("key", "scale"), [("<Escape>", 100), ("<Return>", 110)])
def test_the_view_window_by_keys(hands: Hands, key: str, scale: int) -> None:
    hands.window.open_view()
    hands.rest()
    window = hands.dialog()
    assert window.title() == "View"
    hands.wait(lambda: window.grab_status() == "local")
    _, sizes = (child for child in window.body.winfo_children() if isinstance(child, ttk.Combobox))  # type: ignore[attr-defined]
    sizes.set("110 %")
    hands.focus(sizes)
    hands.keys(key, to=sizes)
    hands.rest()
    assert not window.winfo_exists()
    assert hands.window.memory.scale == scale


@pytest.mark.slow
def test_the_view_window_changes_appearance_and_size_on_ok(hands: Hands) -> None:
    hands.window.open_view()
    hands.rest()
    window = hands.dialog()
    looks, sizes = (child for child in window.body.winfo_children() if isinstance(child, ttk.Combobox))  # type: ignore[attr-defined]
    assert looks.get() == "Dark"
    for combo, key in ((looks, "<Down>"), (sizes, "<Down>")):
        hands.focus(combo)
        hands.keys(key, to=combo)  # opens the list
        popdown = str(combo.tk.call("ttk::combobox::PopdownWindow", combo))
        hands.wait(lambda: combo.tk.call("winfo", "viewable", popdown), "the list does not open")  # noqa: B023
        for name in ("<Down>", "<Return>"):
            combo.tk.call("event", "generate", f"{popdown}.f.l", name)
            hands.rest()
    hands.click(hands.button("OK", window))
    hands.rest(0.1)
    assert not window.winfo_exists()
    assert (hands.window.memory.appearance, hands.window.memory.scale) == ("Light", 110)
    assert ctk.get_appearance_mode() == "Light"
    assert hands.dialogs() == []


@pytest.mark.slow
def test_events_of_what_is_in_the_window_are_not_its_own(hands: Hands) -> None:
    heard: list[tk.Misc] = []
    bind_own(hands.window, "<Configure>", lambda event: heard.append(event.widget))
    hands.window.show_page("training")
    hands.rest()
    tk.Tk.wm_geometry(hands.window, "900x600+60+40")
    hands.wait(lambda: hands.window.winfo_width() == 900)
    hands.wait(lambda: heard, "it hears nothing")
    assert set(heard) == {hands.window}


@pytest.mark.slow
def test_the_place_of_the_window_is_remembered(open_window: OpenWindow) -> None:
    first = open_window()
    tk.Tk.wm_geometry(first.window, "900x600+60+40")
    first.wait(lambda: first.window.winfo_width() == 900)
    first.rest(0.2)
    first.close()
    second = open_window()
    second.wait(lambda: (second.window.winfo_width(), second.window.winfo_height()) == (900, 600))


@pytest.mark.slow
def test_a_window_that_was_never_moved_opens_at_the_same_place_again(open_window: OpenWindow) -> None:
    places = []
    for memory in (WindowMemory(), None, None):
        hands = open_window(memory=memory)
        hands.wait(hands.window.winfo_viewable)
        hands.rest(0.5)
        places.append((hands.window.winfo_rootx(), hands.window.winfo_rooty()))
        hands.close()
    assert places == places[:1] * 3


def test_the_place_of_the_window_survives_a_crash(open_window: OpenWindow) -> None:
    hands = open_window()
    hands.rest(0.5)  # what the start changes is saved
    tk.Tk.wm_geometry(hands.window, "900x600+60+40")
    store = hands.window.store
    hands.wait(lambda: store.load_window()[0].geometry == "900x600+60+40", "the place is not saved")


@pytest.mark.parametrize(
    ("geometry", "wanted"),
    [
        ("900x600+60+40", "900x600+60+40"),
        ("3000x2000+0+0", "1260x660+0+0"),
        ("900x600+5000+4000", "900x600+376+90"),
        ("900x600+-50+10", "900x600+0+10"),
        ("900x600", "900x600"),
        ("nonsense", "1240x660"),
    ],
)
def test_a_window_is_never_off_the_screen(geometry: str, wanted: str) -> None:
    assert _on_screen(geometry, 1280, 720) == wanted


def test_the_window_has_an_icon_and_a_title(hands: Hands) -> None:
    assert ICON.is_file()
    assert hands.window._icon.width() == 64
    assert hands.window.title().endswith("Tastemaker")


def test_pages_are_built_when_first_opened(hands: Hands) -> None:
    assert list(hands.window._built) == ["home"]
    start = time.process_time()
    hands.window.show_page("lora")
    hands.window.update()
    assert (
        time.process_time() - start < 0.5
    )  # a tenth of a second on an idle machine; the benchmark measures it
    assert list(hands.window._built) == ["home", "lora"]


def test_colours_can_be_read() -> None:
    """Text against what is behind it: at least 4.5 to 1, the usual demand on contrast."""

    def light(colour: str) -> float:
        parts = [value / 255 for value in bytes.fromhex(colour[1:])]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for palette in (DARK, LIGHT):
        for text in (palette.text, palette.muted, palette.error, palette.warning, palette.good):
            for under in (palette.panel, palette.back, palette.field):
                bright, dim = sorted((light(text), light(under)), reverse=True)
                assert (bright + 0.05) / (dim + 0.05) >= 4.5, (text, under)
        bright, dim = sorted((light(palette.on_accent), light(palette.accent)), reverse=True)
        assert (bright + 0.05) / (dim + 0.05) >= 4.5


@pytest.mark.parametrize("scale", usual([100, 150, 200], 200))
@pytest.mark.parametrize("width", [760, 1240])
def test_the_hint_of_the_search_is_never_cut(open_window: OpenWindow, scale: int, width: int) -> None:
    geometry = f"{width}x680+10+10"
    hands = open_window(memory=WindowMemory(geometry=geometry, appearance="Light", scale=scale))
    hands.rest(0.1)
    box = hands.window.top_bar.search
    hint = box._hint
    assert str(hint.cget("text")).endswith(("(Ctrl+F)", "Ctrl+F")) or box.entry.winfo_width() < 90
    if hint.winfo_ismapped():
        right = hint.winfo_rootx() + hint.winfo_reqwidth()
        assert right <= box.entry.winfo_rootx() + box.entry.winfo_width()


def test_a_long_list_of_contestants_scrolls_to_everything(open_window: OpenWindow, tmp_path: Path) -> None:
    hands = open_window()
    hands.window.set_view("Light", 150)
    hands.rest(0.2)
    settings = {
        "model": {"type": "STABLE_DIFFUSION_15", "base": "b"},
        "generator": {"kind": "own"},
    }
    project = Project.create(tmp_path / "taste", settings, "a\nb\nc", None)
    files = [tmp_path / f"{number}.safetensors" for number in range(14)]
    dialog = CompareDialog(hands.window.ui, project, lambda _between, _count: None, files)
    hands.rest(0.3)
    for widget in (dialog.count, dialog.body.winfo_children()[1]):
        hands.focus(widget)
        bottom = widget.winfo_rooty() + widget.winfo_height()
        assert dialog.winfo_rooty() <= widget.winfo_rooty() and bottom <= dialog.foot.winfo_rooty()
    hands.focus(dialog.compare)
    hands.keys("<Return>")
    bottom = dialog.error.winfo_rooty() + dialog.error.winfo_height()
    assert dialog.error.cget("text") and bottom <= dialog.foot.winfo_rooty(), "the mistake is out of sight"
    dialog.destroy()
