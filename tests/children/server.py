"""A process that has imported what a training program imports, and becomes such a program in each of its forks.

Started by ``warm.py`` with one argument, the number of its socket. A request is a line of JSON (arguments, folder,
environment) with four open files: standard input, output, errors, and where the exit status goes. The reply is the
number of the new process. It ends when the other end of the socket is closed.
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


def preload() -> None:
    """Import what nearly every run of a tiny model imports."""
    sys.path.insert(0, str(ROOT))
    import torch._dynamo
    import torch.distributed  # noqa: F401
    from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel  # noqa: F401
    from transformers import CLIPTextModel, CLIPTokenizer  # noqa: F401

    import modules.dataLoader.preflight
    import modules.modelSetup.families.StableDiffusionSetup
    import modules.trainer.assembly
    import modules.trainer.GenericTrainer
    import modules.trainer.online.OnlineLoader  # noqa: F401

    sys.path.remove(str(ROOT))


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


def become(request: dict[str, Any], files: list[int]) -> None:
    """Run a program as a new process of Python would. What it raises goes to the interpreter."""
    import numpy
    import torch

    numpy.random.seed()
    torch.seed()
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    for file in files:
        if file > 2:
            os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    script, *rest = request["arguments"]
    sys.argv = [script, *rest]
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    preload()
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
