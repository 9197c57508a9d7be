"""A trainer that trains nothing and reports as one does; run as a script in a process of its own."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

TRAINER = Path(__file__)
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from PIL import Image  # noqa: E402

from modules.runner.events import SAMPLING, EventWriter  # noqa: E402
from modules.runner.RunDirectory import RunDirectory  # noqa: E402


def sample(run: RunDirectory, writer: EventWriter, step: int) -> None:
    path = run.samples_dir / "0 - a fox" / f"{time.time_ns()}-{step}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (64, 64), (step % 256, 90, 160)).save(path)
    place = {"global_step": step}
    writer.emit(
        "sample", progress=place, path=path.relative_to(run.path).as_posix(), prompt="a fox", number=0
    )


def train(run: RunDirectory, options: argparse.Namespace) -> int:
    with run.locked(), run.writer() as writer:
        total = options.steps
        writer.emit(
            "run_started", total_steps=total, device="cpu", progress={"global_step": 0}, resumed_from=None
        )
        if options.sampling:  # a sample that takes its time
            writer.emit("phase", name=f"{SAMPLING} 1 of 2, denoising step", done=5, total=20)
            while not any(command.kind == "stop" for command in run.take_commands()[0]):
                time.sleep(0.02)
        sample(run, writer, 0)
        print("training begins", flush=True)
        step, paused = 0, False
        while step < total:
            for command in run.take_commands()[0]:
                if command.kind == "stop":
                    writer.answer(command, "done")
                    writer.emit("run_finished", status="stopped", progress={"global_step": step})
                    return 0
                paused = {"pause": True, "resume": False}.get(command.kind, paused)
                if command.kind == "sample":
                    sample(run, writer, step)
                writer.answer(command, "done")
            time.sleep(options.pace)
            if paused:
                continue
            step += 1
            place = {"epoch": 0, "epoch_step": step, "epoch_sample": step, "global_step": step}
            metrics = {"loss/train_step": 1.0 / step, "dpo/accuracy": step / total}
            writer.emit("step", progress=place, metrics=metrics, total_steps=total, eta=(total - step) * 0.1)
            if options.fail == "memory" and step == total // 2:
                print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", flush=True)
                return 1
            if options.fail == "disk" and step == total // 2:
                print(
                    "error: the event file events.jsonl cannot be written: No space left on device",
                    flush=True,
                )
                return 2
        sample(run, writer, total)
        writer.emit("run_finished", status="finished", progress={"global_step": total})
    return 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--fail", default="")
    parser.add_argument("--sampling", action="store_true")
    options = parser.parse_args()
    return train(RunDirectory(options.run), options)


if __name__ == "__main__":
    sys.exit(main())
