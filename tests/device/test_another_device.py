"""Whole runs on a device with memory of its own: nothing on the CPU may meet what is on the device.

Each takes place in a process of its own (a device cannot be taken back), on tests that are written for the CPU.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from modules.util.enum.choices import GroupStrategy
from tests.children.warm import run_warm
from tests.device import second_device
from tests.trainer.online.test_steps import USUAL_WAYS, WAYS

FILES = [
    "tests/contracts/test_family_training.py",
    "tests/device/on_the_device.py",
    "tests/device/packed_on_the_device.py",
    "tests/device/main_memory_on_the_device.py",
    "tests/device/activations_on_the_device.py",
    "tests/device/steps_on_the_device.py",
    "tests/device/on_the_device_memory.py",
    "tests/trainer/online/test_steps.py",
    "tests/trainer/online/test_resume_online.py",
    "tests/trainer/resume/test_run_state.py",
    "tests/trainer/evaluate/test_validation.py",
    "tests/trainer/memory/test_what_is_on_the_device.py",
]
ALL = ("-m", "not gpu and not mgds")
HERE = "tests/device/on_the_device.py::"
MEMORY = "tests/device/on_the_device_memory.py::test_a_run_takes_what_was_predicted"
FAMILIES = [
    f"{HERE}test_every_family",
    f"{HERE}test_half_precision",
    f"{MEMORY}[SANA-half]",
    "tests/contracts/test_family_training.py::test_a_resumed_run_ends_with_the_same_weights[FLUX_DEV_1]",
]
ON_THE_DEVICE = "tests/trainer/memory/test_what_is_on_the_device.py::"
SETTINGS = [
    "tests/device/on_the_device.py",
    "tests/device/packed_on_the_device.py",
    "tests/device/main_memory_on_the_device.py",
    "tests/device/activations_on_the_device.py",
    "tests/device/steps_on_the_device.py",
    "tests/trainer/online/test_steps.py::test_all_ways_give_the_same_gradient",
    "tests/trainer/memory/test_what_is_on_the_device.py",
    *(f"--deselect={HERE}{name}" for name in ("test_every_family", "test_half_precision")),
    # runs of ``on_the_device.py`` and of online methods move the same parts at the same moments
    *(
        f"--deselect={ON_THE_DEVICE}test_what_encodes_is_alone_on_the_device[{name}]"
        for name in ("pairs", "pairs, kept scores of the reference", "pairs, others held back", "whole model")
    ),
    *(
        f"--deselect={ON_THE_DEVICE}test_{name}"
        for name in (
            "images_to_learn_from_are_made_with_all_there",
            "scores_to_keep_need_the_denoiser",
            "filling_the_cache_needs_no_denoiser",
            "nothing_is_moved_to_encode_what_is_kept",
            "captions_of_images_that_are_not_kept_are_dropped",
        )
    ),
    # another order of the same passes
    *(
        f"--deselect={ON_THE_DEVICE}test_what_is_not_kept_is_encoded_once_where_the_denoiser_is[{name}]"
        for name in ("FULL_CONCURRENT", "POLICY_CONCURRENT")
    ),
    # no run, so nothing on the device
    *(
        f"--deselect={ON_THE_DEVICE}{name}"
        for name in (
            "test_texts_encoded_ahead_make_the_same_images",
            "test_a_borrowed_part_comes_back_even_after_an_error",
            "test_a_borrowed_part_that_does_not_fit_comes_back_whole",
        )
    ),
    # GRPO with a reference is resumed above
    "--deselect=tests/trainer/online/test_steps.py::test_all_ways_give_the_same_gradient[grpo]",
]
PLUGIN = "tests.device.plugin"
SCRIPT = Path(__file__).with_name("run_tests.py")
SECONDS = 7200.0
SHARES = {"families": FAMILIES, "settings and methods": SETTINGS}
"""What stands for the rest: families, settings, every optimizer, every online method; for several workers at once."""


@pytest.fixture(scope="module")
def library() -> Path:
    """The folder of the device's library, compiled once for a source and a PyTorch, for all checkouts."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++ (Debian's package g++)")
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = caches / "tastemaker-tests" / "second_device"
    second_device.build(folder)
    return folder


def _run(*tests: str, plugin: str = PLUGIN, **environment: str) -> None:
    given = ["-q", "-p", plugin, "-p", "no:cacheprovider", *tests]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **environment}
    if plugin == PLUGIN:
        done = run_warm(SCRIPT, given, SECONDS, env)
    else:
        # this one changes the product's modules when they are imported
        line = [sys.executable, str(SCRIPT), *given]
        done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def _run_there(library: Path, *tests: str, plugin: str = PLUGIN) -> None:
    # bitsandbytes compiles its kernels for a device that it does not know, one for each shape
    eager = {"TORCHDYNAMO_DISABLE": "1"}
    _run(*tests, plugin=plugin, TEST_DEVICE=second_device.NAME, SECOND_DEVICE_FOLDER=str(library), **eager)


def test_every_strategy_of_online_methods_is_tried_there() -> None:
    test = "tests/trainer/online/test_steps.py::test_all_ways_give_the_same_gradient"
    assert test in SETTINGS
    tried: dict[str, set[str]] = {"rlhf_gspo_strategy": set(), "rlhf_dgpo_group_strategy": set()}
    for name in USUAL_WAYS:
        if f"--deselect={test}[{name}]" not in SETTINGS:
            for way in WAYS[name][2]:
                for setting in tried.keys() & way.keys():
                    tried[setting].add(way[setting])
    wanted = {choice.value for choice in GroupStrategy} - {"AUTO"}  # which is one of the others
    assert tried == dict.fromkeys(tried, wanted)


@pytest.mark.parametrize("share", SHARES)
def test_on_a_device_made_for_tests(share: str, library: Path) -> None:
    _run_there(library, *SHARES[share])


def test_where_it_is_taken_for_a_card(library: Path) -> None:
    _run_there(library, "tests/device/card_on_the_device.py", plugin="tests.device.card")


@pytest.mark.slow
def test_all_on_a_device_made_for_tests(library: Path) -> None:
    _run_there(library, *FILES, *ALL)


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    _run(*FILES, TEST_DEVICE="cuda")
