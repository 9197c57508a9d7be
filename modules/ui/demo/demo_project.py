"""The demo project: a folder with images, pairs, settings and runs, and the child processes that fill it. No Tk here.

The demo model makes the images and a simulated person can choose among them; both happen in ``scripts/make_demo.py``
in a separate process, so that the window never loads what they need.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.runner.ProcessId import ProcessId
from modules.ui.curation.PairToolMemory import PairToolMemory
from modules.util.config.load import load_layered
from modules.util.config.SampleConfig import SampleConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.dpo_curation_util import CONCEPTS_NAME, finalize_export, load_manifest
from modules.util.enum.choices import TimeUnit
from modules.util.errors import UserError
from modules.util.jsonio import read_json, write_json
from modules.util.program_files import ROOT

SCRIPT = ROOT / "scripts" / "make_demo.py"
PRESET = ROOT / "training_presets" / "#demo dpo.json"
SAYS_ERROR = "error:"
DEFAULT_FOLDER = Path("workspace") / "demo"
MAX_PROMPTS, MAX_PER_PROMPT = 94, 32
PROMPTS, PER_PROMPT = 40, 6
VALIDATION_PERCENTAGE = 20.0
SAMPLE_PROMPTS = (
    "a green cross on a purple background",
    "a white circle on a blue background",
    "a red cross on a purple background",
    "a blue square on a black background",
)
"""Prompts of samples. No images to pick from are made for them."""
MOST_EPOCHS = 60
MANY_PAIRS = 50
STEPS_FOR_MANY, BETA_FOR_MANY = 144, 80.0
STEPS_FOR_FEW = 120
"""Few pairs are repeated up to this many steps, and held nearer to the base model: on 38 pairs, a beta of 60
and 200 steps lost the colours. Many pairs tolerate larger steps."""
SIZE_NAME = "demo-size.json"
LOOKS = 4
"""Number of times samples are made and pairs validated, including at the end."""
_DONE = re.compile(r"(\d+)/(\d+) images")


@dataclass(frozen=True)
class DemoProject:
    """Paths and state of a demo project."""

    folder: Path

    @property
    def images(self) -> Path:
        return self.folder / "images"

    @property
    def pairs(self) -> Path:
        return self.folder / "pairs"

    @property
    def config_path(self) -> Path:
        return self.folder / "demo.json"

    def prepare(self, prompts: int, per_prompt: int) -> None:
        """Make the folder and save how many images are wanted.

        Raises:
            UserError: a file is in the way, or the place cannot be written.
        """
        try:
            self.images.mkdir(parents=True, exist_ok=True)
            write_json(self.folder / SIZE_NAME, {"prompts": prompts, "per_prompt": per_prompt})
        except OSError as error:
            raise UserError(
                f"{self.folder} cannot be created: {error.strerror}", hint="choose another folder"
            ) from error

    def size(self) -> tuple[int, int] | None:
        """(prompts, images per prompt) wanted; ``None`` if nothing was begun or the file cannot be read."""
        path = self.folder / SIZE_NAME
        try:
            data = read_json(path, "size of the demo") if path.exists() else {}
        except UserError:
            return None
        found = [data.get(name) if isinstance(data, dict) else None for name in ("prompts", "per_prompt")]
        prompts, each = found
        return (prompts, each) if isinstance(prompts, int) and isinstance(each, int) else None

    def image_count(self) -> int:
        """Number of existing images."""
        if not self.images.is_dir():
            return 0
        return sum(
            p.suffix in (".png", ".webp") and not p.name.startswith(".") for p in self.images.iterdir()
        )

    def pair_counts(self) -> tuple[int, int]:
        """(all pairs, pairs not yet split into training and validation)."""
        if not (self.pairs / "manifest.json").exists():
            return 0, 0
        pairs = load_manifest(self.pairs)["pairs"]
        if not (self.pairs / CONCEPTS_NAME).is_file():
            return len(pairs), len(pairs)
        return len(pairs), sum(len(Path(pair["chosen_file"]).parts) < 3 for pair in pairs)

    def finalise(self) -> tuple[int, int]:
        """Split the pairs into training and validation unless that is done, and return the number of each.

        Raises:
            DataError: there are no pairs.
        """
        manifest = load_manifest(self.pairs)
        if self.pair_counts()[1] or not manifest["pairs"]:
            return finalize_export(self.pairs, manifest, VALIDATION_PERCENTAGE)
        train = sum(Path(pair["chosen_file"]).parts[1] == "train" for pair in manifest["pairs"])
        return train, len(manifest["pairs"]) - train

    # -- the pair tool ---------------------------------------------------------------------------------------

    def prepare_pair_tool(self) -> PairToolMemory:
        """The fields of the pair tool for this project, saved in the project's folder. Raises ``OSError`` if
        not writable.
        """
        memory = PairToolMemory(
            source=str(self.images), output=str(self.pairs), pairs_per_group=2, certainty=80.0,
            # flat images look the same to a hash made for photographs
            near_duplicates=-1, ask_to_continue=False, validation=VALIDATION_PERCENTAGE,
        )  # fmt: skip
        memory.save(self.folder)
        return memory

    # -- training --------------------------------------------------------------------------------------------

    def next_run(self) -> Path:
        """An unused folder for a run."""
        number = 1
        while (self.folder / f"run-{number}").exists():
            number += 1
        return self.folder / f"run-{number}"

    def make_config(self, model: type[TrainConfig], train_pairs: int) -> TrainConfig:
        """The demo preset with the folders of this project and samples before, during and at the end of
        training.

        Args:
            train_pairs: number of training pairs. Few pairs are repeated more often, and with a higher beta.
        """
        made = load_layered(PRESET, None, check=False, model=model)
        run = self.next_run()
        base = Path(made.base_model_name)
        made.base_model_name = str(base if base.is_absolute() else ROOT / base)
        made.concept_file_name, made.concepts = str(self.pairs / CONCEPTS_NAME), None
        made.cpu_threads = 1  # the model is so small that more of them would only interfere with each other
        made.workspace_dir, made.cache_dir = str(run), str(self.folder / "cache")
        made.output_model_destination = str(
            self.folder / f"adapter-{run.name.rpartition('-')[2]}.safetensors"
        )
        made.samples = [
            SampleConfig(prompt=prompt, width=64, height=64, seed=1, diffusion_steps=20, cfg_scale=2.5)
            for prompt in SAMPLE_PROMPTS
        ]
        per_epoch = -(-max(1, train_pairs) // made.batch_size)
        steps = STEPS_FOR_FEW
        if train_pairs >= MANY_PAIRS:
            steps, made.rlhf_dpo_beta = STEPS_FOR_MANY, BETA_FOR_MANY
        epochs = min(MOST_EPOCHS, max(made.epochs, -(-steps // per_epoch)))
        made.epochs = -(-epochs // LOOKS) * LOOKS
        made.sample_before_training = True
        made.sample_after, made.sample_after_unit = made.epochs // LOOKS, TimeUnit.EPOCH
        made.validate_after, made.validate_after_unit = made.epochs // LOOKS, TimeUnit.EPOCH
        # Stop saves a backup, and this lets Start resume from it.
        made.continue_last_backup = True
        return made


class MakerProcess:
    """A running ``scripts/make_demo.py``. Its output is read in a thread.

    Raises:
        UserError: it cannot be started.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self.done, self.total = 0, 0
        self.cancelled = False
        self._tail: deque[str] = deque(maxlen=12)
        line = [sys.executable, str(SCRIPT), *arguments]
        flags = getattr(subprocess, "CREATE_NO_WINDOW", 0)
        extra = {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}
        try:
            self._popen = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                encoding="utf-8", errors="replace", env={**os.environ, **extra}, creationflags=flags,
            )  # fmt: skip
        except OSError as error:
            raise UserError(
                f"{line[0]} cannot be started: {error.strerror}", hint="run the setup again"
            ) from error
        self.process = ProcessId.of(self._popen.pid) or ProcessId(self._popen.pid, "gone")
        self._reader = threading.Thread(target=self._read, daemon=True, name="demo-maker")
        self._reader.start()

    @classmethod
    def images(cls, project: DemoProject, prompts: int, per_prompt: int) -> MakerProcess:
        """Start making images. Existing ones are kept."""
        size = [f"--prompts={prompts}", f"--per-prompt={per_prompt}"]
        return cls(["images", "--out", str(project.images), *size])

    @classmethod
    def person(cls, project: DemoProject) -> MakerProcess:
        """Start a simulated person, who likes large shapes, choosing among the images. The pairs are then
        finalised.
        """
        return cls(["pairs", "--images", str(project.images), "--out", str(project.folder)])

    def _read(self) -> None:
        assert self._popen.stdout is not None
        with self._popen.stdout as stream:
            for line in stream:
                self._tail.append(line.rstrip())
                if found := _DONE.search(line):
                    self.done, self.total = int(found[1]), int(found[2])

    def running(self) -> bool:
        """Return whether the process is running."""
        return self._popen.poll() is None or self._reader.is_alive()

    def cancel(self) -> None:
        """End the process, waiting briefly. What it has finished stays."""
        self.cancelled = True
        self.process.end(3.0)
        self._popen.wait(10)

    def problem(self) -> UserError | None:
        """The error that ended the process; ``None`` if it is running, succeeded or was cancelled."""
        if self._popen.returncode == 0 or self.cancelled:
            return None
        lines = [line for line in self._tail if line.startswith(SAYS_ERROR)]
        if lines:
            return UserError(lines[-1].removeprefix(SAYS_ERROR).strip())
        tail = "\n".join(self._tail)
        return UserError(f"{SCRIPT.name} ended with status {self._popen.returncode}:\n{tail}")
