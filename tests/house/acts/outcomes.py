"""What comes out of a config: a whole run of a tiny model, its memory, its data, and what a check says."""

from __future__ import annotations

import gc
import hashlib
import math
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.utils.checkpoint
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import modeling_utils

from modules.accelerator.attention_backend import switchable_processors
from modules.dataLoader import progress as loading
from modules.dataLoader.mixin.DataLoaderText2ImageMixin import DataLoaderText2ImageMixin
from modules.model import activations
from modules.model.Model import Model
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.reward.base import REWARDS, RewardBatch, RewardError
from modules.runner.votes.VoteBook import Vote, VoteBook
from modules.trainer.callbacks import Callback
from modules.trainer.GenericTrainer import GenericTrainer
from modules.util.config.load import load_config
from modules.util.errors import UserError
from tests.tiny.loaded_once import loaded_once

ROUNDING = 1e-6
"""Smaller differences of weights and of logged numbers, relative to the largest, are other orders of one sum."""


def differ(one: Any, other: Any) -> bool:
    """Whether two outcomes differ by more than rounding."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return True
        gap = (one.double() - other.double()).abs()
        return bool((gap > ROUNDING * max(float(one.abs().max()), 1e-12)).any()) if gap.numel() else False
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() != other.keys() or any(differ(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) != len(other) or any(differ(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, float) and isinstance(other, float):
        return not (math.isclose(one, other, rel_tol=ROUNDING) or (math.isnan(one) and math.isnan(other)))
    return bool(one != other)


# -- a whole run ---------------------------------------------------------------------------------------------------


class Listener(Callback):
    """Keeps all that a run tells."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        self.metrics: list[dict[str, float]] = []
        self.validations: list[dict[str, float]] = []
        self.warnings: list[str] = []
        self.backups: list[int] = []

    def started(self, facts: Mapping[str, Any]) -> None:
        self.facts = dict(facts)

    def step(self, progress: Any, metrics: Mapping[str, float], total: int, eta: float | None) -> None:
        self.metrics.append({tag: v for tag, v in metrics.items() if not tag.startswith("memory")})

    def validation(self, progress: Any, metrics: Mapping[str, float]) -> None:
        self.validations.append({"step": float(progress.global_step), **metrics})

    def backup(self, progress: Any, path: Path) -> None:
        self.backups.append(progress.global_step)

    def warning(self, message: str) -> None:
        self.warnings.append(message)


@dataclass
class Work:
    """What the model was asked for: the sizes of batches, in the order of the calls.

    Args:
        ahead: images sent to threads so far, whenever one is encoded.
        predicted: latents the denoiser saw.
        threads: ``main`` and ``other``, where images were read.
        moved: parts of the model that changed places.
        kernels: attention kernels of the denoiser.
        weights: digest of all that is trained, after each step.
        trained: the same itself.
        recomputed: blocks whose activations are computed again in the backward pass, by their kind.
        kept_away: inputs of blocks that are kept in main memory, by their shape.
    """

    ahead: list[int] = field(default_factory=list)
    predicted: list[int] = field(default_factory=list)
    threads: set[str] = field(default_factory=set)
    moved: list[tuple[str, str]] = field(default_factory=list)
    kernels: set[str] = field(default_factory=set)
    weights: dict[int, str] = field(default_factory=dict)
    trained: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    recomputed: Counter[str] = field(default_factory=Counter)
    kept_away: Counter[tuple[int, ...]] = field(default_factory=Counter)


