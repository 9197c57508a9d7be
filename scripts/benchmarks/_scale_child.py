"""One start of a trainer's data side in a separate process, and what it took as JSON. Started by ``scale``.

The demo's model is loaded for its tokenizer, its fingerprints and its layout. Images are encoded by averaging and
prompts by counting: what encoders take is not what is measured here.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import psutil
import torch

from modules.dataLoader.BaseDataLoader import BaseDataLoader
from modules.dataLoader.create import create_data_loader
from modules.dataLoader.preflight import inspect_data
from modules.model.batch import NO_SOURCES, Conditioning, Sources
from modules.model.Model import Model
from modules.modelSetup import training
from modules.modelSetup.families.StableDiffusionSetup import StableDiffusionSetup
from modules.util.config.load import read_config
from modules.util.config.TrainConfig import TrainConfig

STATUS = Path("/proc/self/status")
LOOK_SECONDS = 0.05


class CountingSetup(StableDiffusionSetup):
    """Stable Diffusion with encoders that take no time and count their calls."""

    images = texts = 0

    def encode_image(self, model: Model, rgb_BCHW: torch.Tensor) -> torch.Tensor:
        self.images += len(rgb_BCHW)
        mean_BChw = torch.nn.functional.avg_pool2d(rgb_BCHW, model.latent_factor)
        return torch.cat([mean_BChw, mean_BChw[:, :1]], 1)

    def text_states(self, model: Model, prompts: Sequence[str], seen: Sources = NO_SOURCES) -> Conditioning:
        self.texts += len(prompts)
        return Conditioning({"hidden_BLE": torch.tensor([[[float(len(prompt))]] for prompt in prompts])})


def memory() -> int:
    """Bytes of main memory used by this process alone; mapped files are not counted, as they can be dropped
    at any time.
    """
    if STATUS.is_file():
        for line in STATUS.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return int(psutil.Process().memory_info().rss)


@dataclass
class Taken:
    """Cost of a stretch of work: wall and processor seconds, additional bytes at its peak and at its end."""

    wall: float = 0.0
    cpu: float = 0.0
    peak: int = 0
    kept: int = 0

    @contextmanager
    def measured(self) -> Iterator[None]:
        before, stop = memory(), threading.Event()

        def look() -> None:
            while not stop.wait(LOOK_SECONDS):
                self.peak = max(self.peak, memory() - before)

        watcher = threading.Thread(target=look, daemon=True)
        watcher.start()
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self.wall, self.cpu = time.perf_counter() - wall, time.process_time() - cpu
            stop.set()
            watcher.join()
            self.kept = memory() - before
            self.peak = max(self.peak, self.kept)


def started(config: TrainConfig) -> tuple[BaseDataLoader, CountingSetup, Taken, dict[str, float]]:
    """Start a loader and load its first batch; return it with the seconds of each stage."""
    setup, taken = CountingSetup(), Taken()
    model = training.load_model(setup, config)
    model.fingerprints()
    marks: dict[str, float] = {}

    def tell(what: str, done: int, total: int) -> None:
        marks.setdefault(what, time.perf_counter())

    with taken.measured():
        begun = time.perf_counter()
        loader = create_data_loader(config, model, setup, progress=tell)
        built = time.perf_counter()
        loader.prepare()
        prepared = time.perf_counter()
        batch = next(loader.accumulation_groups(SimpleNamespace(epoch=0, epoch_step=0)))
        assert batch.samples
        first = time.perf_counter()
    parts = {"build": built - begun, "prepare": prepared - built, "first batch": first - prepared}
    return loader, setup, taken, parts


def plans(loader: BaseDataLoader, count: int) -> list[float]:
    """Processor seconds for the order and the buckets of each epoch after the first."""
    seconds = []
    for epoch in range(1, count + 1):
        begun = time.process_time()
        loader.sampler.step(epoch, 0)
        seconds.append(time.process_time() - begun)
    return seconds


def walked(loader: BaseDataLoader, epochs: int) -> tuple[list[int], list[float]]:
    """Memory after each of several whole epochs, and processor seconds of each."""
    kept, seconds = [], []
    begun = time.process_time()
    for group in loader.accumulation_groups(SimpleNamespace(epoch=0, epoch_step=0)):
        if group.last:
            kept.append(memory())
            seconds.append(time.process_time() - begun)
            begun = time.process_time()
            if len(kept) == epochs:
                break
    return kept, seconds


def measured(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Cost and result of one start, or of one check before a run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("start", "check"))
    parser.add_argument("config", type=Path)
    parser.add_argument("--plans", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=0)
    options = parser.parse_args(arguments)
    config: TrainConfig = read_config(json.loads(options.config.read_text(encoding="utf-8")))
    found: dict[str, Any]
    if options.what == "check":
        taken = Taken()
        with taken.measured():
            report = inspect_data(config)
        found = {"faults": [str(fault) for fault in report.faults], "units": report.units}
    else:
        loader, setup, taken, parts = started(config)
        found = {"parts": parts, "images": setup.images, "texts": setup.texts, "units": len(loader)}
        found["plans"] = plans(loader, options.plans)
        found["memory"], found["epochs"] = walked(loader, options.epochs) if options.epochs else ([], [])
        loader.close()
    return {**found, **asdict(taken)}


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    torch.set_num_threads(1)
    print(json.dumps(measured()))
