"""A run that keeps the gradients of every optimizer step, as they are before anything is done with them.

Started in several processes as ``recorded.py FOLDER ...``, for one run after another; ``run_recorded`` for one process.
Each folder has a ``config.json``, and a file ``lose`` where an image of the epoch is not to be scored.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from safetensors.torch import load_file, save_file

from modules.dataLoader.BaseDataLoader import AccumulationGroup
from modules.reward.base import RewardBatch, RewardError
from modules.reward.builtin import ImageStatistic
from modules.trainer.distributed import Processes
from modules.trainer.GenericTrainer import GenericTrainer
from modules.util.config.load import load_config

LOST = "/1/00001"
"""The image of an epoch that cannot be scored; its prompt's others lie in both processes."""


def assert_same(processes: Processes, tensors: Sequence[torch.Tensor | None], what: str) -> None:
    """All processes have these, bit for bit."""
    hasher = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        hasher.update(b"none" if tensor is None else tensor.detach().contiguous().numpy().tobytes())
    digests = processes.gather(hasher.hexdigest())
    assert len(digests) == processes.world_size and len(set(digests)) == 1, f"{what} differ: {digests}"


@contextmanager
def recording(file: Path, lose: bool, follow: Path | None) -> Iterator[None]:
    """Gradients of the steps within go to ``file``, of the first process; that all processes have them, and the same
    weights after every step, is asserted.

    Args:
        lose: whether an image of an epoch cannot be scored.
        follow: gradients of another run, which are then used instead, so that every step begins from its weights:
            else what is rounded differently in one step is multiplied in the next, by rewards that hardly differ.
    """
    found: dict[str, torch.Tensor] = {}
    others = {} if follow is None else load_file(follow)
    rank = 0
    reduce, score, take = Processes.reduce_gradients, ImageStatistic._score, GenericTrainer._take_step

    def kept(self: Processes, parameters: Sequence[torch.nn.Parameter]) -> None:
        nonlocal rank
        reduce(self, parameters)
        rank = self.rank
        step = len(found) // len(parameters)
        assert_same(self, [parameter.grad for parameter in parameters], f"gradients of step {step}")
        for i, parameter in enumerate(parameters):
            name = f"{step}.{i}"
            own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
            found[name] = own
            if name in others and parameter.grad is not None:
                parameter.grad.copy_(others[name])

    def losing(self: ImageStatistic, batch: RewardBatch) -> torch.Tensor:
        if lose and any(LOST in data["id"] for data in batch.metadata):
            raise RewardError("this one cannot be scored")
        return score(self, batch)

    def taken(self: GenericTrainer, group: AccumulationGroup) -> dict[str, float]:
        metrics = take(self, group)
        assert_same(self.processes, self.parts.parameters, f"weights after step {self.progress.global_step}")
        return metrics

    with (
        mock.patch.object(Processes, "reduce_gradients", kept),
        mock.patch.object(GenericTrainer, "_take_step", taken),
        mock.patch.object(ImageStatistic, "_score", losing),
    ):
        yield
    if rank == 0:
        save_file(found, file)


def run_recorded(folder: Path, processes: Processes, follow: Path | None = None) -> None:
    """Train; leaves ``gradients.safetensors`` and ``metrics.json`` in the folder."""
    from modules.runner.RunDirectory import RunDirectory
    from tests.trainer.online.builders import Listening

    config = load_config(folder / "config.json")
    heard = Listening()
    run = RunDirectory(config.workspace_dir)
    if processes.first:
        run.lock()
    with recording(folder / "gradients.safetensors", (folder / "lose").exists(), follow):
        GenericTrainer(config, run, heard, processes).run()
    if processes.first:
        (folder / "metrics.json").write_text(json.dumps(heard.metrics), encoding="utf-8")
        run.unlock()


def main(folders: Sequence[str]) -> None:
    torch.set_num_threads(1)
    processes = Processes.start("cpu")
    # not what the run says of itself
    assert torch.distributed.get_world_size() == 2
    both = torch.ones(1)
    torch.distributed.all_reduce(both)
    assert both.item() == 2.0
    for folder in folders:
        run_recorded(Path(folder), processes)
    processes.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
