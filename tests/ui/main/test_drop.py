"""Files and folders dropped with the mouse, through the library's own handling of a drop."""

from __future__ import annotations

import sys
import tkinter as tk
from collections.abc import Sequence
from pathlib import Path

import pytest

from modules.ui.curation.StartPage import StartPage
from modules.ui.pages.DataPage import DataPage
from modules.ui.widgets.drop import accept_drops, load_drops
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.TrainConfig import TrainConfig
from tests.ui.curation.drivers import Hands as ToolHands
from tests.ui.main.conftest import OpenWindow
from tests.ui.main.drivers import Hands

pytestmark = pytest.mark.gui
ANOTHER = "0x1"  # the window of the file manager
ODD = ("with blank", "br{ace", "b}r{ace s", 'quo"te', "dollar$[x]", "back\\slash", "ünïcødé 画像", "100% #1")


def drop(widget: tk.Misc, names: Sequence[str | Path], x: int = 5, y: int = 5) -> str:
    """What the library does when a file manager drops URIs over a widget; returns the action that was answered."""
    call = widget.tk.call
    uris = [str(name) if "://" in str(name) else Path(name).absolute().as_uri() for name in names]
    kinds = "text/uri-list"
    place = (widget.winfo_rootx() + x, widget.winfo_rooty() + y)
    widget.update()
    call("tkdnd::generic::SetDroppedData", call("tkdnd::xdnd::normalise_data", kinds, "\r\n".join(uris)))
    call("tkdnd::generic::HandleEnter", str(widget), ANOTHER, kinds, kinds, "copy", "")
    call("tkdnd::generic::HandlePosition", str(widget), ANOTHER, "", *place)
    action = str(call("tkdnd::generic::HandleDrop", "", "", "", *place, 0))
    widget.update()
    return action


@pytest.fixture
def hands(open_window: OpenWindow) -> Hands:
    made = open_window()
    assert getattr(made.window, "drops_loaded", False), "tkinterdnd2 is required and does not load"
    return made


def data_page(hands: Hands) -> DataPage:
    hands.window.show_page("data")
    hands.rest()
    page = hands.window.current_page()
    assert isinstance(page, DataPage)
    return page


def folders(hands: Hands) -> list[str]:
    return [concept.path for concept in hands.window.state_.value("concepts") or []]


def test_names_of_all_kinds_arrive_whole(root: tk.Tk, tmp_path: Path) -> None:
    assert load_drops(root)
    label = tk.Label(root, text="here")
    label.pack(fill="both", expand=True)
    inside = tk.Label(label, text="inside")
    inside.place(x=0, y=0, width=60, height=40)
    got: list[list[Path]] = []
    accept_drops(label, got.append)
    root.update()
    names = [tmp_path / name for name in ODD]
    assert drop(inside, names) == "copy"
    assert drop(label, names[:1]) == "copy"
    assert got == [names, names[:1]]
    assert drop(label, []) == "refuse_drop"
    assert len(got) == 2


def test_folders_become_concepts(hands: Hands, tmp_path: Path) -> None:
    tree = data_page(hands).table.tree
    made = [tmp_path / name for name in ODD]
    for folder in made:
        folder.mkdir()
    assert drop(tree, made) == "copy"
    assert folders(hands) == [str(folder) for folder in made]
    hands.keys("<Control-z>", to=hands.window)
    assert folders(hands) == []


def test_what_is_no_folder_is_told_and_nothing_added(hands: Hands, tmp_path: Path) -> None:
    tree = data_page(hands).table.tree
    (tmp_path / "good").mkdir()
    (tmp_path / "an image {1}.png").write_bytes(b"")
    drop(tree, [tmp_path / "good", tmp_path / "an image {1}.png", "https://example.org/x.png"])
    hands.expect_dialog("not a folder: an image {1}.png, x.png")
    assert folders(hands) == []
    drop(tree, [tmp_path / "good"])
    assert folders(hands) == [str(tmp_path / "good")]


