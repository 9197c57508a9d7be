"""Emphasis in prompts: what is read, and what it does to text states."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modules.model.emphasis import WeightedPrompt, read_emphasis
from modules.modelSetup.registry import MODEL_SETUPS
from modules.modelSetup.training import check_settings
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UnsupportedError
from tests.tiny import tiny_model, tiny_setup

WEIGHTED = ["STABLE_DIFFUSION_15", "STABLE_DIFFUSION_XL_10_BASE", "STABLE_DIFFUSION_3", "FLUX_DEV_1"]


def spans(prompt: str) -> list[tuple[str, float]]:
    """(text, weight) of stretches with one weight."""
    read = read_emphasis(prompt)
    found: list[tuple[str, float]] = []
    for letter, weight in zip(read, read.weights, strict=True):
        if found and abs(found[-1][1] - weight) < 1e-9:
            found[-1] = (found[-1][0] + letter, weight)
        else:
            found.append((letter, weight))
    return [(text, round(weight, 4)) for text, weight in found]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("", []),
        ("a red cat", [("a red cat", 1.0)]),
        ("a (red) cat", [("a ", 1.0), ("red", 1.1), (" cat", 1.0)]),
        ("a ((red)) cat", [("a ", 1.0), ("red", 1.21), (" cat", 1.0)]),
        ("a [red] cat", [("a ", 1.0), ("red", 0.9091), (" cat", 1.0)]),
        ("a (red:1.5) cat", [("a ", 1.0), ("red", 1.5), (" cat", 1.0)]),
        ("(a (red:1.5) cat:2)", [("a ", 2.0), ("red", 3.0), (" cat", 2.0)]),
        ("a (red: 0.5 )", [("a ", 1.0), ("red", 0.5)]),
        (r"a \(red\) cat", [("a (red) cat", 1.0)]),
        ("time 12:30 :)", [("time 12:30 :)", 1.0)]),
        ("an (open bracket", [("an (open bracket", 1.0)]),
        ("a closed) one]", [("a closed) one]", 1.0)]),
        ("(a [b) c]", [("(a ", 1.0), ("b) c", 0.9091)]),
        ("(huge:99)", [("huge", 10.0)]),
    ],
)
def test_emphasis_is_read(prompt: str, expected: list[tuple[str, float]]) -> None:
    assert spans(prompt) == expected


@given(st.text(alphabet="ab ()[]\\:.1", max_size=40))
def test_any_text_is_read_with_a_weight_for_every_letter(prompt: str) -> None:
    read = read_emphasis(prompt)
    assert len(read) == len(read.weights)
    letters = [c for c in prompt if c in "ab"]
    assert [c for c in read if c in "ab"] == letters, "no word is lost"


@given(st.text(alphabet="abc ,.:", max_size=40))
def test_text_without_brackets_is_itself(prompt: str) -> None:
    read = read_emphasis(prompt)
    assert read == prompt and set(read.weights) <= {1.0}


@pytest.mark.parametrize("key", WEIGHTED)
def test_emphasis_changes_its_prompt_alone_and_only_if_asked(key: str) -> None:
    setup, model = tiny_setup(key), tiny_model(key)
    plain = setup.encode_text(model, ["a large red cat", "a dog"])
    as_text = setup.encode_text(model, ["a large (red:1.5) cat", "a dog"])
    assert not torch.allclose(plain["hidden_BLE"][0], as_text["hidden_BLE"][0]), "brackets are text"
    model.prompt_weighting = True
    loud = setup.encode_text(model, ["a large (red:1.5) cat", "a dog"])
    neutral = setup.encode_text(model, ["a large (red:1.0) cat", "a dog"])
    assert torch.equal(neutral["hidden_BLE"], plain["hidden_BLE"])
    assert torch.equal(loud["hidden_BLE"][1], plain["hidden_BLE"][1])
    changed = ~torch.isclose(loud["hidden_BLE"][0], plain["hidden_BLE"][0], rtol=1e-3).all(-1)
    if key != "STABLE_DIFFUSION_3":
        # there the two encoders' states are one after the other, each with a mean of its own
        mean = plain["hidden_BLE"][0].mean()
        assert torch.allclose(loud["hidden_BLE"][0].mean(), mean, rtol=1e-3, atol=1e-6)
    assert changed.any()


def test_the_emphasised_word_gains_most() -> None:
    setup, model = tiny_setup(), tiny_model()
    model.prompt_weighting = True
    plain = setup.encode_text(model, ["a red cat"])["hidden_BLE"][0]
    loud = setup.encode_text(model, ["a (red:2.0) cat"])["hidden_BLE"][0]
    gain = (loud.norm(dim=-1) / plain.norm(dim=-1))[:5]
    others = torch.cat([gain[:2], gain[3:]])
    assert torch.allclose(gain[2] / others, torch.tensor(2.0), rtol=1e-4), "start, a, red, cat, end"


def test_families_that_cannot_say_so() -> None:
    without = [key for key in MODEL_SETUPS.keys() if not tiny_setup(key).spec.prompt_weighting]  # noqa: SIM118
    assert without
    for key in without:
        config = TrainConfig.from_dict({"__version": 1, "model_type": key, "prompt_weighting": True})
        with pytest.raises(UnsupportedError, match="emphasis"):
            check_settings(config, tiny_setup(key).spec)


def test_a_weighted_prompt_is_a_string() -> None:
    made = WeightedPrompt("ab", (1.0, 2.0))
    assert isinstance(made, str) and made == "ab" and made.weights == (1.0, 2.0)