class Attention:
    """The attention of denoisers. A run exchanges no processors, and looking for them takes as long as some layers."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[torch.nn.Module, list[Any]] = WeakKeyDictionary()

    def kernels(self, denoiser: torch.nn.Module) -> set[str]:
        """Those it uses now."""
        if denoiser not in self._known:
            self._known[denoiser] = switchable_processors(denoiser)
        return {str(one._attention_backend) for one in self._known[denoiser]}


def kept_by(work: Work) -> type[activations.Kept]:
    """What blocks keep in main memory, noted."""

    class Kept(activations.Kept):
        def __init__(self, tensor: torch.Tensor) -> None:
            super().__init__(tensor)
            work.kept_away[tuple(tensor.shape)] += 1

    return Kept


class Seen(BaseException):
    """Ends a run that trains other weights than the one it is compared with: the steps to come would not show more."""


_COMPARED: list[Work] = []


@contextmanager
def compared_with(work: Work) -> Iterator[None]:
    """Inside the block a run ends with ``Seen`` after the first step that leaves other weights than ``work`` had after
    it. Weights of other shapes and number types are left to be looked at in the saved file.
    """
    _COMPARED.append(work)
    try:
        yield
    finally:
        _COMPARED.pop()


def trains_otherwise(now: list[torch.Tensor], step: int) -> bool:
    """Whether the run under way is compared with another one, whose weights after this step were others."""
    if not _COMPARED or step not in _COMPARED[-1].trained:
        return False
    before = _COMPARED[-1].trained[step]
    alike = [(one.shape, one.dtype) for one in before] == [(one.shape, one.dtype) for one in now]
    return alike and differ(before, now)


def note_weights(work: Work, trainer: GenericTrainer) -> None:
    """Keep what a step left behind, and end the run if that is other weights than it is compared with."""
    step, digest = trainer.progress.global_step, hashlib.sha256()
    now = [parameter.detach().clone() for _, parameter in trainer.parts.named]
    for tensor in now:
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    work.weights[step], work.trained[step] = digest.hexdigest(), now
    if trains_otherwise(now, step):
        raise Seen


@contextmanager
def watched() -> Iterator[Work]:
    """Notes what a run asks of the model, and lets it pass."""
    work = Work()
    sent, attention, advance = [0], Attention(), GenericTrainer._advance
    move, checkpoint = Model.to, torch.utils.checkpoint.checkpoint
    encode, pixels = DataLoaderText2ImageMixin.encode_images, DataLoaderText2ImageMixin.pixels

    def denoising(predict: Any) -> Any:
        def predicting(self: Any, model: Model, latents: torch.Tensor, *rest: Any, **named: Any) -> Any:
            work.predicted.append(len(latents))
            work.kernels |= attention.kernels(model.denoiser)
            return predict(self, model, latents, *rest, **named)

        return predicting

    def recomputing(block: Any, *rest: Any, **named: Any) -> Any:
        owner = getattr(block, "__self__", block)
        work.recomputed[type(getattr(owner, "func", owner)).__name__] += 1
        return checkpoint(block, *rest, **named)

    def advancing(self: GenericTrainer, *rest: Any) -> None:
        advance(self, *rest)
        note_weights(work, self)

    def moving(self: Model, part: str, device: Any) -> Any:
        work.moved.append((part, str(device)))
        return move(self, part, device)

    def encoding(self: Any, images: Any, *rest: Any, **named: Any) -> Any:
        work.ahead.append(sent[0])
        return encode(self, images, *rest, **named)

    class Pool(ThreadPoolExecutor):
        def submit(self, function: Any, *rest: Any, **named: Any) -> Any:
            if len(rest) == 2 and getattr(rest[0], "__name__", "") == "reading":
                sent[0] += len(rest[1])
            return super().submit(function, *rest, **named)

    def reading(self: Any, *rest: Any, **named: Any) -> Any:
        work.threads.add("main" if threading.current_thread() is threading.main_thread() else "other")
        return pixels(self, *rest, **named)

    with ExitStack() as stack:
        for owner, name, other in (
            *((kind, "denoise", denoising(kind.denoise)) for kind in denoisers()),
            (Model, "to", moving),
            (loading, "ThreadPoolExecutor", Pool),
            (GenericTrainer, "_advance", advancing),
            (activations, "Kept", kept_by(work)),
            (torch.utils.checkpoint, "checkpoint", recomputing),
            (modeling_utils, "checkpoint", recomputing),
            (DataLoaderText2ImageMixin, "encode_images", encoding),
            (DataLoaderText2ImageMixin, "pixels", reading),
        ):
            stack.enter_context(mock.patch.object(owner, name, other))
        yield work


def denoisers() -> list[Any]:
    """The classes that ask a denoiser."""
    kinds, found = [BaseModelSetup], []
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        if "denoise" in vars(kind) and not getattr(kind.denoise, "__isabstractmethod__", False):
            found.append(kind)
    return found


@dataclass(frozen=True)
class Outcome:
    """What a run left behind.

    Args:
        refused: what it ended with, if with an error of the person's.
        weights: of the file it saved.
        header: of that file: what it says about itself.
        files: of its folders, without dates; with the pixels of images.
        told: what callbacks heard.
        work: what the model was asked for.
        cpu_threads: torch's, while it ran.
    """

    refused: str
    weights: dict[str, torch.Tensor]
    header: dict[str, str]
    files: dict[str, str]
    told: Listener
    work: Work
    cpu_threads: int


def run(folder: Path, path: Path) -> Outcome:
    """Train in this process what a config file says, by the function behind the command line."""
    from modules.runner.RunDirectory import RunDirectory
    from scripts.train import train

    told, refused, work = Listener(), "", Work()
    before = torch.get_num_threads()
    try:
        config = load_config(path)
        directory = RunDirectory(config.workspace_dir)
        with (
            directory.locked(),
            watched() as work,
            without_collecting(),
            loaded_once(),
            mock.patch("modules.trainer.callbacks.Console", lambda: told),
            # what is looked at here is seen again when the model is loaded
            mock.patch("modules.trainer.GenericTrainer.check_model"),
            mock.patch("os.fsync"),
        ):
            train(config, directory, 0)
    except UserError as error:
        refused = without_places(str(error), folder)
    finally:
        threads = torch.get_num_threads()
        torch.set_num_threads(before)
    weights, header = saved_model(folder)
    return Outcome(refused, weights, header, listed(folder), told, work, threads)


@contextmanager
def without_collecting() -> Iterator[None]:
    """No search for circles of objects, which takes a quarter of the time of so short a run."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def saved_model(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors and header of the file a run saved at its end; nothing where there is none."""
    for path in folder.glob("out*.safetensors"):
        with safe_open(path, "pt") as file:
            return load_file(path), dict(file.metadata() or {})
    return {}, {}


