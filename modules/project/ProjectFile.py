"""``project.json``: the decisions of a taste project, readable by hand. All names are relative to its folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from modules.project.candidates.SourceShelf import NAME as SOURCE_NAME
from modules.project.prompts import Task
from modules.spec.registry import FAMILIES
from modules.util.display import counted
from modules.util.errors import ConfigError, UserError
from modules.util.jsonio import read_json
from modules.util.owned_files import shown

NAME = "project.json"
CARDS = (8, 12, 16, 24)
WITH_SOURCES = 2
"""The format of projects of edits; all others keep the first one, which older versions read."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ModelPart(_Part):
    """The model to train: type, location (a folder, a file, or a hub name), and the adapter to start from."""

    type: str
    base: str
    adapter: str = ""


class ImagePart(_Part):
    """Settings of the images. Missing values are the usual ones of the model.

    Args:
        source_resolution: of a project of edits: side in pixels of a square of the area to which source images are
            scaled, in training too; ``None`` for the size of the image.
    """

    width: Annotated[int, Field(ge=64, le=8192, multiple_of=8)] | None = None
    height: Annotated[int, Field(ge=64, le=8192, multiple_of=8)] | None = None
    steps: Annotated[int, Field(ge=1, le=1000)] | None = None
    cfg: Annotated[float, Field(ge=0, le=100, strict=False)] | None = None
    sampler: str | None = None
    negative: str = ""
    source_resolution: Annotated[int, Field(ge=64, le=1024)] | None = None


class ProjectFile(_Part):
    """A project's settings.

    Args:
        generator: ``kind`` and the settings of that generator.
        card: memory of the graphics card in GB.
        preset: a preset in ``training_presets``; by default it is found by model and card.
        held_out: prompts used for judging and never for picking.
        held_out_sources: names of what these prompts edit, one for each; empty for prompts alone.
        near_duplicates: tolerance for near-duplicates, as in picking.
    """

    VERSION: ClassVar[int] = WITH_SOURCES

    format: int = 1
    model: ModelPart
    generator: dict[str, Any]
    image: ImagePart = ImagePart()
    card: Literal[8, 12, 16, 24] = 16
    preset: str = ""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1
    held_out: list[str]
    held_out_sources: list[Annotated[str, Field(pattern=f"^{SOURCE_NAME.pattern}$")]] = []
    near_duplicates: Annotated[int, Field(ge=-1, le=64)] = 2

    @property
    def edits(self) -> bool:
        """True if images are made from other images."""
        return bool(self.held_out_sources)

    @property
    def held_out_tasks(self) -> list[Task]:
        """The tasks used for judging."""
        sources = self.held_out_sources or [""] * len(self.held_out)
        return [Task(prompt, source) for prompt, source in zip(self.held_out, sources, strict=True)]

    def hold_out(self, tasks: Sequence[Task]) -> None:
        """Set the tasks used for judging."""
        self.held_out = [one.prompt for one in tasks]
        self.held_out_sources = [one.source for one in tasks if one.source]
        self.format = WITH_SOURCES if self.edits else 1

    def text(self) -> str:
        """The content of the file."""
        # what is not used is left out, so that older versions read the file
        without: dict[str, Any] = {} if self.edits else {"held_out_sources": True}
        if self.image.source_resolution is None:
            without["image"] = {"source_resolution"}
        return self.model_dump_json(indent=2, exclude=without) + "\n"

    @property
    def device(self) -> str:
        """The device of programs that judge images or learn from answers, that of the generator. ``auto`` is
        the graphics card, else the CPU.
        """
        return str(self.generator.get("device", "auto"))

    @classmethod
    def read(cls, folder: Path) -> ProjectFile:
        """Read the settings of a project.

        Raises:
            UserError: there is no project, a newer program wrote it, or a value is wrong.
        """
        path = folder / NAME
        if not path.is_file():
            raise UserError(
                f"{shown(folder)} is not a project: it has no {NAME}", hint="make one with taste.py new"
            )
        data = read_json(path, "project")
        version = data.get("format") if isinstance(data, dict) else None
        if isinstance(version, int) and version > cls.VERSION:
            raise UserError(f"{shown(path)} was written by a newer version of this program", hint="update it")
        return cls.checked(data, shown(path))

    @classmethod
    def checked(cls, data: object, where: str) -> ProjectFile:
        """Validate plain data as settings. ``ConfigError`` names the first invalid value."""
        try:
            made = cls.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(map(str, first["loc"])) or "project"
            given = f", not {first['input']!r:.80}" if first["type"] != "missing" else ""
            raise ConfigError(f"{where}: {first['msg']}{given}", name, "correct this value") from error
        if made.model.type not in FAMILIES:
            raise ConfigError(
                f"there is no model type {made.model.type!r:.80}", "--model-type", f"known: {', '.join(FAMILIES)}"
            )
        if not isinstance(made.generator.get("kind"), str):
            raise ConfigError(f"{where}: no generator is named", "generator.kind", "for example own")
        if made.held_out_sources and len(made.held_out_sources) != len(made.held_out):
            raise ConfigError(
                f"{where}: {len(made.held_out_sources)} source images for {counted(len(made.held_out), 'prompt')}",
                "held_out_sources",
                "restore the file from a copy",
            )
        return made
