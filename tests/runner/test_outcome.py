"""From an exit status and a log to advice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.runner.events import ERROR_CATEGORIES
from modules.runner.outcome import explain, interpret, last_lines, signal_name

TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 1\n'
CUDA = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


@pytest.mark.parametrize(
    ("code", "log", "category", "says"),
    [
        (0, "", "finished", "without an error"),
        (2, "loading\nerror: lora_rank: 0 is below 1\n", "user", "lora_rank"),
        (2, "", "user", "refused"),
        (1, TRACEBACK + CUDA, "gpu_memory", "graphics card"),
        (1, TRACEBACK + "RuntimeError: HIP out of memory.", "gpu_memory", "graphics card"),
        (1, "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory", "memory", "memory"),
        (-6, "terminate called after throwing an instance of 'std::bad_alloc'", "memory", "memory"),
        (1, TRACEBACK + "MemoryError", "memory", "memory"),
        (1, TRACEBACK + "OSError: [Errno 28] No space left on device: 'a.png'", "disk", "full"),
        (1, TRACEBACK + "ModuleNotFoundError: No module named 'peft'", "setup", "No module named 'peft'"),
        (1, TRACEBACK + "RuntimeError: CUDA error: no kernel image is available", "setup", "no kernel image"),
        (1, TRACEBACK + "ValueError: shapes do not fit", "bug", "shapes do not fit"),
        (1, "", "bug", "status 1"),
        (-9, "", "memory", "SIGKILL"),
        (137, "", "memory", "SIGKILL"),
        (-9, TRACEBACK + "ModuleNotFoundError: No module named 'triton'", "memory", "SIGKILL"),
        (-11, "Fatal Python error: Segmentation fault", "crash", "SIGSEGV"),
        (139, "", "crash", "SIGSEGV"),
        (0xC0000005, "", "crash", "SIGSEGV"),
        (-0x3FFFFFFB, "", "crash", "SIGSEGV"),
        (-15, "", "killed", "SIGTERM"),
        (-12, "", "killed", "SIGUSR2"),
        (1, "Signal 9 (SIGKILL) received by PID 7", "memory", "SIGKILL"),
        (1, "  exitcode  : -11 (pid: 7)", "crash", "SIGSEGV"),
        (None, "", "killed", "stopped unexpectedly"),
        (None, TRACEBACK + CUDA, "gpu_memory", "graphics card"),
    ],
)
def test_ends_and_what_is_said_about_them(code, log, category, says):
    outcome = interpret(code, log)
    assert outcome.category == category
    assert says in outcome.message
    assert outcome.ok == (category == "finished")
    assert outcome.ok or category in ERROR_CATEGORIES
    assert outcome.hint or category in ("finished", "user", "killed")


@given(st.one_of(st.none(), st.integers(-(2**31), 2**32)), st.text(max_size=300))
def test_every_end_has_a_category_and_a_sentence(code, log):
    outcome = interpret(code, log)
    assert outcome.message
    assert outcome.category in (*ERROR_CATEGORIES, "finished")
    assert outcome.ok == (code == 0)


def test_a_refusal_is_told_without_what_was_printed_before():
    log = "warning: few pairs\nerror: 2 problems found\n- a: x\n  -> y\n- b: z\n"
    assert interpret(2, log).message == "2 problems found\n- a: x\n  -> y\n- b: z"
    assert (
        interpret(2, "usage: train.py\ntrain.py: error: what?").message
        == "usage: train.py\ntrain.py: error: what?"
    )


def test_the_cause_is_found_before_its_consequences():
    log = f"{TRACEBACK}{CUDA}\n{TRACEBACK}OSError: [Errno 28] No space left on device"
    assert explain(log).category == "gpu_memory"
    assert explain("all is well") is None


@pytest.mark.parametrize(
    ("code", "name"), [(None, None), (0, None), (1, None), (255, None), (-9, "SIGKILL"), (130, "SIGINT")]
)
def test_signals_by_status(code, name):
    assert signal_name(code) == name


def test_last_lines_of_a_progress_bar():
    assert last_lines("a\r\n\n10%\r50%\r100%\n\nb \n", 2) == "100%\nb"
    assert last_lines("", 3) == ""
    assert len(last_lines("x" * 10_000, 1)) == 4000
