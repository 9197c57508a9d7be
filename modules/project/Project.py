"""A taste project: a folder with rounds of making, picking, training and proving."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from modules.generator.Generator import Generator, ImageRequest
from modules.generator.registry import make_generator
from modules.project.candidates.SourceShelf import FOLDER, SourceShelf
from modules.project.candidates.SourceShelf import NAME as SOURCE_NAME
from modules.project.ProjectFile import NAME, ModelPart, ProjectFile
from modules.project.prompts import Given, Prompts, Task, check_tasks, hold_out, read_rows, read_tasks
from modules.project.Round import Round
from modules.spec.registry import FAMILIES
from modules.util.errors import DataError, UserError, refused_as
from modules.util.files.locking import try_lock
from modules.util.files.user_path import user_path
from modules.util.owned_files import TEMPORARY, Owned, shown
from modules.util.prompts_file import ENDING, PromptRow
from modules.util.tensors.peft_config import NAME as PEFT_CONFIG
from modules.util.tensors.peft_config import START, WEIGHTS, settings_of

PROMPTS = "prompts.txt"
EDITS = f"prompts{ENDING}"
"""The prompts of a project of edits, with what they edit."""
ARENA = "arena"
LOCK = ".project.lock"
LARGEST_STRENGTH = 10.0


@dataclass(frozen=True)
class Adapter:
    """An adapter (or the base model) whose images are made or compared.

    Args:
        name: the displayed name.
        file: ``None`` for the base model.
    """

    name: str
    file: Path | None = None
    strength: float = 1.0

    @property
    def key(self) -> str:
        """An identifier of the adapter's content, which changes with every training."""
        if self.file is None:
            return "base"
        info = self.file.stat()
        return f"{_digest(self.file, info.st_size, info.st_mtime_ns)}@{self.strength:g}"

    def at(self, strength: float) -> Adapter:
        """The same adapter at another strength.

        Raises:
            DataError: there is no adapter, or it cannot have this strength.
        """
        if self.file is None:
            raise DataError(
                f"{self.name} has no adapter whose strength could be {strength:g}",
                "--strength",
                "leave the strength out, or name an adapter, for example last",
            )
        if not abs(strength) <= LARGEST_STRENGTH:
            raise DataError(
                f"the strength {strength:g} is not between -{LARGEST_STRENGTH:g} and {LARGEST_STRENGTH:g}",
                "--strength",
                "1 is the strength of the training",
            )
        return replace(self, strength=strength)


def _check_empty(owned: Owned, folder: Path) -> None:
    """Remove what a killed creation left, and nothing from a folder that is refused. Raises ``DataError`` if a
    person's files are there.
    """
    if owned.is_vacant():
        return
    there = [one.name for one in folder.iterdir()] if folder.is_dir() else []
    left = fnmatch.filter(there, TEMPORARY)
    if left and len(left) < len(there) and NAME not in there:
        raise DataError(
            f"{shown(folder)} is not empty; creating a project in it may have been interrupted", "DIR",
            "choose a new folder, or empty this one if nothing in it is yours",
        )  # fmt: skip
    raise DataError(f"{shown(folder)} is not empty", "DIR", "choose a new folder")


