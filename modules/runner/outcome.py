"""The reason why a training process ended, in terms the user can act on."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, replace

EXIT_OK = 0
EXIT_USER_ERROR = 2
TAIL_BYTES = 64 * 1024
_SHOWN_LINES = 12
_SHOWN_LETTERS = 4000


@dataclass(frozen=True)
class Outcome:
    """The way a process ended.

    Args:
        category: ``finished``, ``stopped``, or one of ``events.ERROR_CATEGORIES``.
        message: what happened, one sentence (for a ``UserError``, its own text).
        hint: what to do about it; empty if nothing.
    """

    category: str
    message: str
    hint: str = ""

    @property
    def ok(self) -> bool:
        return self.category in ("finished", "stopped")


_LESS_GPU_MEMORY = (
    "close other programs that use the graphics card, and switch gradient checkpointing on: the run can resume "
    "with it. Or start a new run: lower the batch size or the resolution, or set rlhf_dpo_execution_mode to "
    "SEQUENTIAL or AUTO"
)
_LESS_MEMORY = (
    "close other programs, lower dataloader_threads and cache_batch_size, set weight_dtype to BFLOAT_16 or "
    "FLOAT_16, or add swap space"
)
# Most telling first: running out of memory often causes further errors.
_LOG_PATTERNS = (
    (
        re.compile(
            r"(CUDA|HIP|MPS backend|XPU) (error: )?out of memory|\bOutOfMemoryError\b"
            r"|CUBLAS_STATUS_ALLOC_FAILED"
        ),
        Outcome("gpu_memory", "the graphics card ran out of memory", _LESS_GPU_MEMORY),
    ),
    (
        re.compile(
            r"DefaultCPUAllocator: .*allocate memory|std::bad_alloc|Cannot allocate memory|^MemoryError", re.M
        ),
        Outcome("memory", "the computer ran out of memory", _LESS_MEMORY),
    ),
    (
        re.compile(r"No space left on device|Disk quota exceeded|not enough space on the disk", re.I),
        Outcome(
            "disk",
            "the disk is full",
            "free some space (old backups, caches)",
        ),
    ),
    (
        re.compile(r"^(?P<detail>(ModuleNotFoundError|ImportError): .*)$", re.M),
        Outcome(
            "setup", "a package is missing or broken", "run scripts/setup.sh (start-ui.bat on Windows) again"
        ),
    ),
    (
        re.compile(
            r"(?P<detail>.*(CUDA driver version is insufficient|no kernel image is available|CUDA error: ).*)"
        ),
        Outcome(
            "setup",
            "the graphics card or its driver refused to work",
            "update the driver; if that does not help, set train_device to cpu to check whether everything else "
            "works",
        ),
    ),
)
_LOST = re.compile(r"process \d+\b.* was killed")
"""One of several processes of a run was lost; the rest has ended because of it."""
_CRASH = {"SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT"}
_WINDOWS = {
    0xC0000005: "SIGSEGV",
    0xC00000FD: "SIGSEGV",
    0xC0000374: "SIGABRT",
    0xC0000409: "SIGABRT",
    0xC000013A: "SIGINT",
    0xC0000017: "SIGKILL",
}


def signal_name(returncode: int | None) -> str | None:
    """The signal behind an exit status: ``-9``, ``137`` (through a shell) or a Windows status."""
    if returncode is None:
        return None
    if returncode & 0xFFFFFFFF in _WINDOWS:
        return _WINDOWS[returncode & 0xFFFFFFFF]
    number = -returncode if returncode < 0 else returncode - 128
    try:
        return signal.Signals(number).name
    except ValueError:
        return None


def interpret(returncode: int | None, log: str) -> Outcome:
    """Find out why a trainer ended that did not report it.

    Args:
        returncode: its exit status (negative: the signal that ended it); ``None`` if unknown, because another
            process started it.
        log: the end of its log.
    """
    if returncode == EXIT_OK:
        return Outcome("finished", "the process ended without an error")
    if returncode == EXIT_USER_ERROR:
        return _refused(_refusal(log))
    name = signal_name(returncode) or _signal_in(log)
    # A process killed by SIGKILL cannot print anything, so the log is older.
    if name != "SIGKILL" and (known := explain(log)) is not None:
        return known
    if name is not None:
        return _by_signal(name)
    if "Traceback (most recent call last)" in log:
        hint = "this is a bug of the program: please report it with log.txt of the run"
        return Outcome("bug", f"the trainer failed: {last_lines(log, 1)}", hint)
    if returncode is None:
        hint = f"if nobody ended it: {_LESS_MEMORY}"
        return Outcome("killed", "training stopped unexpectedly, probably because memory ran out", hint)
    return Outcome("bug", f"the trainer ended with status {returncode}", "log.txt of the run may say why")


def _refused(text: str) -> Outcome:
    if _LOST.match(text):
        message, _, hint = text.partition("\n  -> ")
        return Outcome("killed", message, hint)
    return Outcome("user", text or "the settings were refused")


def _refusal(log: str) -> str:
    """The text of a command line after its last ``error:``, else its last lines."""
    *_, found = re.split(r"^error: ", log, flags=re.M)
    return last_lines(log, _SHOWN_LINES) if found == log else found.strip()[:_SHOWN_LETTERS]


def explain(text: str) -> Outcome | None:
    """Explain a cause in a traceback or log that the user can fix; ``None`` if there is none."""
    for pattern, outcome in _LOG_PATTERNS:
        if match := pattern.search(text):
            detail = match.groupdict().get("detail")
            return replace(outcome, message=f"{outcome.message}: {detail}") if detail else outcome
    return None


def _by_signal(name: str) -> Outcome:
    if name == "SIGKILL":
        return Outcome(
            "memory",
            "the system ended the trainer, most likely because memory ran out (SIGKILL)",
            _LESS_MEMORY,
        )
    if name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK"):
        return Outcome("killed", f"the trainer was ended from outside ({name})")
    if name in _CRASH:
        return Outcome(
            "crash",
            f"the trainer crashed inside a library ({name})",
            "log.txt shows where; a new driver, train_device cpu, or a fresh setup (remove .venv) may help",
        )
    return Outcome("killed", f"the trainer was ended by {name}")


def _signal_in(log: str) -> str | None:
    """The signal that ended a worker, as reported by its parent process."""
    match = re.search(r"Signal \d+ \((SIG[A-Z]+)\)|exitcode\s*:\s*-(\d+)", log)
    if match is None:
        return None
    return match.group(1) or signal_name(-int(match.group(2)))


def last_lines(log: str, count: int) -> str:
    """The last lines of a log that are not empty. Of a progress bar, only the final state counts."""
    lines = [line.rpartition("\r")[2].rstrip() for line in log.replace("\r\n", "\n").split("\n")]
    return "\n".join([line for line in lines if line][-count:])[-_SHOWN_LETTERS:]
