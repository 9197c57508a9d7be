"""Names with typed values: faults at their field, all by keys."""

from __future__ import annotations

import json
import math
from tkinter import ttk

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.ui.items.ParametersWindow import ParametersWindow
from modules.ui.pages.TrainingPage import TrainingPage
from modules.ui.state.parameters import ParameterText, as_texts, read_texts
from tests.ui.main.drivers import Hands

SCALARS = st.one_of(
    st.booleans(), st.integers(), st.floats(allow_nan=False), st.text().filter(str.strip), st.none()
)
NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,12}", fullmatch=True)


@given(st.dictionaries(NAMES, SCALARS))
def test_values_come_back_as_they_were(values: dict[str, object]) -> None:
    made, faults = read_texts(as_texts(values), {})  # type: ignore[arg-type]
    assert not faults
    assert [(n, type(v), v) for n, v in made.items()] == [(n, type(v), v) for n, v in values.items()]


@pytest.mark.parametrize(
    ("row", "place", "said"),
    [
        (("a b", "number", "1"), "name", "letters, digits"),
        (("1a", "number", "1"), "name", "do not begin with a digit"),
        (("", "number", "1"), "name", "enter a name"),
        (("eps", "number", "1"), "name", "its own row"),
        (("first", "number", "1"), "name", "twice"),
        (("x", "number", "many"), "value", "'many' is not a number"),
        (("x", "number", ""), "value", "enter a number"),
        (("x", "number", "nan"), "value", "NaN is not allowed"),
        (("x", "whole number", "1.5"), "value", "not a whole number"),
        (("x", "on / off", "maybe"), "value", "neither on nor off"),
    ],
)
def test_faults_name_their_field(row: tuple[str, str, str], place: str, said: str) -> None:
    rows = [ParameterText("first", "number", "1"), ParameterText(), ParameterText(*row)]
    _, faults = read_texts(rows, {"eps": "its own row"})
    assert list(faults) == [(2, place)]
    assert said in next(iter(faults.values()))


def test_empty_rows_count_for_nothing() -> None:
    assert read_texts([ParameterText(), ParameterText(" ", "text", " ")], {}) == ({}, {})


# -- in the window -------------------------------------------------------------------------------------------


def training_page(hands: Hands) -> TrainingPage:
    hands.window.show_page("training")
    hands.rest()
    page = hands.window.current_page()
    assert isinstance(page, TrainingPage)
    page.show_more(True)
    hands.rest()
    return page


Values = dict[str, object]


def opened(hands: Hands, values: Values, got: list[Values]) -> ParametersWindow:
    """The window of names and values, as rewards and accelerators open it."""
    ui, taken = training_page(hands).ui, {"eps": "has its own field: Epsilon"}
    window = ParametersWindow(ui, "Parameters", "Each parameter has a name and a value.", values, taken, got.append)  # type: ignore[arg-type]
    window.open()
    hands.rest()
    hands.wait(lambda: hands.window.focus_get() is window.rows[0].name, "the name has no focus")
    return window


def choose(hands: Hands, window: ParametersWindow, index: int, kind: str) -> None:
    """In the list of kinds, by the arrow keys."""
    pick(hands, window.rows[index].kind, kind)


def pick(hands: Hands, combo: ttk.Combobox, kind: str) -> None:
    """In the list of the field with the focus, by the arrow keys."""
    hands.expect_focus(combo)
    hands.keys("<Down>")
    popdown = combo.tk.call("ttk::combobox::PopdownWindow", str(combo))
    hands.wait(lambda: combo.tk.call("winfo", "viewable", popdown))
    kinds = combo.cget("values")
    way = kinds.index(kind) - kinds.index(combo.get())
    for _ in range(abs(way)):
        combo.tk.call("event", "generate", f"{popdown}.f.l", "<Down>" if way > 0 else "<Up>")
    combo.tk.call("event", "generate", f"{popdown}.f.l", "<Return>")
    hands.rest()
    assert combo.get() == kind
    hands.focus(combo)


@pytest.mark.gui
def test_values_of_every_kind_by_keys(hands: Hands) -> None:
    got: list[Values] = []
    window = opened(hands, {}, got)
    typed = (
        ("d_coef", "number", "2"),
        ("steps", "whole number", "3"),
        ("amsgrad", "on / off", "on"),
        ("mode", "text", "true"),
        ("nothing", "nothing", ""),
    )
    for index, (name, kind, text) in enumerate(typed):
        if index:
            hands.keys("<Insert>")
            row = window.rows[index]
            hands.wait(lambda row=row: hands.window.focus_get() is row.name)  # type: ignore[misc]
        hands.type(name)
        hands.keys("<Tab>")
        choose(hands, window, index, kind)
        if kind != "nothing":
            hands.keys("<Tab>")
            hands.type(text)
    hands.keys("<Control-Return>")
    assert not window.winfo_exists()
    wanted = {"d_coef": 2.0, "steps": 3, "amsgrad": True, "mode": "true", "nothing": None}
    assert json.dumps(got) == json.dumps([wanted])


@pytest.mark.gui
def test_a_fault_is_shown_at_its_field_until_it_is_mended(hands: Hands) -> None:
    got: list[Values] = []
    window = opened(hands, {}, got)
    hands.type("d_coef")
    hands.keys("<Tab>", "<Tab>")
    hands.type("two")
    hands.keys("<Control-Return>")
    row = window.rows[0]
    hands.expect_focus(row.value)
    assert row.faults["value"].winfo_ismapped() and "'two' is not a number" in str(
        row.faults["value"].cget("text")
    )
    assert row.value.instate(["invalid"]) and not row.faults["name"].winfo_ismapped()
    hands.keys("<Control-slash>", "<Delete>")
    hands.type("2")
    hands.keys("<KeyRelease-2>")
    assert not row.faults["value"].winfo_ismapped()
    hands.focus(row.name)
    hands.keys("<Control-slash>", "<Delete>")
    hands.type("eps")
    hands.keys("<Control-Return>")
    hands.expect_focus(row.name)
    assert "Epsilon" in str(row.faults["name"].cget("text"))
    hands.keys("<Escape>")
    assert not window.winfo_exists() and got == []


@pytest.mark.gui
def test_what_is_there_can_be_changed_and_taken_out(hands: Hands) -> None:
    got: list[Values] = []
    window = opened(hands, {"a": 1, "b": True, "c": math.inf}, got)
    assert [row.text() for row in window.rows] == [
        ParameterText("a", "whole number", "1"),
        ParameterText("b", "on / off", "on"),
        ParameterText("c", "number", "inf"),
    ]
    hands.focus(window.rows[1].drop)
    hands.keys("<space>")
    hands.expect_focus(window.rows[1].name)
    hands.focus(window.rows[0].kind)
    choose(hands, window, 0, "number")
    hands.keys("<Control-Return>")
    assert repr(got) == "[{'a': 1.0, 'c': inf}]"
    window = opened(hands, got[0], got)
    for _ in range(2):
        hands.focus(window.rows[0].drop)
        hands.keys("<space>")
    hands.expect_focus(window.more)
    hands.keys("<Control-Return>")
    assert got[1] == {}


@pytest.mark.gui
def test_a_problem_leads_to_the_button(hands: Hands) -> None:
    hands.window.show_page("lora")
    hands.window.jump("optimizer.params")
    hands.rest()
    page = training_page(hands)
    hands.wait(lambda: hands.window.focus_get() is page.parameters)