@lru_cache(maxsize=64)
def _digest(file: Path, size: int, changed: int) -> str:
    """Digest of a file of this size and modification time, cached because a window asks often."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


class Project:
    """An existing project.

    Args:
        folder: the folder with ``project.json``.

    Raises:
        UserError: there is no project, or it cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder).absolute()
        self.owned = Owned(self.folder, local=True)
        self.file = ProjectFile.read(self.folder)
        self.shelf = SourceShelf(self.owned)
        self.prompts_path = self.folder / (EDITS if self.file.edits else PROMPTS)

    @classmethod
    def create(
        cls, folder: Path, settings: dict[str, Any], prompts: Prompts, adapter: Path | None
    ) -> Project:
        """Create a project.

        Args:
            settings: as in ``project.json``, without values derived from the other arguments.
            prompts: a file, its text or its lines; copied into the project, with the images that the prompts of a
                ``.jsonl`` file edit. The held-out prompts are chosen here once and for all.
            adapter: adapter to start from; copied into the project.

        Raises:
            UserError: the folder is not empty, or a value is wrong. Then nothing is left of what was written.
        """
        owned = Owned(folder, local=True)
        _check_empty(owned, folder)
        made = ProjectFile.checked({**settings, "held_out": []}, NAME)
        given = read_tasks(prompts)
        check_tasks(given, FAMILIES[made.model.type])
        made.hold_out(hold_out([one.task for one in given], made.seed))
        if adapter is not None and not adapter.is_file():
            _refuse_folder(adapter)
            raise DataError(f"there is no file {shown(adapter)}", "--adapter", "check the path")
        if made.image.source_resolution is not None and not made.edits:
            raise DataError(
                "has no effect: the prompts have no source images, whose size it sets",
                "--source-resolution",
                "leave it out",
            )
        check_generator(made)
        with owned.filled_at_once(last=NAME) as fresh:
            _fill(fresh, made, prompts, adapter)
        return cls(folder)

    def move_base(self, base: str, generator: dict[str, Any]) -> None:
        """Set the location of the base model and the generator on this computer. Nothing else changes."""
        self.file.model.base = base or self.file.model.base
        self.file.generator |= generator
        _save(self.owned, self.file)

    def change_generator(self, generator: dict[str, Any]) -> None:
        """Switch to another program that makes the images, with its own samplers. Raises ``UserError`` if it
        cannot be used.
        """
        sampler = self.file.image.sampler if generator["kind"] == self.file.generator["kind"] else None
        image = self.file.image.model_copy(update={"sampler": sampler})
        made = self.file.model_copy(update={"generator": generator, "image": image})
        check_generator(made)
        _save(self.owned, made)
        self.file = made

    def note_source_resolution(self, side: int | None) -> None:
        """Let the images that are made from now on see their sources at the size of the last training."""
        if self.file.edits and side != self.file.image.source_resolution:
            self.file.image = self.file.image.model_copy(update={"source_resolution": side})
            _save(self.owned, self.file)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Lock the project against changes by others. Raises ``UserError`` if it is already locked."""
        with self.owned.plain_file(LOCK).open("a+b") as handle:
            if not try_lock(handle):
                raise UserError(
                    f"another process is working in {shown(self.folder)}", hint="wait for it or stop it"
                )
            yield

    # --- what there is ---

    def rounds(self) -> list[Round]:
        """All rounds. There is always a first one, even if it is still empty."""
        found = [Round(self.owned, 1)]
        while (following := Round(self.owned, len(found) + 1)).plan_path.is_file():
            found.append(following)
        return found

    @property
    def round(self) -> Round:
        """The current round."""
        return self.rounds()[-1]

    def given(self) -> list[Given]:
        """All tasks of the project's file of prompts, with their source images where they lie.

        Raises:
            UserError: it is unreadable, or some of it is not what the project's model makes.
        """
        found = read_tasks(self.prompts_path, self.prompts_path.name)
        if any(bool(one.sources) is not self.file.edits for one in found):
            raise DataError(
                f"{self.prompts_path.name} has prompts {'without' if self.file.edits else 'with'} source images",
                self.prompts_path.name,
                "a project has either edits or other images; begin another one",
            )
        if self.file.edits:
            # named after what it was: with another content it would be a task that nobody has seen
            kept = (path for one in found for path in one.sources[:1] if path.parent == self.shelf.folder)
            self.shelf.check(sorted({path.stem for path in kept if SOURCE_NAME.fullmatch(path.stem)}))
            check_tasks(found, FAMILIES[self.file.model.type])
        return found

    def tasks(self) -> list[Task]:
        """The tasks to pick from: those in the file of prompts that are not held out."""
        judging = {task.key for task in self.file.held_out_tasks}
        found = [one.task for one in self.given() if one.task.key not in judging]
        if not found:
            name = self.prompts_path.name
            raise DataError(f"{name} has no prompts except those kept for judging", name, "write some more")
        return found

    def prompts(self) -> list[str]:
        """The prompts of ``tasks``, each once for each source."""
        return [task.prompt for task in self.tasks()]

    def keep_sources(self) -> None:
        """Copy source images that were added to the file of prompts by hand, so that the project has all it needs."""
        for one in self.given() if self.file.edits else ():
            self.shelf.keep(one.sources)

    def generator(self) -> Generator:
        """The generator that makes the images."""
        return make_generator(self.file.generator["kind"], generator_settings(self.file))

    @property
    def scales_sources(self) -> bool:
        """True if what makes the images scales their sources to ``source_resolution``; other programs use the size
        that their workflow says.
        """
        return bool(self.file.generator["kind"] == "own")

    def request(self, task: Task, seed: int, adapter: Adapter, source_resolution: int | None) -> ImageRequest:
        """A request for an image with the settings of this project, but its own size of the sources."""
        image = self.file.image
        return ImageRequest(
            task.prompt, seed, image.negative, image.width, image.height, image.steps, image.cfg, image.sampler,
            adapter.file, adapter.strength, self.shelf.files(task.source),
            source_resolution,
        )  # fmt: skip

    def check_requests(self, generator: Generator, requests: Sequence[ImageRequest]) -> None:
        """Check everything that can be checked before the first image.

        Raises:
            UserError: the program lacks something, or a source image is missing or has changed.
        """
        self.shelf.check(sorted({one.sources[0].stem for one in requests if one.sources}))
        if self.file.edits and not all(one.sources for one in requests):
            raise DataError(
                f"a source image in {FOLDER} is missing",
                FOLDER,
                "put it back: other images were made from it",
            )
        generator.check(requests)

    def adapter(self, text: str) -> Adapter:
        """Parse ``base``, ``start``, ``last``, ``round-N`` or a file, with ``@S`` for another strength.

        Raises:
            DataError: the adapter does not exist.
        """
        name, at, rest = text.rpartition("@")
        if not at or not rest or user_path(text).is_file():
            return self._adapter(text.removesuffix("@"))
        found = self._adapter(name)
        try:
            strength = float(rest)
        except ValueError:
            raise DataError(f"{rest!r} is not a strength", text, "for example round-1@0.7") from None
        return replace(found.at(strength), name=f"{found.name} at {strength:g}")

    def _adapter(self, name: str) -> Adapter:
        if name in ("base", "none"):
            return Adapter("base")
        trained = {f"round-{one.number}": one.adapter_path for one in self.rounds() if one.trained}
        if name == "last" and trained:
            last = list(trained)[-1]
            return Adapter(last, trained[last])
        if name in ("start", "last") and self.file.model.adapter:
            return Adapter("start", self.folder / self.file.model.adapter)
        if name in trained:
            return Adapter(name, trained[name])
        path = user_path(name)
        if path.is_file():
            # with "..", a file outside would pass for one of the project
            folder = path.parent.resolve() if ".." in path.parts else path.parent.absolute()
            return Adapter(path.stem, folder / path.name)
        _refuse_folder(path)
        start = ["start"] if self.file.model.adapter else []
        known = ["base", *start, *trained, *(["last"] if start or trained else [])]
        raise DataError(f"there is no adapter {name!r} here", hint=f"known: {', '.join(known)}, or a file")

    @property
    def newest(self) -> Adapter:
        """The adapter of the last trained round, else the one to start from, else none."""
        trained = any(one.trained for one in self.rounds())
        return self.adapter("last" if trained or self.file.model.adapter else "base")

    def kept_for(self, one: Round, adapter: Adapter) -> Adapter:
        """An adapter whose file is in the project. A file from elsewhere is copied into the folder of the round whose
        images it makes, because it may be replaced or removed, and the project may be moved.
        """
        if adapter.file is None or adapter.file.is_relative_to(self.folder):
            return adapter
        _copy(self.owned, adapter.file, f"{one.name}/")
        return replace(adapter, file=one.folder / START)

    def stored_name(self, path: Path | None) -> str:
        """The name under which the project stores a file: relative if the file is inside the project."""
        if path is None:
            return ""
        inside = path.is_relative_to(self.folder)
        return path.relative_to(self.folder).as_posix() if inside else os.fspath(path)


def _refuse_folder(adapter: Path) -> None:
    """Raise ``DataError`` if a folder is given as an adapter, such as that in which peft keeps one."""
    if adapter.is_dir():
        raise DataError(
            f"the adapter {shown(adapter)} is a folder, not a file",
            "--adapter",
            f"name the file in it, such as {WEIGHTS}",
        )


def generator_settings(file: ProjectFile) -> dict[str, Any]:
    """The settings of the generator."""
    model: ModelPart = file.model
    return {**file.generator, "model_type": model.type, "base": model.base}


def check_generator(file: ProjectFile) -> None:
    """Raise ``UserError`` if the generator cannot be used, or cannot be given the source images that there are."""
    generator = make_generator(file.generator["kind"], generator_settings(file))
    if file.edits:
        generator.refuse_sources()


def lines_of_edits(shelf: SourceShelf, rows: Sequence[PromptRow]) -> str:
    """The lines of a project's file of prompts; what they edit is copied into the project."""
    return "".join(
        json.dumps(
            {"prompt": row.text, "source": f"{FOLDER}/{shelf.files(shelf.keep(row.sources))[0].name}"},
            ensure_ascii=False,
        )
        + "\n"
        for row in rows
    )


