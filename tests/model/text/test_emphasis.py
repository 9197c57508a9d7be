"""Emphasis in prompts: what is read, and what it does to text states."""

from __future__ import annotations

import math
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modules.model.text.emphasis import LARGEST, WeightedPrompt, read_emphasis
from modules.modelSetup.registry import MODEL_SETUPS
from modules.modelSetup.training import check_settings
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UnsupportedError
from tests.tiny import tiny_model, tiny_setup
from tests.tiny.batches import images
from tests.tiny.stable_diffusion import CONTEXT

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
        ("((huge:9):9)", [("huge", 10.0)]),
        ("(none:0) (less:-1)", [("none", 0.0), (" ", 1.0), ("less", -1.0)]),
        ("(a:1.) (b:.5) (c: 2 )", [("a ", 1.0), ("b", 0.5), (" ", 1.0), ("c", 2.0)]),
        ("(a:1.2.3)", [("a:1.2.3", 1.1)]),
        (r"(a \(b\):1.5) \\(c)", [("a (b)", 1.5), (" \\", 1.0), ("c", 1.1)]),
        ("(red BREAK cat:1.2)", [("red BREAK cat", 1.2)]),
        ("[from:to:0.5] [a|b]", [("from:to:0.5", 0.9091), (" ", 1.0), ("a|b", 0.9091)]),
        ("((a) b", [("(", 1.0), ("a", 1.1), (" b", 1.0)]),
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


@given(st.text(alphabet="ab()[]\\:.+-0123456789 ٣²", max_size=60) | st.text(max_size=60))
def test_weights_are_numbers_within_bounds(prompt: str) -> None:
    weights = read_emphasis(prompt).weights
    assert all(math.isfinite(weight) and abs(weight) <= LARGEST for weight in weights)
    if not any(c.isdigit() for c in prompt):
        assert all(weight > 0 for weight in weights), "brackets alone never turn a word round"


@pytest.mark.parametrize(
    "prompt",
    [
        "(" * 10_000,
        "(" * 10_000 + "a" + ")" * 10_000,
        "[" * 10_000 + "a" + "]" * 10_000,
        "(" * 10_000 + "a" + ":9)" * 10_000,
        "(" * 10_000 + "a" + ":-9)" * 10_000,
        "([" * 10_000 + ")]" * 10_000,
        "(a:" + "1" * 100_000 + ")",
        "(a:" + "1" * 100_000,
        "(a:" + "1." * 50_000,
        "(a:" + " " * 100_000,
        "(a:1" + " " * 100_000,
        "\\" * 100_001,
        ":" * 100_000,
    ],
    ids=lambda prompt: prompt[:2] + prompt[-2:],
)
def test_hostile_text_is_read_in_no_time(prompt: str) -> None:
    start = time.process_time()
    read = read_emphasis(prompt)
    assert time.process_time() - start < 1.0
    assert len(read) == len(read.weights)
    assert all(math.isfinite(weight) and abs(weight) <= LARGEST for weight in read.weights)


def test_any_depth_is_emphasis() -> None:
    assert spans("(" * 10_000 + "a" + ")" * 10_000) == [("a", 10.0)]
    assert spans("[" * 60 + "a" + "]" * 60) == [("a", round(1.1**-60, 4))]
    assert spans("(" * 10_000) == [("(" * 10_000, 1.0)]


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


@pytest.mark.parametrize("key", WEIGHTED)
def test_the_deepest_emphasis_stays_finite(key: str) -> None:
    setup, model = tiny_setup(key), tiny_model(key)
    model.prompt_weighting = True
    cond = setup.encode_text(model, ["(" * 60 + "red" + ":10)" * 60 + " cat"])
    assert torch.isfinite(cond["hidden_BLE"]).all()


def test_weights_follow_their_words_to_the_cut_and_not_to_the_end_mark() -> None:
    setup, model = tiny_setup(), tiny_model()
    model.prompt_weighting = True
    fits = "a " * (CONTEXT - 3)
    plain = setup.encode_text(model, [fits + "red"])["hidden_BLE"][0]
    loud = setup.encode_text(model, [fits + "(red:2) (cat:5)"])["hidden_BLE"][0]
    gain = loud.norm(dim=-1) / plain.norm(dim=-1)
    ratio = gain / gain[0]
    expected = torch.ones(CONTEXT)
    expected[CONTEXT - 2] = 2.0
    assert torch.allclose(ratio, expected, rtol=1e-4), (
        "a word that was cut leaves its weight to no other token"
    )


def test_negative_prompts_are_weighted_too() -> None:
    setup, model = tiny_setup(), tiny_model()
    model.prompt_weighting = True

    def sample(negative: str) -> torch.Tensor:
        return images(setup, model, ["a cat"], negative, seeds=[1], steps=2, size=(32, 32))

    assert torch.equal(sample("(red:1.0)"), sample("red"))
    assert not torch.equal(sample("(red:5) dog"), sample("red dog"))


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