BY_CHANCE = (
    (r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", "DATE"),
    (r"cache-\d{8}-[0-9a-f]{32}", "cache"),
    (r"tfevents\..*", "tfevents"),
    (r"[\d.]+ [KMGT]iB free", "space free"),
)
"""What is different at every run."""


def without_places(text: str, folder: Path) -> str:
    """A text without what only the folder, the time and chance put into it."""
    text = text.replace(str(folder), "FOLDER")
    for pattern, name in BY_CHANCE:
        text = re.sub(pattern, name, text)
    return text


def listed(folder: Path) -> dict[str, str]:
    """Files by their names without dates; of images what is seen, of others nothing but that they are there."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = without_places(str(path.relative_to(folder)), folder)
            seen = picture(path) if path.suffix in (".png", ".jpg") else ""
            while name in found:
                name += "+"
            found[name] = seen
    return found


def picture(path: Path) -> str:
    with Image.open(path) as image:
        return hashlib.sha256(np.asarray(image.convert("RGB")).tobytes()).hexdigest()


def run_with_a_picky_reward(folder: Path, path: Path) -> Outcome:
    """A run in which brightness refuses to score images of a cat."""
    score = REWARDS.get("brightness")._score

    def picky(self: Any, batch: RewardBatch) -> torch.Tensor:
        if any("cat" in prompt for prompt in batch.prompts):
            raise RewardError("there is a cat")
        return score(self, batch)

    with mock.patch.object(REWARDS.get("brightness"), "_score", picky):
        return run(folder, path)


def run_with_a_person(folder: Path, path: Path, thinking: float = 0.0) -> Outcome:
    """A run that is voted on by somebody who likes dark images.

    Args:
        thinking: seconds before the vote on the second prompt.
    """
    end = threading.Event()

    def vote() -> None:
        book = VoteBook(load_config(path).workspace_dir)
        while not end.wait(0.02):
            book.refresh()
            for one in book.open_questions()[:1]:
                end.wait(thinking if one.group == 1 else 0.0)
                book.refresh()
                if one.dropped:
                    continue
                shades = [np.asarray(Image.open(book.image(one, n))).mean() for n in range(one.images)]
                order = sorted(range(one.images), key=shades.__getitem__)
                book.give(one.key, Vote((order[1],), (order[-1],), order[0], True))

    thread = threading.Thread(target=vote)
    thread.start()
    try:
        return run(folder, path)
    finally:
        end.set()
        thread.join()


def run_with_a_slow_person(folder: Path, path: Path) -> Outcome:
    """A run that is voted on by somebody who thinks about the second prompt."""
    return run_with_a_person(folder, path, 1.5)


# -- other outcomes ------------------------------------------------------------------------------------------------


def memory(folder: Path, path: Path) -> dict[str, Any]:
    """What the run is predicted to take of a GPU."""
    from modules.trainer.memory.memory_plan import plan_memory

    return plan_memory(load_config(path)).to_dict()


def data(folder: Path, path: Path) -> list[Any]:
    """What two epochs of training see: files, prompts, pixels and the weight of each image."""
    from modules.dataLoader.create import create_data_loader
    from modules.util.TrainProgress import TrainProgress
    from tests.tiny import tiny_setup

    config = load_config(path)
    loader = create_data_loader(config, shared_model(), tiny_setup())
    try:
        loader.prepare()
        seen = []
        for group in loader.accumulation_groups(TrainProgress()):
            for batch in group:
                assert batch is not None
                seen.append([group.epoch, batch_facts(batch)])
        return seen
    finally:
        loader.close()


def batch_facts(batch: Any) -> dict[str, Any]:
    return {
        "ids": list(batch.ids),
        "prompts": list(batch.prompts),
        "prior": None if batch.prior_B is None else batch.prior_B.tolist(),
        "latents": batch.latents_BChw,
        "weight": batch.loss_weight_B.tolist(),
    }


_MODEL: list[Model] = []


def shared_model() -> Model:
    from tests.tiny import tiny_model

    if not _MODEL:
        _MODEL.append(tiny_model())
    return _MODEL[0]


def refusal(folder: Path, path: Path) -> list[str]:
    """What the check before a run says: warnings, or why it does not begin."""
    from scripts.train import check

    try:
        return [without_places(line, folder) for line in check(load_config(path), 1)]
    except UserError as error:
        return [without_places(str(error), folder)]


def steps_of_processes(folder: Path, path: Path) -> list[Any]:
    """Who of two processes makes which images of an online run."""
    from modules.trainer.online.settings import create_sampler

    config = load_config(path)
    return [
        [
            [(slot.group, slot.member) for slot in batch]
            for batch in create_sampler(config, 4, rank, 2).batches(0)
        ]
        for rank in (0, 1)
    ]


def board(folder: Path, path: Path) -> list[str]:
    """What ``runctl tensorboard`` starts for a run."""
    from modules.runner.RunDirectory import RunDirectory
    from scripts import runctl

    config = load_config(path)
    directory = RunDirectory(config.workspace_dir).create()
    config.save(directory.config_path)
    with mock.patch.object(runctl.subprocess, "run") as started:
        started.return_value.returncode = 0
        runctl.tensorboard(directory)
    return [without_places(str(word), folder) for word in started.call_args[0][0]]


# -- seeing a part of it -------------------------------------------------------------------------------------------

Source = Callable[[Path, Path], Any]


@dataclass(frozen=True)
class See:
    """A part of what comes out, which a setting is said to change.

    Args:
        name: for people.
        source: makes it, given a folder to work in and a config file; shared by all that see parts of it.
        part: of what the source gives, an ``Outcome`` if this is of the weights.
        of_weights: whether it is seen as soon as a step leaves other weights.
    """

    name: str
    source: Source
    part: Callable[[Any], Any]
    of_weights: bool = False


def _of(source: Source) -> Callable[[str, Callable[[Any], Any]], See]:
    return lambda name, part: See(name, source, part)


def _run(name: str, part: Callable[[Outcome], Any], of_weights: bool = False) -> See:
    """Of a run that comes to its end."""

    def of_a_whole_run(outcome: Outcome) -> Any:
        assert not outcome.refused, outcome.refused
        return part(outcome)

    return See(name, run, of_a_whole_run, of_weights)


weights = _run("weights", lambda o: o.weights, of_weights=True)
dtypes = _run("number formats of the saved file", lambda o: {n: str(t.dtype) for n, t in o.weights.items()})
header = _run("header of the saved file", lambda o: o.header)
names = _run("names in the saved file", lambda o: sorted(o.weights))
rates = _run(
    "learning rates", lambda o: [{t: v for t, v in m.items() if t.startswith("lr/")} for m in o.told.metrics]
)
metrics = _run("logged numbers", lambda o: o.told.metrics)
steps = _run("number of steps", lambda o: len(o.told.metrics))
validations = _run("validations", lambda o: o.told.validations)
backups = _run("steps with a backup", lambda o: o.told.backups)
warnings = _run("warnings", lambda o: o.told.warnings)
end = See("how the run ends", run, lambda o: (len(o.told.metrics), o.refused))
picky_weights = See("the weights of a run with failing scores", run_with_a_picky_reward, weights.part, True)
person_end = See("how a run that waits for votes ends", run_with_a_slow_person, end.part)
person_weights = See("weights of a run that is voted on", run_with_a_person, weights.part)
picky_end = See("how a run with failing scores ends", run_with_a_picky_reward, end.part)
moved = _run("parts moved to other places", lambda o: o.work.moved)
recomputed = _run("blocks computed again", lambda o: o.work.recomputed)
kept_away = _run("inputs of blocks in main memory", lambda o: o.work.kept_away)
kernels = _run("attention kernels", lambda o: o.work.kernels)
files = _run("files", lambda o: sorted(o.files))
samples = _run("samples", lambda o: {n: seen for n, seen in o.files.items() if "samples/" in n})
rollouts = _run("images of rollouts", lambda o: {n: seen for n, seen in o.files.items() if "rollouts/" in n})
read_ahead = _run("images read ahead", lambda o: o.work.ahead)
predicted = _run("latents the denoiser sees at once", lambda o: o.work.predicted)
reading = _run("threads that read images", lambda o: o.work.threads)
cpu_threads = _run("threads that compute", lambda o: o.cpu_threads)
gpu_memory = _of(memory)("predicted memory", lambda plan: plan)
images = _of(data)("what training sees", lambda seen: seen)
check_result = _of(refusal)("what the check says", lambda said: said)
tensorboard = _of(board)("command that shows the curves", lambda words: words)
processes = _of(steps_of_processes)("images of each process", lambda made: made)


def tag(name: str) -> See:
    """Only one of the logged numbers."""
    return _run(f"logged {name}", lambda o: [m.get(name) for m in o.told.metrics])
