"""``project.json``: the decisions of a taste project, readable by hand. All names are relative to its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from modules.spec.registry import FAMILIES
from modules.util.errors import ConfigError, UserError
from modules.util.jsonio import read_json
from modules.util.owned_files import shown

NAME = "project.json"
CARDS = (8, 12, 16, 24)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ModelPart(_Part):
    """The model that learns: type, place (a folder, a file, or a name of the hub), and the adapter to start from."""

    type: str
    base: str
    adapter: str = ""


class ImagePart(_Part):
    """How images are made; the model's usual values where nothing is said."""

    width: Annotated[int, Field(ge=64, le=8192, multiple_of=8)] | None = None
    height: Annotated[int, Field(ge=64, le=8192, multiple_of=8)] | None = None
    steps: Annotated[int, Field(ge=1, le=1000)] | None = None
    cfg: Annotated[float, Field(ge=0, le=100, strict=False)] | None = None
    sampler: str | None = None
    negative: str = ""


class ProjectFile(_Part):
    """A project's settings.

    Args:
        generator: ``kind`` and what that generator needs.
        card: memory of the graphics card in GB.
        preset: of ``training_presets``, where none is to be found by model and card.
        held_out: prompts that judge and are never picked from.
        near_duplicates: as in picking, for images that count as one.
    """

    VERSION: ClassVar[int] = 1

    format: int = VERSION
    model: ModelPart
    generator: dict[str, Any]
    image: ImagePart = ImagePart()
    card: Literal[8, 12, 16, 24] = 16
    preset: str = ""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1
    held_out: list[str]
    near_duplicates: Annotated[int, Field(ge=-1, le=64)] = 2

    @property
    def device(self) -> str:
        """Where the programs that judge images and learn from answers compute, as the generator does: ``auto`` is the
        graphics card, else the CPU."""
        return str(self.generator.get("device", "auto"))

    @classmethod
    def read(cls, folder: Path) -> ProjectFile:
        """The settings of a project.

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
        """The settings in plain data. ``ConfigError`` names the first value that is wrong."""
        try:
            made = cls.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(map(str, first["loc"])) or "project"
            given = f", not {first['input']!r}" if first["type"] != "missing" else ""
            raise ConfigError(f"{where}: {first['msg']}{given}", name, "correct this value") from error
        if made.model.type not in FAMILIES:
            raise ConfigError(
                f"there is no model type {made.model.type!r}", "--model-type", f"known: {', '.join(FAMILIES)}"
            )
        if not isinstance(made.generator.get("kind"), str):
            raise ConfigError(f"{where}: no generator is named", "generator.kind", "for example own")
        return made
