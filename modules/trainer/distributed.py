"""Training by several processes. This is the only module that starts them and communicates between them.

All processes of one computer listen on its loopback address only, unless ``torchrun`` was told otherwise.

Weights are replicated. Every process computes the gradient of its share of the step, one flat sum makes the
gradients equal, and every process takes the same optimizer step. Processes are started by
``train_on_each``, ``torchrun`` or ``accelerate launch``, which describe the group in environment
variables. Without these there is one process, and nothing here has any cost.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch

from modules.runner.outcome import Outcome, signal_name
from modules.runner.ProcessId import ProcessId
from modules.trainer.control.LauncherWatch import LAUNCHER_VARIABLE, LauncherWatch
from modules.trainer.control.peer_messages import packed, unpacked
from modules.trainer.control.PeerWatch import EXIT_STATUS, HINT, PeerLost, PeerWatch
from modules.util.device_names import listed
from modules.util.display import counted
from modules.util.errors import ConfigError, DataError, UserError

# the others wait while the first process makes samples or is paused
PATIENCE = timedelta(days=30)
JOINING = timedelta(minutes=5)
ROUND = timedelta(seconds=1)
INTERRUPTED = 130
ENDING = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
BUCKET_BYTES = 256 * 1024 * 1024
Found = TypeVar("Found")


def choose_device(name: str, local_rank: int = 0) -> torch.device:
    """The device for ``train_device`` in this process.

    Raises:
        ConfigError: this machine does not have it.
    """
    names = listed(name)
    if local_rank >= len(names) > 1:
        raise ConfigError(
            f"{len(names)} devices are listed, but more processes were started", "train_device",
            "list one device for each process",
        )  # fmt: skip
    if len(names) > 1:
        name = names[local_rank]
    if name == "auto":
        name = f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu"
    elif name == "cuda":
        name = f"cuda:{local_rank}"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"{name!r} is not a device", "train_device", "use auto, cpu or cuda") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"there is no device {name} here: {counted(torch.cuda.device_count(), 'CUDA device')} found",
            "train_device",
            "use auto or cpu",
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("there is no mps device here", "train_device", "use auto or cpu")
    return device


def choose_only_device(name: str, hint: str = "give one device") -> torch.device:
    """The device that ``--device`` names, for a command that uses one.

    Args:
        hint: what to do if several are listed.

    Raises:
        ConfigError: this machine does not have it, or several are listed.
    """
    if len(listed(name)) > 1:
        raise ConfigError(f"{name!r} lists several devices, but one is used", "--device", hint)
    try:
        return choose_device(name)
    except ConfigError as error:
        raise ConfigError(error.message, "--device", error.hint) from error


def check_devices(name: str, processes: int) -> None:
    """Check that the devices of a run of several processes exist and that each has its process.

    Args:
        name: value of ``train_device``.
        processes: number of processes on this machine.

    Raises:
        ConfigError: the first fault.
    """
    names = listed(name)
    if len(names) == 1:
        return
    if len(names) != processes:
        raise ConfigError(
            f"{len(names)} devices are listed, but {counted(processes, 'process', 'processes')} started",
            "train_device",
            "list one device for each process",
        )
    devices = [choose_device(name, local_rank) for local_rank in range(processes)]
    if devices[0].type == "cuda" and not torch.distributed.is_nccl_available():
        raise ConfigError(
            "PyTorch has no NCCL here, which GPUs need to exchange gradients", "train_device",
            "choose one device",
        )  # fmt: skip


def train_on_each(train_device: str, script: Path, arguments: Sequence[str]) -> int:
    """Run a script in one process for each listed device, and return the exit status of the run.

    A process that fails ends all others. If it could not say why itself, because it was killed, this is said
    here. They end with this process too, even if it is killed.

    Args:
        train_device: value of ``train_device``.
        script, arguments: what each process runs.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from modules.trainer.control.LocalMeeting import BACKEND, LOOPBACK, LocalMeeting

    rendezvous_handler_registry.register(BACKEND, LocalMeeting)
    names = listed(train_device)
    # as torchrun does: the processes share the cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ[LAUNCHER_VARIABLE] = json.dumps(ProcessId.own().to_dict())
    # what is ignored stays ignored, as SIGHUP is under nohup
    present = [name for name in ENDING if hasattr(signal, name)]
    ending = [name for name in present if signal.getsignal(getattr(signal, name)) != signal.SIG_IGN]
    group = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=len(names), run_id=uuid.uuid4().hex, rdzv_backend=BACKEND,
        max_restarts=0, local_addr=LOOPBACK, signals_to_handle=",".join(ending),
    )  # fmt: skip
    try:
        with _handlers_kept(ending):
            elastic_launch(group, sys.executable)(str(script), *arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode >= 0:
            return failure.exitcode
        name = signal_name(failure.exitcode) or str(-failure.exitcode)
        sys.stderr.write(
            f"error: process {rank}, which trained on {names[rank]}, was killed ({name})\n  -> {HINT}\n"
        )
        return EXIT_STATUS
    except SignalException:
        return INTERRUPTED
    finally:
        del os.environ[LAUNCHER_VARIABLE]
    return 0


@contextmanager
def _handlers_kept(names: Sequence[str]) -> Iterator[None]:
    """Put back the handlers of these signals at the end: PyTorch's launcher leaves its own."""
    before = {name: signal.getsignal(getattr(signal, name)) for name in names}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for name, handler in before.items():
                signal.signal(getattr(signal, name), handler)


def where_there_is_room(
    name: str, work: Callable[[torch.device], Found], tell: Callable[[str], object]
) -> Found:
    """Run ``work`` on a device. With ``auto``, repeat it on the CPU if the graphics card has too little
    memory.

    Args:
        tell: called with a line before it is repeated.

    Raises:
        ConfigError: this machine does not have the device. UserError: it has too little memory.
    """
    device = choose_only_device(name)
    try:
        return work(device)
    except torch.OutOfMemoryError as error:
        if name != "auto" or device.type == "cpu":
            raise UserError(
                f"{device} has too little memory: {str(error).splitlines()[0]}",
                "--device",
                "use --device cpu",
            ) from error
    # outside the handler, whose traceback holds references to the card's memory
    tell("the graphics card has too little memory for this: it is repeated on the CPU, which takes longer")
    torch.cuda.empty_cache()
    return work(torch.device("cpu"))


@dataclass
class Processes:
    """This process within the group of the run.

    Args:
        rank, world_size, local_rank: its index, the number of processes, and its index on its machine.
    """

    rank: int
    world_size: int
    local_rank: int
    device: torch.device
    _control: Any = field(default=None, repr=False)
    _watch: PeerWatch | None = field(default=None, repr=False)
    _launcher: LauncherWatch | None = field(default=None, repr=False)

    @classmethod
    def start(cls, train_device: str = "cpu", launcher: LauncherWatch | None = None) -> Processes:
        """Join the process group described in the environment, if there are several processes.

        Args:
            launcher: if this process already watches its launcher.
        """
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        rank, local_rank = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
        device = choose_device(train_device, local_rank if world_size > 1 else 0)
        if device.type == "cuda":
            # operations without a device, such as pinning memory, would use some of the first card's
            # memory
            torch.cuda.set_device(device)
        if world_size == 1:
            return cls(0, 1, 0, device)
        import torch.distributed as dist

        # before anything waits for the other processes, which may be gone with it
        launcher = launcher or LauncherWatch.begin()
        store = _joined(rank, world_size)
        made = cls(rank, world_size, local_rank, device, None, _watching(rank, world_size), launcher)
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=PATIENCE)
        # decisions are exchanged on the CPU, so that no process waits for a GPU
        made._control = dist.new_group(backend="gloo", timeout=PATIENCE) if device.type == "cuda" else None
        return made

    @property
    def first(self) -> bool:
        """True if this process writes files and communicates with the user."""
        return self.rank == 0

    def stop(self, fault: Outcome | None = None) -> None:
        """Leave the group. After ``PeerLost``, pending messages are abandoned, because they would never finish.

        Args:
            fault: the error because of which this process leaves, which the others report.
        """
        if self._launcher is not None:
            self._launcher.leave()
        if self._watch is not None:
            self._watch.leave(fault)
        if self.world_size > 1 and torch.distributed.is_initialized() and self._lost() is None:
            torch.distributed.destroy_process_group()

    def barrier(self) -> None:
        """Wait for all processes.

        Raises:
            PeerLost: a process is gone. All waiting methods raise this.
        """
        if self.world_size > 1:
            self._wait(torch.distributed.barrier(group=self._control, async_op=True))

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of a CPU tensor over all processes, in a new tensor."""
        if self.world_size == 1:
            return values
        total = values.clone()
        self._wait(torch.distributed.all_reduce(total, group=self._control, async_op=True))
        return total

    def gather(self, value: Any) -> list[Any]:
        """Collect the values of all processes in rank order; all processes get them, tuples as lists.

        Args:
            value: made of JSON values and tensors; see ``peer_messages``.
        """
        if self.world_size == 1:
            return [value]
        own = packed(value)
        sizes = self._gather(torch.tensor([own.numel()]))
        room = int(max(size.item() for size in sizes))
        parts = self._gather(torch.nn.functional.pad(own, (0, room - own.numel())))
        return [unpacked(part[: int(size.item())]) for part, size in zip(parts, sizes, strict=True)]

    def _gather(self, own: torch.Tensor) -> list[torch.Tensor]:
        """Collect tensors of one shape from all processes."""
        parts = [torch.empty_like(own) for _ in range(self.world_size)]
        self._wait(torch.distributed.all_gather(parts, own, group=self._control, async_op=True))
        return parts

    def agree(self, wishes: int) -> int:
        """The union of bits of all processes, the same in all of them."""
        if self.world_size == 1:
            return wishes
        bits = torch.tensor([wishes >> shift & 1 for shift in range(32)], dtype=torch.int64)
        maximum = torch.distributed.ReduceOp.MAX
        self._wait(torch.distributed.all_reduce(bits, maximum, group=self._control, async_op=True))
        return sum(int(bit) << shift for shift, bit in enumerate(bits.tolist()))

    def broadcast(self, value: Any) -> Any:
        """The value of the first process, in all processes. It is made of JSON values and tensors."""
        if self.world_size == 1:
            return value
        own = packed(value)
        size = torch.tensor([own.numel()])
        self._wait(torch.distributed.broadcast(size, 0, group=self._control, async_op=True))
        box = own if self.first else torch.empty(int(size.item()), dtype=torch.uint8)
        self._wait(torch.distributed.broadcast(box, 0, group=self._control, async_op=True))
        return value if self.first else unpacked(box)

    def _wait(self, message: Any) -> None:
        """Wait until a message between CPUs has arrived everywhere."""
        while True:
            if (lost := self._lost()) is not None:
                raise lost
            # it may also end just after the time has run out; its own error is raised by every later wait
            ended = message.is_completed()
            try:
                message.wait(ROUND)
                return
            except RuntimeError as error:
                if not ended:
                    continue
                lost = self._launcher.look() if self._launcher is not None else None
                if lost is None and self._watch is not None:
                    lost = self._watch.explain()
                if lost is None:
                    raise
                raise lost from error

    def _lost(self) -> PeerLost | None:
        """The reason why messages to the other processes would never arrive; ``None`` if they do."""
        lost = self._launcher.lost if self._launcher is not None else None
        return lost or (self._watch.lost if self._watch is not None else None)

    @torch.no_grad()
    def reduce_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Replace every gradient by its sum over the processes. A process without a share contributes zeros."""
        if self.world_size == 1:
            return
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        for bucket in _buckets(parameters):
            flat = torch.cat([p.grad.reshape(-1) for p in bucket])  # type: ignore[union-attr]
            if flat.is_cuda:
                # the device waits for it, not this thread
                torch.distributed.all_reduce(flat)
            else:
                self._wait(torch.distributed.all_reduce(flat, async_op=True))
            pieces = flat.split([p.numel() for p in bucket])
            for parameter, piece in zip(bucket, pieces, strict=True):
                parameter.grad.copy_(piece.view_as(parameter))  # type: ignore[union-attr]

    def check_same(self, parameters: Sequence[tuple[str, torch.nn.Parameter]]) -> None:
        """Raise ``RuntimeError`` unless all processes start from the same weights."""
        if self.world_size == 1:
            return
        hasher = hashlib.blake2b(digest_size=8)
        for name, parameter in parameters:
            hasher.update(name.encode())
            hasher.update(parameter.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        if self.broadcast(hasher.hexdigest()) != hasher.hexdigest():
            raise RuntimeError("the processes of this run start from different weights")

    def check_same_data(self, digest: str) -> None:
        """Raise ``DataError`` unless all processes have read the same data.

        Args:
            digest: identifies the data of this process.
        """
        if len(set(self.gather(digest))) > 1:
            raise DataError(
                "the processes of this run have read different images, captions, pairs or prompts: files changed while "
                "it started",
                "concepts",
                "start it again when nothing changes them",
            )


def _joined(rank: int, world_size: int) -> Any:
    """The store of the group that the environment describes. A group on one computer listens on its loopback address
    alone; a launcher that runs the store itself has chosen where that listens.
    """
    from torch.distributed import rendezvous  # type: ignore[attr-defined]

    from modules.trainer.control.LocalMeeting import (
        is_on_one_computer,
        listening_store,
        loopback_of,
        stay_local,
    )

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    address = None
    if is_on_one_computer(host, world_size):
        stay_local()
        address = loopback_of(host)
    if address and rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        store = listening_store(address, port, JOINING)
    else:
        store, *_ = next(rendezvous("env://", rank, world_size, timeout=JOINING))
    store.set_timeout(PATIENCE)
    return store


def _watching(rank: int, world_size: int) -> PeerWatch:
    """Start a watch over a connection of its own."""
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    client = TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, wait_for_workers=False,
        timeout=JOINING,
    )  # fmt: skip
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    watch = PeerWatch(PrefixStore(f"peers/{attempt}", client), rank, world_size)
    watch.start()
    return watch


def _buckets(parameters: Sequence[torch.nn.Parameter]) -> list[list[torch.nn.Parameter]]:
    """Group parameters by type: an adapter in one bucket, whole models in buckets of bounded size."""
    buckets: list[list[torch.nn.Parameter]] = []
    open_bucket: dict[torch.dtype, tuple[list[torch.nn.Parameter], int]] = {}
    for parameter in parameters:
        held, size = open_bucket.get(parameter.dtype, (None, 0))
        nbytes = parameter.nbytes
        if held is None or size + nbytes > BUCKET_BYTES:
            held, size = [], 0
            buckets.append(held)
        held.append(parameter)
        open_bucket[parameter.dtype] = (held, size + nbytes)
    return buckets
