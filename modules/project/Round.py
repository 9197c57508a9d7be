"""One round: images, picks, a run, an adapter. Everything about it is in its folder."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from modules.curation.store import ALL_SHOWN, GOAL, STORE_NAME, WAY
from modules.project.candidates.SourceShelf import FOLDER, NAME, SourceShelf
from modules.project.prompts import Task
from modules.runner.RunDirectory import RunDirectory
from modules.util.errors import UserError
from modules.util.files.EventLog import peek
from modules.util.jsonio import read_json
from modules.util.owned_files import Owned, shown
from modules.util.prompts_file import ENDING

_ANSWER = (
    "(kind = 'judge' AND json_extract(payload, '$.good') IS NOT NULL OR kind = 'answer' AND"
    " COALESCE(json_extract(payload, '$.best'), json_extract(payload, '$.worst'),"
    " NULLIF(json_extract(payload, '$.tie'), 0), NULLIF(json_extract(payload, '$.both_bad'), 0)) IS NOT NULL)"
)
"""A skipped question is none."""
_ASKED = f"SELECT group_key FROM events WHERE undone = 0 AND {_ANSWER}"
_MARKS = (
    "SELECT COUNT(*) FROM events WHERE json_extract(payload, '$.like') IS NOT NULL AND seq IN (SELECT MAX(seq)"
    " FROM events WHERE undone = 0 AND kind = 'mark' GROUP BY group_key, json_extract(payload, '$.file'))"
)
"""Removing a mark leaves no mark."""
_ANSWERS = (
    f"SELECT COUNT(*) + ({_MARKS}) FROM events WHERE undone = 0 AND ({_ANSWER}"
    f" OR (kind = 'pick' AND group_key NOT IN ({_ASKED}))) AND payload NOT LIKE '%\"automatic\": true%'"
)
_ALL_SHOWN = f"SELECT CAST(value AS INTEGER) FROM meta WHERE key = '{ALL_SHOWN}'"
_WAY = (
    f"SELECT value FROM meta WHERE key = '{WAY}' UNION ALL SELECT * FROM (SELECT json_extract(payload, '$.mode')"
    " FROM events WHERE undone = 0 AND kind = 'answer' ORDER BY seq DESC LIMIT 1)"
)
"""Stores of older versions note it only with answers."""
_GOAL = f"SELECT value FROM meta WHERE key = '{GOAL}'"
_DONE_GROUPS = (
    "SELECT COUNT(*) FROM events WHERE kind = 'done' AND seq IN"
    " (SELECT MAX(seq) FROM events WHERE undone = 0 GROUP BY group_key)"
)


_KEYS = {"file", "prompt", "seed"}
_FILE = re.compile(r"\w[\w.-]{0,99}")
"""A name that leads to no other folder."""
_SOURCE = "source"


@dataclass(frozen=True)
class Candidate:
    """An image to pick from.

    Args:
        file: its name in the round's folder ``candidates``.
        source: name of what it is an edit of; empty for an image of a prompt alone.
    """

    file: str
    prompt: str
    seed: int
    source: str = ""

    @property
    def task(self) -> Task:
        """The prompt and sources that it is made of. Only images of the same task are compared."""
        return Task(self.prompt, self.source)

    def to_dict(self) -> dict[str, Any]:
        """As stored."""
        return {name: value for name, value in vars(self).items() if name != _SOURCE or value}

    @staticmethod
    def is_stored(data: object) -> bool:
        """Return whether plain data is an image as stored."""
        if not isinstance(data, dict) or data.keys() - {_SOURCE} != _KEYS:
            return False
        file, prompt = data["file"], data["prompt"]
        if not isinstance(file, str) or not isinstance(prompt, str) or type(data["seed"]) is not int:
            return False
        if _FILE.fullmatch(file) is None:
            return False
        source = data.get(_SOURCE)
        return _SOURCE not in data or (isinstance(source, str) and NAME.fullmatch(source) is not None)


class Round:
    """A round of a project. It may still be empty."""

    def __init__(self, owned: Owned, number: int) -> None:
        self.number = number
        self.name = f"round-{number}"
        self._owned = owned
        self.folder = owned.root / self.name
        self.plan_path = self.folder / "plan.json"
        self.candidates = self.folder / "candidates"
        self.surplus = self.folder / "surplus"
        """Folder of surplus images: those from which candidates are chosen, including those not chosen."""
        self.pairs = self.folder / "pairs"
        self.config_path = self.folder / "config.json"
        self.run = RunDirectory(self.folder / "run")
        self.adapter_path = self.folder / "adapter.safetensors"
        self.taste_path = self.folder / "taste.safetensors"
        self.newer_taste_path = self.folder / "taste-newer.safetensors"
        """A taste learned while a run on the previous one can still be resumed, because resuming needs the
        previous one.
        """
        self._trained_path = self.folder / "trained.json"
        self._added_path = self.folder / "added.json"
        self._chosen_path = self.folder / "shown.json"

    # --- images ---

    @cached_property
    def plan(self) -> dict[str, Any]:
        """The plan of this round: ``adapter``, ``strength`` and ``images``; empty until it is decided.

        If more images are made than shown, also ``surplus`` (the factor) and ``shown`` (images shown per
        prompt). If sources of edits are scaled to a size of their own, also ``source_resolution``.
        """
        if not self.plan_path.is_file():
            return {}
        data = read_json(self.plan_path, "plan")
        fields: dict[str, tuple[type, ...]] = {"adapter": (str,), "strength": (int, float), "images": (list,)}
        good = isinstance(data, dict) and all(
            isinstance(data.get(name), kind) for name, kind in fields.items()
        )
        good = good and all(
            type(data.get(name, 1)) is int and data.get(name, 1) > 0
            for name in ("surplus", "shown", "source_resolution")
        )
        if not good or not all(map(Candidate.is_stored, data["images"])):
            raise UserError(f"{shown(self.plan_path)} is not a plan of images", hint="restore it from a copy")
        return dict(data)

    def images(self) -> list[Candidate]:
        """The planned images."""
        return [Candidate(**one) for one in self.plan.get("images", [])]

    def missing(self) -> list[Candidate]:
        """The planned images that are not made yet."""
        return [one for one in self.images() if self.made(one) is None]

    def made(self, image: Candidate) -> Path | None:
        """The file of a planned image; ``None`` until it is made."""
        places = (self.candidates, self.surplus) if self.shown else (self.candidates,)
        return next((place / image.file for place in places if (place / image.file).is_file()), None)

    @property
    def complete(self) -> bool:
        """True if all planned images are made and, with a surplus, the ones to show are chosen."""
        return bool(self.images()) and not self.missing() and not self.to_choose()

    def write_plan(
        self,
        adapter: str,
        strength: float,
        images: list[Candidate],
        surplus: int = 1,
        shown: int = 0,
        source_resolution: int | None = None,
    ) -> None:
        """Write the plan. It must include all images planned before."""
        plan: dict[str, Any] = {
            "adapter": adapter,
            "strength": strength,
            "images": [one.to_dict() for one in images],
        }
        if surplus > 1:
            plan |= {"surplus": surplus, "shown": shown}
        if source_resolution is not None:
            plan["source_resolution"] = source_resolution
        write_json_in(self._owned, f"{self.name}/plan.json", plan)
        self.__dict__.pop("plan", None)

    def keep_image(self, image: Candidate, data: bytes) -> None:
        """Save an image that was made, as a candidate or as one of a surplus to choose from."""
        waits = image.task.group in self.pools()
        if not waits:
            self._place_sources(image)
        with self._owned.write(
            f"{self.name}/{'surplus' if waits else 'candidates'}/{image.file}"
        ) as temporary:
            temporary.write_bytes(data)

    def _place_sources(self, image: Candidate) -> None:
        """Put what a candidate is an edit of next to it, before the candidate itself."""
        if image.source:
            SourceShelf(self._owned).place_next_to(image.source, f"{self.name}/candidates/{image.file}")

    # --- more images than are shown ---

    @property
    def shown(self) -> int:
        """Number of images per prompt that are shown if more are made; 0 if all are shown."""
        return int(self.plan.get("shown", 0))

    def pools(self) -> dict[str, list[Candidate]]:
        """The images of every task that has more images than are shown, by the task's ``group``."""
        found: dict[str, list[Candidate]] = {}
        for image in self.images() if self.shown else ():
            found.setdefault(image.task.group, []).append(image)
        return {prompt: images for prompt, images in found.items() if len(images) > self.shown}

    def chosen(self) -> dict[str, list[str]]:
        """The chosen files, by the task's ``group``."""
        if not self._chosen_path.is_file():
            return {}
        data = read_json(self._chosen_path, "list of chosen images")
        known = {prompt: {image.file for image in images} for prompt, images in self.pools().items()}
        good = isinstance(data, dict) and all(
            isinstance(files, list) and prompt in known and known[prompt].issuperset(map(str, files))
            for prompt, files in data.items()
        )
        if not good:
            raise UserError(
                f"{shown(self._chosen_path)} is not a choice among the images of {self.name}",
                hint="delete it; they are chosen again",
            )
        return dict(data)

    def to_choose(self) -> dict[str, list[Candidate]]:
        """The pools with fewer chosen images than are shown, or with a chosen image that is not a candidate yet."""
        chosen, wanted = self.chosen(), self.shown
        return {
            prompt: images
            for prompt, images in self.pools().items()
            if len(chosen.get(prompt, ())) < wanted
            or any((self.surplus / file).is_file() for file in chosen[prompt])
        }

    def choose(self, chosen: Mapping[str, Sequence[str]]) -> None:
        """Make these files candidates, in addition to those chosen before. May be repeated after an interruption."""
        every = {**self.chosen(), **{prompt: list(files) for prompt, files in chosen.items()}}
        write_json_in(self._owned, f"{self.name}/{self._chosen_path.name}", every)
        for image in (image for pool in self.pools().values() for image in pool):
            file = image.file
            if file in every.get(image.task.group, ()) and (self.surplus / file).is_file():
                self._place_sources(image)
                self._owned.move(f"{self.name}/surplus/{file}", f"{self.name}/candidates/{file}")

    # --- images of the person's own ---

    def added(self) -> list[Candidate]:
        """Candidates that were not made here."""
        if not self._added_path.is_file():
            return []
        data = read_json(self._added_path, "list of added images")
        if not isinstance(data, list) or not all(map(Candidate.is_stored, data)):
            raise UserError(
                f"{shown(self._added_path)} is not a list of images", hint="restore it from a copy"
            )
        return [one for one in (Candidate(**one) for one in data) if (self.candidates / one.file).is_file()]

    def expect(self, images: Sequence[Candidate]) -> None:
        """Record images that are about to be added by ``take_in``. After a kill, only those that exist count."""
        names = {image.file for image in images}
        every = [one for one in self.added() if one.file not in names] + list(images)
        write_json_in(self._owned, f"{self.name}/{self._added_path.name}", [one.to_dict() for one in every])

    def take_in(self, image: Candidate, data: bytes, with_prompt: bool = False) -> None:
        """Add an image. ``with_prompt`` also writes its prompt to a file next to it, if the image does not
        name it.
        """
        if with_prompt:
            caption = f"{self.name}/candidates/{Path(image.file).stem}.json"
            write_json_in(self._owned, caption, {"caption": image.prompt})
        self._place_sources(image)
        with self._owned.write(f"{self.name}/candidates/{image.file}") as temporary:
            temporary.write_bytes(data)

    def keep_preview(self, data: bytes) -> None:
        """Save the preview of the image in progress as ``preview``; empty data removes it."""
        if not data:
            self._owned.remove(f"{self.name}/preview")
            return
        with self._owned.write(f"{self.name}/preview") as temporary:
            temporary.write_bytes(data)

    # --- picks ---

    def _count(self, query: str) -> int:
        rows = peek(self.pairs / STORE_NAME, query)
        return int(rows[0][0]) if rows else 0

    @property
    def answers(self) -> int:
        """Number of answers: questions answered and not skipped, pairs picked without a question, and images liked
        or disliked.

        This is the number that is shown everywhere. A taste learns from the same answers, except those about an image
        that was deleted or replaced since.
        """
        return self._count(_ANSWERS)

    @property
    def pair_count(self) -> int:
        return self._count("SELECT COUNT(*) FROM pairs")

    @property
    def way(self) -> str:
        """The way of choosing that the person used last in this round; empty if unknown."""
        rows = peek(self.pairs / STORE_NAME, _WAY)
        return str(rows[0][0] or "") if rows else ""

    @property
    def goal(self) -> tuple[int, float] | None:
        """The pairs per prompt and the certainty that the person used last in this round; ``None`` if unknown."""
        rows = peek(self.pairs / STORE_NAME, _GOAL)
        if not rows:
            return None
        try:
            pairs, threshold = json.loads(rows[0][0])
            return int(pairs), float(threshold)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            place = shown(self.pairs / STORE_NAME)
            what = f"{place} has a damaged number of pairs per prompt"
            raise UserError(what, hint="restore it from a copy") from error

    @property
    def groups_done(self) -> int:
        """Number of prompts finished in the pair tool."""
        return self._count(_DONE_GROUPS)

    @property
    def all_shown(self) -> bool:
        """True if the pair tool has shown every prompt of the candidates; those that look the same count as one, so
        that this may be fewer than ``prompt_count``.
        """
        rows = peek(self.pairs / STORE_NAME, _ALL_SHOWN)
        began = int(rows[0][0] or 0) if rows else 0
        return began > 0 and self.candidates.is_dir() and began >= self.candidates.stat().st_mtime_ns

    @property
    def prompt_count(self) -> int:
        """Number of tasks with at least two images to compare."""
        images = Counter(one.task.key for one in (*self.images(), *self.added()))
        return sum(count > 1 for count in images.values())

    # --- training ---

    @property
    def trained(self) -> dict[str, Any]:
        """The result of training (``steps``, ``pairs``, ...); empty until a run has finished."""
        if not self._trained_path.is_file() or not self.adapter_path.is_file():
            return {}
        data = read_json(self._trained_path, "record of a training")
        return data if isinstance(data, dict) else {}

    def write_trained(self, record: dict[str, Any]) -> None:
        write_json_in(self._owned, f"{self.name}/trained.json", record)

    @property
    def taste(self) -> dict[str, Any]:
        """Figures on how well the taste was learned from the answers up to this round; empty if it was not
        learned.
        """
        return self._record_of_taste("taste-newer.json") or self.taste_of_run

    @property
    def taste_of_run(self) -> dict[str, Any]:
        """As ``taste``, for the taste that the round's run uses."""
        return self._record_of_taste("taste.json")

    def _record_of_taste(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        data = read_json(path, "record of a learned taste") if path.is_file() else {}
        return data if isinstance(data, dict) else {}

    def write_taste(self, record: dict[str, Any], newer: bool = False) -> None:
        """Record how well a taste was learned, after its file was written.

        Args:
            newer: whether it is at ``newer_taste_path``; otherwise it replaces such a one.
        """
        write_json_in(self._owned, f"{self.name}/{'taste-newer' if newer else 'taste'}.json", record)
        if not newer:
            self._forget_newer_taste()

    def _forget_newer_taste(self) -> None:
        self._owned.remove(f"{self.name}/taste-newer.json")
        self._owned.remove(f"{self.name}/{self.newer_taste_path.name}")

    @property
    def prompts_path(self) -> Path:
        """The file of the prompts of images made during training. One with source images is in their folder, because
        such a file names only what is in its own.
        """
        edits = self._owned.root / FOLDER / f"{self.name}{ENDING}"
        return edits if edits.is_file() else self.folder / "prompts.txt"

    def write_prompts(self, tasks: Sequence[Task]) -> None:
        """Write the prompts of the images made during training."""
        edits = any(one.source for one in tasks)
        shelf = SourceShelf(self._owned)
        lines = [
            json.dumps({"prompt": one.prompt, "source": shelf.files(one.source)[0].name}, ensure_ascii=False)
            if edits
            else one.prompt
            for one in tasks
        ]
        name = f"{FOLDER}/{self.name}{ENDING}" if edits else f"{self.name}/prompts.txt"
        with self._owned.write(name) as temporary:
            temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def write_config(self, config: dict[str, Any]) -> None:
        write_json_in(self._owned, f"{self.name}/config.json", config)

    @property
    def has_backup(self) -> bool:
        """True if the run can be resumed."""
        return self.run.backup_dir.is_dir() and any(self.run.backup_dir.iterdir())

    def forget_training(self) -> None:
        """Remove run and adapter, so that the round can be trained again."""
        self._owned.remove(f"{self.name}/trained.json")
        newer = self._record_of_taste("taste-newer.json")
        if newer and self.newer_taste_path.is_file():
            names = self.newer_taste_path.name, self.taste_path.name
            self._owned.remove(f"{self.name}/taste.json")
            self._owned.move(f"{self.name}/{names[0]}", f"{self.name}/{names[1]}", replace=True)
            self.write_taste(newer)
        else:
            self._owned.remove(f"{self.name}/taste.json")
            self._forget_newer_taste()
        self._owned.remove(f"{self.name}/adapter.safetensors")
        self._owned.remove_tree(f"{self.name}/run")


def write_json_in(owned: Owned, name: str, data: Any) -> None:
    """Write JSON to a project file, atomically."""
    with owned.write(name) as temporary:
        temporary.write_text(
            json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
        )
