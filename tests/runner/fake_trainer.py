"""A trainer without a model: claims a run, writes events, obeys orders. ``fake_trainer.py RUN BEHAVIOUR``."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from modules.runner.events import EventWriter
from modules.runner.RunDirectory import RunDirectory

OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
REFUSED = "rlhf_dpo_beta: -1 is not above 0"
LIFETIME = 60.0


def step(writer: EventWriter, number: int) -> None:
    progress = {"epoch": 0, "epoch_step": number, "epoch_sample": number, "global_step": number}
    writer.emit("step", progress=progress, metrics={"loss/train_step": 0.5}, total_steps=99, eta=1.0)


def obey(run: RunDirectory, writer: EventWriter, fails: str = "") -> None:
    """Take commands until told to stop; a command named ``fails`` goes wrong."""
    until, number = time.monotonic() + LIFETIME, 0
    while time.monotonic() < until:
        number += 1
        if number <= 3:
            step(writer, number)
        for command in run.take_commands()[0]:
            writer.answer(command, "taken")
            state = "failed" if command.kind == fails else "done"
            writer.answer(command, state, message="the disk is full" if state == "failed" else "")
            if command.kind == "stop":
                time.sleep(0.3)  # it has files to close
                writer.emit("run_finished", status="stopped")
                return
        time.sleep(0.01)
    raise TimeoutError("nobody stopped this trainer")


def die(behaviour: str) -> None:
    """End in one of the ways trainers do not report themselves."""
    if behaviour == "refused":
        print(f"error: {REFUSED}", flush=True)
        sys.exit(2)
    if behaviour == "oom":
        print(f"Traceback (most recent call last):\n{OUT_OF_MEMORY}", flush=True)
        sys.exit(1)
    if behaviour == "exit1":
        sys.exit(1)
    if behaviour == "raise":
        raise ValueError("shapes do not fit")
    os.kill(os.getpid(), getattr(signal, behaviour))


def main(path: str, behaviour: str) -> None:
    run = RunDirectory(path)
    if behaviour == "nothing":
        return
    if behaviour == "refused":  # before the run is claimed, as settings are
        die(behaviour)
    with run.locked(), run.writer() as writer:
        writer.emit("run_started")
        if behaviour == "obey" or behaviour.startswith("fail:"):
            obey(run, writer, behaviour.partition(":")[2])
        elif behaviour == "finish":
            step(writer, 1)
            writer.emit("run_finished", status="finished")
        elif behaviour == "linger":
            writer.emit("run_finished", status="finished")
        else:
            die(behaviour)
    if behaviour == "linger":
        time.sleep(LIFETIME)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
