"""The parameters of the optimizer: a row for each with default, range and sentence; all by keys."""

from __future__ import annotations

from tkinter import ttk
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.ui.items.OptimizerWindow import OptimizerWindow
from modules.ui.state.optimizer_texts import given_by, read_text, value_text
from modules.util.config.optimizer.tables import parameters_of
from modules.util.config.section.OptimizerConfig import OptimizerConfig
from modules.util.enum.choices import Optimizer
from modules.util.errors import UserError
from tests.ui.main.drivers import Hands
from tests.ui.main.test_parameters import pick, training_page

PARAMETERS = [one for kind in Optimizer for one in parameters_of(kind)]


@given(st.sampled_from(PARAMETERS), st.floats(allow_nan=False) | st.integers() | st.booleans())
def test_a_value_comes_back_or_is_refused(one: Any, value: float) -> None:
    if one.fault(value) or (one.kind == "number" and f"{value:.12g}" != repr(value)):
        return
    assert read_text(one, value_text(value)) == value


def test_defaults_can_be_typed_and_are_empty_fields() -> None:
    for one in PARAMETERS:
        assert read_text(one, "") == one.default
        assert read_text(one, value_text(one.default)) == one.default, one.name
    for kind in Optimizer:
        assert not given_by(OptimizerConfig(optimizer=kind)).values


@pytest.mark.parametrize(
    ("kind", "name", "text", "said"),
    [
        ("PRODIGY", "d_coef", "0", "must be a number, above 0, not 0.0"),
        ("PRODIGY", "beta3", "1", "0 to below 1; may be null"),
        ("ADAMW", "eps", "tiny", "'tiny' is not a number"),
        ("MUON", "ns_steps", "2.5", "not a whole number"),
        ("MUON", "ns_coeffs", "none", "one of original, quintic"),
    ],
)
def test_what_a_parameter_cannot_be_is_said(kind: str, name: str, text: str, said: str) -> None:
    (one,) = [one for one in parameters_of(Optimizer(kind)) if one.name == name]
    with pytest.raises(UserError, match=said):
        read_text(one, text)


def test_what_a_config_says_is_sorted_by_what_the_optimizer_has() -> None:
    config = OptimizerConfig(
        optimizer=Optimizer.RMSPROP, momentum=0.5, params={"alpha": 0.9, "d_coef": 2.0, "centred": True}
    )
    found = given_by(config)
    assert found.values == {"momentum": 0.5, "alpha": 0.9}
    assert list(found.strange) == ["d_coef", "centred"]
    assert "did you mean 'centered'?" in found.strange["centred"][1]


# -- in the window -------------------------------------------------------------------------------------------


def opened(hands: Hands) -> OptimizerWindow:
    page = training_page(hands)
    hands.focus(page.parameters)
    hands.keys("<Return>")
    window = hands.dialog()
    assert isinstance(window, OptimizerWindow)
    hands.rest()
    return window


def replace(hands: Hands, window: OptimizerWindow, name: str, text: str) -> None:
    hands.focus(window.rows[name].input)
    hands.keys("<Control-slash>", "<Delete>")
    hands.type(text)
    hands.keys("<KeyRelease-a>")


def config_of(hands: Hands) -> OptimizerConfig:
    return hands.window.state_.config.optimizer


@pytest.mark.gui
def test_parameters_are_set_reset_and_undone_by_keys(hands: Hands) -> None:
    hands.window.state_.set_value("optimizer.optimizer", Optimizer.PRODIGY)
    window = opened(hands)
    assert list(window.rows) == [one.name for one in parameters_of(Optimizer.PRODIGY)]
    hands.expect_focus(window.rows["beta1"].input)
    hands.type("0.8")
    hands.keys("<KeyRelease-8>")
    assert "Bold" in str(window.rows["beta1"].name.cget("style"))
    replace(hands, window, "d_coef", "2")
    replace(hands, window, "growth_rate", "1.02")
    switch = window.rows["safeguard_warmup"].input
    assert isinstance(switch, ttk.Combobox)
    hands.focus(switch)
    pick(hands, switch, "on")
    hands.keys("<Control-Return>")
    assert not window.winfo_exists()
    assert config_of(hands).beta1 == 0.8
    wanted = {"d_coef": 2.0, "growth_rate": 1.02, "safeguard_warmup": True}
    assert config_of(hands).params == wanted
    assert "d_coef = 2.0" in str(training_page(hands).set_now.cget("text"))
    hands.keys("<Control-z>", to=hands.window)
    assert (config_of(hands).beta1, config_of(hands).params) == (None, {})
    hands.keys("<Control-y>", to=hands.window)
    assert config_of(hands).params == wanted
    window = opened(hands)
    assert window.rows["d_coef"].input.get() == "2"
    hands.focus(window.rows["d_coef"].reset)
    hands.keys("<Return>")
    assert window.rows["d_coef"].input.get() == ""
    hands.keys("<Control-Return>")
    assert config_of(hands).params == {"growth_rate": 1.02, "safeguard_warmup": True}
    window = opened(hands)
    hands.focus(window.all)
    hands.keys("<Return>")
    hands.keys("<Control-Return>")
    assert (config_of(hands).beta1, config_of(hands).params) == (None, {})


@pytest.mark.gui
def test_refused_values_are_shown_at_their_row_until_they_are_mended(hands: Hands) -> None:
    window = opened(hands)
    row = window.rows["eps"]
    replace(hands, window, "eps", "2")
    hands.keys("<Control-Return>")
    hands.expect_focus(row.input)
    assert row.fault.winfo_ismapped() and "0 to 1" in str(row.fault.cget("text"))
    assert row.input.instate(["invalid"])
    replace(hands, window, "eps", "0.5")
    assert not row.fault.winfo_ismapped()
    hands.keys("<Escape>")
    assert not window.winfo_exists() and config_of(hands).eps is None


@pytest.mark.gui
def test_what_another_optimizer_left_is_refused_with_the_nearest_name(hands: Hands) -> None:
    hands.window.state_.set_value("optimizer.params", {"amsgrd": True, "amsgrad": False})
    window = opened(hands)
    hands.expect_focus(window.strange["amsgrd"])
    label = window.strange["amsgrd"].master.winfo_children()[0]
    assert "ADAMW has no argument 'amsgrd': did you mean 'amsgrad'?" in str(label.cget("text"))  # type: ignore[attr-defined]
    hands.keys("<Control-Return>")
    assert window.winfo_exists()
    hands.keys("<Return>")
    hands.expect_focus(window.rows["beta1"].input)
    hands.keys("<Control-Return>")
    assert not window.winfo_exists()
    assert config_of(hands).params == {"amsgrad": False}  # it was set to its default, and stays set
