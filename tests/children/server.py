"""A process that has imported what programs of one kind import, and becomes such a program in each of its forks.

Started by ``warm.py`` with two arguments, the number of its socket and the kind. A request is a line of JSON
(arguments, folder, environment) with four open files: standard input, output, errors, and where the exit status goes.
The reply is the number of the new process. It ends when the other end of the socket is closed.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LONGEST_REQUEST = 4 << 20


def preload_training() -> None:
    """Import what nearly every run of a tiny model imports."""
    import torch._dynamo
    import torch.distributed  # noqa: F401
    from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel  # noqa: F401
    from transformers import CLIPTextModel, CLIPTokenizer  # noqa: F401

    import modules.dataLoader.preflight
    import modules.modelSetup.families.StableDiffusionSetup
    import modules.trainer.assembly
    import modules.trainer.GenericTrainer
    import modules.trainer.online.OnlineLoader  # noqa: F401


def preload_picking() -> None:
    """Import what the commands import in which a person picks and compares images."""
    import scripts.curate
    import scripts.taste  # noqa: F401


PRELOADS = {"training": preload_training, "picking": preload_picking}


def draw_anew() -> None:
    """Random numbers of a fork must not be those of the others."""
    import numpy

    numpy.random.seed()
    if "torch" in sys.modules:
        import torch

        torch.seed()


def serve(control: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Fork for each request; returns in a fork, with its request and its files, and at the end of all with ``None``."""
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    reports: dict[int, int] = {}
    with selectors.DefaultSelector() as ready:
        ready.register(control, selectors.EVENT_READ)
        ready.register(awake, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fd == awake:
                    os.read(awake, 4096)
                    report_ended(reports)
                    continue
                request, files = received(control)
                if request is None:
                    return None
                if not (pid := os.fork()):
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for other in (awake, wake, *reports.values()):
                        os.close(other)
                    return request, files
                reports[pid] = files.pop()
                for file in files:
                    os.close(file)
                control.sendall(f"pid {pid}\n".encode())


def report_ended(reports: dict[int, int]) -> None:
    """Write the exit status of each fork that has ended to where it is waited for."""
    while reports:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        report = reports.pop(pid)
        with contextlib.suppress(BrokenPipeError):  # nobody waits for it
            os.write(report, status.to_bytes(4, "little"))
        os.close(report)


def received(control: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    line, files, _, _ = socket.recv_fds(control, LONGEST_REQUEST, 4)
    while line and not line.endswith(b"\n"):
        line += control.recv(LONGEST_REQUEST)
    return (json.loads(line) if line else None), files


def open_streams() -> None:
    """Open the standard streams anew: those of the server know whether its own files could seek."""
    kept = {name: getattr(sys, name) for name in ("stdin", "stdout", "stderr")}
    for number, (name, old) in enumerate(kept.items()):
        buffering = 1 if name == "stderr" else -1
        stream = open(number, "w" if number else "r", buffering, old.encoding, old.errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def become(request: dict[str, Any], files: list[int]) -> None:
    """Run a program as a new process of Python would. What it raises goes to the interpreter."""
    draw_anew()
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    for file in files:
        if file > 2:
            os.close(file)
    open_streams()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    script, *rest = request["arguments"]
    sys.argv = [script, *rest]
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    sys.path.insert(0, str(ROOT))
    PRELOADS[sys.argv[2]]()
    sys.path.remove(str(ROOT))
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        raise RuntimeError("the imports started threads, which no fork would have")
    gc.collect()
    gc.freeze()
    control.sendall(b"ready\n")
    found = serve(control)
    control.close()
    if found is not None:
        become(*found)


if __name__ == "__main__":
    main()
