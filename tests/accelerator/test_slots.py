"""The ``acceleration`` section: how it may be written, and what each way of training allows."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.accelerator.base import ACCELERATORS, Accelerator, Params
from modules.accelerator.plan import build_plan
from modules.accelerator.slots import PARADIGMS, check_slots, parse_slots
from modules.spec.registry import MODES
from modules.util.errors import ConfigError, UserError, UserErrors
from tests.source_tree import ROOT

NATIVE = {"name": "attention_backend", "params": {"backend": "native"}}
CACHE = {"name": "diffusers_cache"}
COMPILE = {"name": "torch_compile"}


def test_the_package_is_scanned():
    assert ACCELERATORS.keys() == ["attention_backend", "diffusers_cache", "torch_compile"]
    facts = {
        name: (kind.safety, kind.stage, kind.requires_grad_rollout) for name, kind in ACCELERATORS.items()
    }
    assert facts == {
        "attention_backend": ("lossless", "both", False),
        "diffusers_cache": ("lossy", "rollout", False),
        "torch_compile": ("lossy", "both", True),
    }


def test_every_accelerator_is_complete():
    for name, kind in ACCELERATORS.items():
        assert issubclass(kind, Accelerator) and kind.name == name
        assert kind.__doc__


def test_order_is_kept_and_shorthand_is_a_list_of_one():
    slots = parse_slots({"shared": [NATIVE, "torch_compile"], "rollout": "diffusers_cache"})
    assert [one.name for one in slots.shared] == ["attention_backend", "torch_compile"]
    assert slots.shared[0].params == {"backend": "native"}
    assert slots.shared[1].field == "acceleration.shared[1]"
    assert [one.name for one in slots.rollout] == ["diffusers_cache"]
    assert parse_slots({"rollout": CACHE}).rollout[0].name == "diffusers_cache"


@pytest.mark.parametrize("empty", [None, {}, {"shared": []}, {"shared": None, "rollout": []}])
def test_nothing_is_a_setting_too(empty):
    assert not parse_slots(empty)
    plan = build_plan(empty, "offline")
    assert plan.names == [] and plan.warnings == [] and plan.lossless and not plan.forces_grad


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "not a mapping"),
        ({"both": []}, "acceleration.both"),
        ({"shared": 3}, "not a list"),
        ({"shared": [3]}, r"acceleration\.shared\[0\]: 3 is not an accelerator"),
        ({"shared": [{"params": {}}]}, "without a name"),
        ({"shared": [{"name": "torch_compile", "parms": {}}]}, "unknown key 'parms'"),
        ({"shared": [{"name": "torch_compile", "params": [1]}]}, "not a mapping of parameters"),
        ({"attn_backend": "flash"}, "attention_backend accelerator"),
    ],
)
def test_what_is_no_entry(value, words):
    with pytest.raises(ConfigError, match=words):
        parse_slots(value)


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["shared", "rollout", "name", "params", "x"]), inner, max_size=3
            )
        ),
        max_leaves=8,
    )
)
def test_any_value_is_read_or_refused(value):
    try:
        check_slots(parse_slots(value), "decoupled")
    except UserError as error:
        assert "acceleration" in str(error)


def test_unknown_names_list_the_known_ones():
    with pytest.raises(ConfigError, match="attention_backend, diffusers_cache, torch_compile"):
        build_plan({"shared": "torch_compiler"}, "decoupled")


@pytest.mark.parametrize(
    ("name", "words"),
    [("cache_dit", "use diffusers_cache"), ("model.attn_backend", "attention_backend accelerator")],
)
@pytest.mark.parametrize("slot", ["shared", "rollout"])
def test_removed_names_say_what_replaces_them(slot, name, words):
    with pytest.raises(ConfigError, match=words):
        build_plan({slot: [name]}, "decoupled")


def test_twice_in_a_slot():
    with pytest.raises(ConfigError, match=r"acceleration\.shared\[1\]: torch_compile is listed twice"):
        build_plan({"shared": [COMPILE, COMPILE]}, "decoupled")


@pytest.mark.parametrize("paradigm", PARADIGMS)
def test_each_stage_has_its_slot(paradigm):
    with pytest.raises(ConfigError, match=r"move it to acceleration\.rollout"):
        build_plan({"shared": [CACHE]}, paradigm)
    for name in (NATIVE, COMPILE):
        with pytest.raises(ConfigError, match=r"move it to acceleration\.shared"):
            build_plan({"rollout": [name]}, paradigm)


@pytest.mark.parametrize(("paradigm", "words"), [("coupled", "log-probabilities"), ("offline", "makes none")])
def test_a_lossy_rollout_is_refused(paradigm, words):
    with pytest.raises(ConfigError, match=words):
        build_plan({"rollout": [CACHE]}, paradigm)


def test_every_paradigm_is_that_of_a_mode():
    assert set(PARADIGMS) == {mode.paradigm for mode in MODES.values()}


def test_modes_that_need_only_images_allow_everything():
    plan = build_plan({"shared": [NATIVE, COMPILE], "rollout": [CACHE]}, "decoupled")
    assert plan.names == ["attention_backend", "torch_compile", "diffusers_cache"]
    assert plan.warnings == [] and not plan.lossless and not plan.forces_grad


def test_lossy_in_both_stages_is_a_warning_for_coupled_modes():
    plan = build_plan({"shared": [COMPILE]}, "coupled")
    assert len(plan.warnings) == 1 and "close to 1, not 1" in plan.warnings[0]
    assert plan.forces_grad and not plan.lossless
    exact = build_plan({"shared": [NATIVE]}, "coupled")
    assert exact.warnings == [] and exact.lossless and not exact.forces_grad


def test_attention_before_compilation():
    assert any(
        "put it first" in one for one in build_plan({"shared": [COMPILE, NATIVE]}, "decoupled").warnings
    )
    assert not build_plan({"shared": [NATIVE, COMPILE]}, "decoupled").warnings


@pytest.mark.parametrize(
    ("params", "graphs"),
    [
        ({"mode": "reduce-overhead"}, True),
        ({"mode": "max-autotune"}, True),
        ({"backend": "cudagraphs"}, True),
        ({"options": {"triton.cudagraphs": True}}, True),
        ({"options": {"triton.cudagraphs": False}}, False),
        ({"mode": "max-autotune-no-cudagraphs"}, False),
        ({}, False),
    ],
)
@pytest.mark.parametrize("swaps", [True, False])
def test_cuda_graphs_and_swapped_weights(params, graphs, swaps):
    section = {"shared": [{"name": "torch_compile", "params": params}]}
    if graphs and swaps:
        with pytest.raises(ConfigError, match="addresses of the weights"):
            build_plan(section, "coupled", swaps_weights=swaps)
    else:
        assert build_plan(section, "coupled", swaps_weights=swaps).names == ["torch_compile"]


def test_all_faults_are_reported_together():
    with pytest.raises(UserErrors) as caught:
        build_plan({"shared": ["diffusers_cache", "nothing"], "rollout": [COMPILE, "cache_dit"]}, "decoupled")
    assert len(caught.value.errors) == 4


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"name": "attention_backend"}, r"acceleration\.shared\.params\.backend: no backend is named"),
        ({"name": "attention_backend", "params": {"backend": 3}}, "3 is not text"),
        ({"name": "attention_backend", "params": {"backend": "native", "x": 1}}, "unknown parameter 'x'"),
        ({"name": "torch_compile", "params": {"scope": "half"}}, "one of: regional, full"),
        ({"name": "torch_compile", "params": {"mode": "fast"}}, "one of: default"),
        ({"name": "torch_compile", "params": {"dynamic": "yes"}}, "not true or false"),
        ({"name": "torch_compile", "params": {"mode": "default", "options": {"a": 1}}}, "exclude each other"),
        ({"name": "torch_compile", "params": {"options": 3}}, "not a mapping"),
    ],
)
def test_parameters_are_checked(entry, words):
    with pytest.raises(ConfigError, match=words):
        build_plan({"shared": entry}, "decoupled")


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"method": "CacheDit"}, "one of: FirstBlockCache"),
        ({"threshold": -1}, "not a non-negative number"),
        ({"threshold": float("nan")}, "nan is not"),
        ({"threshold": True}, "True is not"),
        ({"cache_interval": 3}, "FirstBlockCache has no parameter 'cache_interval'"),
        ({"method": "TaylorSeerCache", "cache_interval": 0}, "not a positive whole number"),
        ({"method": "TaylorSeerCache", "taylor_factors_dtype": "int8"}, "float32, float16 or bfloat16"),
        ({"method": "MagCache"}, "magnitude ratios"),
        ({"method": "FasterCache", "spatial_attention_timestep_skip_range": [5, 1]}, r"two whole numbers"),
    ],
)
def test_parameters_of_caches_are_checked(params, words):
    with pytest.raises(ConfigError, match=words):
        build_plan({"rollout": {"name": "diffusers_cache", "params": params}}, "decoupled")


def test_few_steps_are_worth_a_word():
    section = {"rollout": "diffusers_cache"}
    assert "reuses little" in build_plan(section, "decoupled", num_inference_steps=8).warnings[0]
    assert not build_plan(section, "decoupled", num_inference_steps=9).warnings
    ratios = {"method": "MagCache", "mag_ratios": [1.0, 1.0]}
    section = {"rollout": {"name": "diffusers_cache", "params": ratios}}
    assert "28 steps" in build_plan(section, "decoupled", num_inference_steps=20).warnings[0]


def test_an_unknown_paradigm_is_a_bug():
    with pytest.raises(ValueError, match="sideways"):
        build_plan(None, "sideways")


def test_parameters_left_over_are_refused():
    params = Params({"a": "x", "b": 1}, "here")
    assert params.text("a") == "x"
    with pytest.raises(ConfigError, match=r"here\.b: unknown parameter 'b'"):
        params.finish()


@pytest.mark.slow
def test_checking_a_section_loads_no_torch():
    program = (
        "import sys\nfrom modules.accelerator.plan import build_plan\n"
        "build_plan({'shared': [{'name': 'attention_backend', 'params': {'backend': 'flash'}}, 'torch_compile'],"
        "'rollout': 'diffusers_cache'}, 'decoupled')\n"
        "print(sorted({'torch', 'diffusers', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