def lines_of_prompts(rows: Sequence[PromptRow]) -> str:
    """The lines of a project's file of prompts without sources.

    Raises:
        DataError: a prompt begins with #, which such a file reads as a comment.
    """
    texts = [" ".join(row.text.split()) for row in rows]
    for text in texts:
        if text.startswith("#"):
            raise DataError(
                f"the prompt {shown(text, 60)} begins with #, like a comment", "--prompts", "remove the #"
            )
    return "".join(f"{text}\n" for text in texts)


def _fill(owned: Owned, made: ProjectFile, prompts: Prompts, adapter: Path | None) -> None:
    """Write all files of a new project."""
    if made.edits:
        data = lines_of_edits(SourceShelf(owned), read_rows(prompts)).encode("utf-8")
    elif isinstance(prompts, str):
        data = prompts.encode("utf-8")
    elif isinstance(prompts, Path) and prompts.suffix.lower() != ENDING:
        data = prompts.read_bytes()
    else:
        data = lines_of_prompts(read_rows(prompts)).encode("utf-8")
    with owned.write(EDITS if made.edits else PROMPTS) as temporary:
        temporary.write_bytes(data)
    if adapter is not None:
        _copy(owned, adapter, "")
        made.model.adapter = START
    _save(owned, made)


def _copy(owned: Owned, source: Path, folder: str) -> None:
    """Copy an adapter into the project, with its settings if peft wrote it. A second name of the same file would change
    with it when it is written again.

    Args:
        folder: the folder in the project, with a slash at its end.
    """
    copied = f"{folder}{PEFT_CONFIG}"
    with refused_as(f"{shown(source)} cannot be copied", "--adapter", kind=DataError):
        settings = settings_of(source)
        if settings is not None:
            owned.copy(settings, copied)
        elif (owned.root / copied).exists():
            # those of an adapter that was copied here before must not count for this one
            with owned.write(copied) as temporary:
                temporary.write_text("{}", encoding="utf-8")
        owned.copy(source, f"{folder}{START}")


def _save(owned: Owned, file: ProjectFile) -> None:
    with owned.write(NAME) as temporary:
        temporary.write_text(file.text(), encoding="utf-8")