def test_a_config_is_opened_wherever_it_is_dropped(hands: Hands, tmp_path: Path) -> None:
    path = tmp_path / "my {best} config.json"
    for epochs, target in enumerate((hands.window.top_bar, hands.window.middle, hands.window.bottom_bar), 21):
        TrainConfig(epochs=epochs).save(path)
        assert drop(target, [path]) == "copy"
        assert hands.window.state_.config.epochs == epochs
        assert hands.window.title().startswith("my {best} config.json \u2013")
    TrainConfig(epochs=30).save(path)
    drop(hands.row("epochs").input.focus_widget, [path])
    assert hands.window.state_.config.epochs == 30
    hands.window.set_view("Dark", 125)
    hands.rest()
    TrainConfig(epochs=40).save(path)
    drop(hands.window.top_bar, [path])
    assert hands.window.state_.config.epochs == 40


@pytest.mark.parametrize(
    ("names", "said"),
    [
        pytest.param(["image.png"], "image.png cannot be opened here", marks=pytest.mark.slow),
        pytest.param(["folder", "a b.json"], "folder cannot be opened here", marks=pytest.mark.slow),
        pytest.param(["gone.json"], "gone.json cannot be opened here", marks=pytest.mark.slow),
        (["a b.json", "c.json"], "2 configs were dropped at once"),
        pytest.param(
            ["https://example.org/config.json"], "config.json cannot be opened here", marks=pytest.mark.slow
        ),
        (["broken.json"], "not valid JSON"),
        ([f"{n}.txt" for n in range(9)], "4.txt and 4 more cannot be opened here"),
    ],
)
def test_what_is_no_config_is_told(hands: Hands, tmp_path: Path, names: list[str], said: str) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("a b.json", "c.json"):
        TrainConfig(epochs=50).save(tmp_path / name)
    for name in ("image.png", "broken.json", *(f"{n}.txt" for n in range(9))):
        (tmp_path / name).write_bytes(b"{")
    drop(hands.window.top_bar, [name if "://" in name else tmp_path / name for name in names])
    hands.expect_dialog(said)
    assert hands.window.state_.config.epochs == 10


def test_the_pair_tool_takes_a_folder_or_a_file_in_it(root: tk.Tk, tmp_path: Path) -> None:
    assert load_drops(root)
    folder = tmp_path / "im{ages 1"
    folder.mkdir()
    (folder / "1.png").write_bytes(b"")
    tool = ToolHands(root, folder, tmp_path / "pairs", tmp_path / "settings")
    tool.tool.show_start()
    root.update()
    page = tool.tool.page
    assert isinstance(page, StartPage)
    for what in (folder, folder / "1.png"):
        page.source.set("")
        drop(page.entries["source"], [what])
        assert page.source.get() == str(folder)
    drop(page.entries["source"], ["https://example.org/x.png"])
    assert "is not a file or folder of this computer" in str(page.errors["source"].cget("text"))
    assert page.source.get() == str(folder)
    drop(page.entries["output"], [folder])
    assert page.output.get() == str(folder)
    tool.close()


def test_without_the_library_everything_else_works(
    open_window: OpenWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tkinterdnd2", None)
    hands = open_window()
    assert not getattr(hands.window, "drops_loaded", False)
    hands.fill("epochs", "9")
    assert hands.window.state_.config.epochs == 9


def test_nothing_is_dropped_behind_a_window_that_keeps_all_input(hands: Hands, tmp_path: Path) -> None:
    config = tmp_path / "other.json"
    TrainConfig(concepts=[ConceptConfig(name="theirs", path="/theirs")]).save(config)
    page = data_page(hands)
    mine = TrainConfig(concepts=[ConceptConfig(name="mine", path=str(tmp_path))])
    hands.window.state_.replace(mine, "mine", saved=True)
    page.table.select([0])
    hands.focus(page.table.tree)
    hands.keys("<Return>")
    window = hands.dialog()
    hands.wait(lambda: window.grab_status() == "local")
    assert drop(hands.window.bottom_bar, [config]) == "refuse_drop"
    assert drop(page.table.tree, [tmp_path]) == "refuse_drop"
    hands.click(hands.button("OK", window))
    hands.wait(lambda: not window.winfo_exists())
    assert [concept.name for concept in hands.window.state_.value("concepts")] == ["mine"]
    assert drop(page.table.tree, [tmp_path]) == "copy"
    assert len(folders(hands)) == 2
