"""The window of a sample, by keys and clicks."""

from __future__ import annotations

import pytest

from modules.ui.items.SampleWindow import SampleWindow
from modules.ui.pages.SamplingPage import SamplingPage
from modules.util.config.SampleConfig import READING, SampleConfig
from tests.ui.main.drivers import Hands

pytestmark = pytest.mark.gui


def opened(hands: Hands) -> SampleWindow:
    hands.window.show_page("sampling")
    hands.rest()
    page = hands.window.current_page()
    assert isinstance(page, SamplingPage)
    page.open_sample(0)
    window = hands.dialog()
    assert isinstance(window, SampleWindow)
    hands.wait(lambda: window.grab_status() == "local")
    return window


def shown(window: SampleWindow) -> list[str]:
    return [name for name in window.forms[0].rows if name in READING]


def faults(hands: Hands) -> list[str]:
    return [one.path for one in hands.window.state_.problems() if one.path.startswith("samples[")]


def test_a_sample_shows_how_its_family_can_read_prompts(hands: Hands) -> None:
    state = hands.window.state_
    state.set_value("samples", [SampleConfig(prompt="a fox")])
    window = opened(hands)
    assert shown(window) == ["text_encoder_1_layer_skip"]
    hands.focus(window.forms[0].rows["text_encoder_1_layer_skip"].input.focus_widget)
    hands.type("1")
    hands.click(hands.button("OK", window))
    (made,) = state.value("samples")
    assert made.reading() == {"text_encoder": {"layer_skip": 1}}
    # what the family before left behind can be emptied
    state.set_value("model_type", "FLUX_DEV_1")
    assert faults(hands) == ["samples[0].text_encoder_1_layer_skip"]
    window = opened(hands)
    expected = ["text_encoder_1_layer_skip", "text_encoder_2_sequence_length", "transformer_attention_mask"]
    assert shown(window) == expected
    length, padding = (window.forms[0].rows[name].input.focus_widget for name in expected[1:])
    assert length.winfo_children()[0]["text"] == padding.get() == "as in the run"
    hands.focus(window.forms[0].rows["text_encoder_1_layer_skip"].input.focus_widget)
    hands.keys("<Control-slash>", "<Delete>")
    hands.click(hands.button("OK", window))
    (made,) = state.value("samples")
    assert made.reading() == {}
    assert faults(hands) == []
