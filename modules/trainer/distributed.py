"""Several processes that train one adapter together: the only module that communicates between processes.

Weights are replicated. Every process computes the gradient of its share of the step, one flat sum makes them all
equal, and every process takes the same optimizer step. Started by ``torchrun`` or ``accelerate launch``, both of
which describe the group in environment variables; without them there is one process and nothing here costs anything.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch

from modules.util.errors import ConfigError

# others wait while the first process makes samples or is paused
PATIENCE = timedelta(days=30)
BUCKET_BYTES = 256 * 1024 * 1024


def choose_device(name: str, local_rank: int = 0) -> torch.device:
    """The device that ``train_device`` means in this process.

    Raises:
        ConfigError: this machine does not have the device.
    """
    if name == "auto":
        name = f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu"
    elif name == "cuda":
        name = f"cuda:{local_rank}"
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"there is no device {name} here: {torch.cuda.device_count()} CUDA devices were found",
            "train_device",
            "use auto or cpu",
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("there is no mps device here", "train_device", "use auto or cpu")
    return device


@dataclass
class Processes:
    """This process among those of the run.

    Args:
        rank, world_size, local_rank: which one it is, of how many, and which on its machine.
        device: what it computes on.
    """

    rank: int
    world_size: int
    local_rank: int
    device: torch.device
    _control: Any = field(default=None, repr=False)

    @classmethod
    def start(cls, train_device: str = "cpu") -> Processes:
        """Join the process group described in the environment, if there are several processes."""
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        rank, local_rank = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
        device = choose_device(train_device, local_rank if world_size > 1 else 0)
        if device.type == "cuda":
            # what names no device, such as pinned memory, would take some of the first one's
            torch.cuda.set_device(device)
        if world_size == 1:
            return cls(0, 1, 0, device)
        import torch.distributed as dist

        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
        made = cls(rank, world_size, local_rank, device)
        # decisions travel on the CPU, so that nobody waits for a GPU to hear them
        made._control = dist.new_group(backend="gloo", timeout=PATIENCE) if device.type == "cuda" else None
        return made

    @property
    def first(self) -> bool:
        """Whether this process writes files and talks to the user."""
        return self.rank == 0

    def stop(self) -> None:
        """Leave the group."""
        if self.world_size > 1 and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    def barrier(self) -> None:
        """Wait for all."""
        if self.world_size > 1:
            torch.distributed.barrier(group=self._control)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of a CPU tensor over all processes, in a new tensor."""
        if self.world_size == 1:
            return values
        total = values.clone()
        torch.distributed.all_reduce(total, group=self._control)
        return total

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes in the order of their ranks, in all of them."""
        if self.world_size == 1:
            return [value]
        made: list[Any] = [None] * self.world_size
        torch.distributed.all_gather_object(made, value, group=self._control)
        return made

    def agree(self, wishes: int) -> int:
        """The union of bits from all processes, the same in all of them."""
        if self.world_size == 1:
            return wishes
        bits = torch.tensor([wishes >> shift & 1 for shift in range(32)], dtype=torch.int64)
        torch.distributed.all_reduce(bits, torch.distributed.ReduceOp.MAX, group=self._control)
        return sum(int(bit) << shift for shift, bit in enumerate(bits.tolist()))

    def broadcast(self, value: Any) -> Any:
        """The value of the first process, in all of them."""
        if self.world_size == 1:
            return value
        box = [value]
        torch.distributed.broadcast_object_list(box, src=0, group=self._control)
        return box[0]

    @torch.no_grad()
    def reduce_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Replace every gradient by its sum over the processes; a process without a share takes part with zeros."""
        if self.world_size == 1:
            return
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        for bucket in _buckets(parameters):
            flat = torch.cat([p.grad.reshape(-1) for p in bucket])  # type: ignore[union-attr]
            torch.distributed.all_reduce(flat)
            pieces = flat.split([p.numel() for p in bucket])
            for parameter, piece in zip(bucket, pieces, strict=True):
                parameter.grad.copy_(piece.view_as(parameter))  # type: ignore[union-attr]

    def check_same(self, parameters: Sequence[tuple[str, torch.nn.Parameter]]) -> None:
        """``RuntimeError`` unless all processes start from the same weights."""
        if self.world_size == 1:
            return
        hasher = hashlib.blake2b(digest_size=8)
        for name, parameter in parameters:
            hasher.update(name.encode())
            hasher.update(parameter.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        if self.broadcast(hasher.hexdigest()) != hasher.hexdigest():
            raise RuntimeError("the processes of this run start from different weights")


def _buckets(parameters: Sequence[torch.nn.Parameter]) -> list[list[torch.nn.Parameter]]:
    """Parameters of one type together, all of an adapter in one bucket, whole models in bounded ones."""
    buckets: list[list[torch.nn.Parameter]] = []
    open_bucket: dict[torch.dtype, tuple[list[torch.nn.Parameter], int]] = {}
    for parameter in parameters:
        held, size = open_bucket.get(parameter.dtype, (None, 0))
        nbytes = parameter.numel() * parameter.element_size()
        if held is None or size + nbytes > BUCKET_BYTES:
            held, size = [], 0
            buckets.append(held)
        held.append(parameter)
        open_bucket[parameter.dtype] = (held, size + nbytes)
    return buckets
