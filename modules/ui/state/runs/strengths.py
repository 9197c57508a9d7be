"""Images of a run's adapters at several strengths, made by ``scripts/sample.py``. No Tk here."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.runner.LineProcess import LineProcess
from modules.ui.state.runs.comparing import Grid, GridImage
from modules.ui.texts.runs import SAMPLER
from modules.util.config.SampleConfig import reading_in
from modules.util.enum.ModelType import ModelType
from modules.util.errors import ConfigError, UserError
from modules.util.program_files import ROOT

SCRIPT = ROOT / "scripts" / "sample.py"
FOLDER = "strengths"
MOST_STRENGTH, MOST_COLUMNS, MOST_PROMPTS = 10.0, 12, 32
FIELD = "strengths"
_OPTIONS = {
    "negative_prompt": "--negative-prompt", "seed": "--seed", "width": "--width", "height": "--height",
    "diffusion_steps": "--steps", "cfg_scale": "--cfg-scale", "noise_scheduler": "--scheduler",
}  # fmt: skip
_UNSAFE = re.compile(r"[^\w.-]+")


@dataclass(frozen=True)
class StrengthImages:
    """A request for images: one for each prompt, adapter and strength.

    Args:
        folder: folder of the run; images go to its subfolder ``strengths``.
        config: the run's settings as plain data.
        adapters: adapter files; each is also compared at strength 0, the base model.
        prompts: prompts with one image per strength, all with the same seed.
        strengths: strengths of the adapters.
    """

    folder: Path
    config: Mapping[str, Any]
    adapters: tuple[Path, ...]
    prompts: tuple[str, ...]
    strengths: tuple[float, ...]

    @property
    def total(self) -> int:
        """Total number of images."""
        return len(self.adapters) * len(self.prompts) * len(self.strengths)

    def target(self, number: int) -> Path:
        """The folder for the images of an adapter."""
        name = _UNSAFE.sub("-", self.adapters[number].stem)[:80]
        return self.folder / FOLDER / f"{number}-{name}"

    def command(self, number: int) -> list[str]:
        """The command line that makes the images of an adapter."""
        config, line = self.config, [sys.executable, str(SCRIPT)]
        line += ["--model", str(config["base_model_name"]), "--model-type", str(config["model_type"])]
        line += [
            "--device",
            str(config.get("train_device") or "auto"),
            "--adapter",
            str(self.adapters[number]),
        ]
        # with "=", so that a text that begins with a dash is accepted as a value
        line += [f"--strengths={','.join(f'{one:g}' for one in self.strengths)}"]
        line += [f"--prompt={prompt}" for prompt in self.prompts]
        line += ["--out", str(self.target(number)), "--overwrite"]
        family = ModelType(config["model_type"])
        sample = next((one for one in config.get("samples") or () if isinstance(one, Mapping)), {})
        reading = reading_in(sample)
        for part in family.parts:
            own = {**(config.get(part) or {}), **reading.get(part, {})}
            if own.get("model_name"):
                line += [f"--part={part}={own['model_name']}"]
            if own.get("include") is False and part in family.spec.optional_encoders:
                line += [f"--without={part}"]
            if own.get("weight_dtype"):
                line += [f"--weight-dtype={part}={own['weight_dtype']}"]
            if own.get("layer_skip"):
                line += [f"--layer-skip={part}={own['layer_skip']}"]
            if own.get("sequence_length"):
                line += [f"--sequence-length={part}={own['sequence_length']}"]
            if own.get("attention_mask", "FAMILY") != "FAMILY":
                line += [f"--attention-mask={own['attention_mask']}"]
        if config.get("prompt_weighting"):
            line += ["--prompt-weighting"]
        if config.get("max_prompt_chunks"):
            line += [f"--max-prompt-chunks={config['max_prompt_chunks']}"]
        return line + [
            f"{option}={sample[name]}" for name, option in _OPTIONS.items() if sample.get(name) is not None
        ]


def read_strengths(text: str) -> tuple[float, ...]:
    """Parse numbers separated by commas, dropping duplicates.

    Raises:
        ConfigError: the text is invalid, or has a number beyond 10 or too many numbers.
    """
    try:
        found = tuple(dict.fromkeys(float(one) for one in text.split(",") if one.strip()))
    except ValueError as error:
        raise ConfigError(f"{text!r} is not a list of numbers", FIELD, "for example 0, 0.5, 1") from error
    wrong = next((one for one in found if not -MOST_STRENGTH <= one <= MOST_STRENGTH), None)
    if wrong is not None:
        raise ConfigError(f"{wrong:g} is not between -10 and 10", FIELD)
    if not 1 <= len(found) <= MOST_COLUMNS:
        raise ConfigError(f"enter between 1 and {MOST_COLUMNS} strengths", FIELD, "for example 0, 0.5, 1")
    return found


def read_prompts(text: str) -> tuple[str, ...]:
    """The lines that are not empty, without duplicates.

    Raises:
        ConfigError: there are no prompts, or too many.
    """
    found = tuple(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))
    if not 1 <= len(found) <= MOST_PROMPTS:
        raise ConfigError(f"enter between 1 and {MOST_PROMPTS} prompts, one per line", "prompts")
    return found


class StrengthJob:
    """Makes the images. Call ``run`` in a thread, ``stop`` from anywhere.

    Args:
        made: called in that thread after each image with the number made so far.
    """

    def __init__(self, wanted: StrengthImages, made: Callable[[int], None]) -> None:
        self.wanted, self._made = wanted, made
        self._stopped = threading.Event()
        self._process: LineProcess | None = None

    def run(self) -> Grid:
        """Make all images. Rows are prompts, columns are adapters and strengths. If stopped, missing cells
        stay empty.

        Raises:
            UserError: an image cannot be made.
        """
        paths: list[list[Path]] = []
        for number in range(len(self.wanted.adapters)):
            if self._stopped.is_set():
                break
            done = sum(map(len, paths))
            paths.append([])
            process = self._process = LineProcess(self.wanted.command(number), b"", SAMPLER)
            if self._stopped.is_set():
                process.stop()  # stopped before there was a process to end
            try:
                for line in process.lines():
                    paths[-1].append(Path(line.decode().strip()))
                    self._made(min(done + len(paths[-1]), self.wanted.total))
            except UserError:
                if not self._stopped.is_set():
                    raise
            finally:
                process.end()
        return strength_grid(self.wanted, paths)

    def stop(self) -> None:
        """Stop. Finished images stay."""
        self._stopped.set()
        if self._process is not None:
            self._process.stop()


def strength_grid(wanted: StrengthImages, paths: Sequence[Sequence[Path]]) -> Grid:
    """Arrange images in a grid.

    Args:
        paths: for each adapter the images of all prompts at the first strength, then at the second, ... as far as
            they were made.
    """
    many = len(wanted.adapters) > 1
    columns = [
        f"{adapter.stem} @ {strength:g}" if many else f"{strength:g}"
        for adapter in wanted.adapters
        for strength in wanted.strengths
    ]
    cells = {}
    for number, made in enumerate(paths):
        for turn, path in enumerate(made[: len(wanted.strengths) * len(wanted.prompts)]):
            strength, row = divmod(turn, len(wanted.prompts))
            column = number * len(wanted.strengths) + strength
            cells[row, column] = GridImage(path, f"{wanted.prompts[row]}  \u2013  {columns[column]}")
    return Grid(wanted.prompts, tuple(columns), cells)
