"""One round: images, picks, a run, an adapter. Everything about it is in its folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from modules.curation.store import STORE_NAME
from modules.runner.RunDirectory import RunDirectory
from modules.util.errors import UserError
from modules.util.files.EventLog import peek
from modules.util.jsonio import read_json
from modules.util.owned_files import Owned, shown

_ASKED = "SELECT group_key FROM events WHERE undone = 0 AND kind IN ('answer', 'judge')"
_MARKS = (
    "SELECT COUNT(*) FROM events WHERE json_extract(payload, '$.like') IS NOT NULL AND seq IN (SELECT MAX(seq)"
    " FROM events WHERE undone = 0 AND kind = 'mark' GROUP BY group_key, json_extract(payload, '$.file'))"
)
"""A mark that was taken off is none any more."""
_ANSWERS = (
    f"SELECT COUNT(*) + ({_MARKS}) FROM events WHERE undone = 0 AND (kind IN ('answer', 'judge')"
    f" OR (kind = 'pick' AND group_key NOT IN ({_ASKED}))) AND payload NOT LIKE '%\"automatic\": true%'"
)
_DONE_GROUPS = (
    "SELECT COUNT(*) FROM events WHERE kind = 'done' AND seq IN"
    " (SELECT MAX(seq) FROM events WHERE undone = 0 GROUP BY group_key)"
)


@dataclass(frozen=True)
class Candidate:
    """An image to pick from.

    Args:
        file: its name in the round's ``candidates``.
    """

    file: str
    prompt: str
    seed: int


class Round:
    """A round of a project, made or not.

    Args:
        owned: the project's folder.
        number: from 1.
    """

    def __init__(self, owned: Owned, number: int) -> None:
        self.number = number
        self.name = f"round-{number}"
        self._owned = owned
        self.folder = owned.root / self.name
        self.plan_path = self.folder / "plan.json"
        self.candidates = self.folder / "candidates"
        self.pairs = self.folder / "pairs"
        self.config_path = self.folder / "config.json"
        self.run = RunDirectory(self.folder / "run")
        self.adapter_path = self.folder / "adapter.safetensors"
        self.taste_path = self.folder / "taste.safetensors"
        self.prompts_path = self.folder / "prompts.txt"
        self._trained_path = self.folder / "trained.json"

    # --- images ---

    @cached_property
    def plan(self) -> dict[str, Any]:
        """What is made in this round: ``adapter``, ``strength`` and ``images``; empty before it is decided."""
        if not self.plan_path.is_file():
            return {}
        data = read_json(self.plan_path, "plan")
        fields: dict[str, tuple[type, ...]] = {"adapter": (str,), "strength": (int, float), "images": (list,)}
        good = isinstance(data, dict) and all(
            isinstance(data.get(name), kind) for name, kind in fields.items()
        )
        keys = {"file", "prompt", "seed"}
        if not good or not all(isinstance(one, dict) and one.keys() == keys for one in data["images"]):
            raise UserError(f"{shown(self.plan_path)} is not a plan of images", hint="restore it from a copy")
        return dict(data)

    def images(self) -> list[Candidate]:
        """The images of the plan."""
        return [Candidate(**one) for one in self.plan.get("images", [])]

    def missing(self) -> list[Candidate]:
        """Those that are not made."""
        return [one for one in self.images() if not (self.candidates / one.file).is_file()]

    def write_plan(self, adapter: str, strength: float, images: list[Candidate]) -> None:
        """Decide what is made. Images that were decided before have to be among them."""
        plan = {"adapter": adapter, "strength": strength, "images": [vars(one) for one in images]}
        write_json_in(self._owned, f"{self.name}/plan.json", plan)
        self.__dict__.pop("plan", None)

    def keep_candidate(self, file: str, data: bytes) -> None:
        """Write an image that was made."""
        with self._owned.write(f"{self.name}/candidates/{file}") as temporary:
            temporary.write_bytes(data)

    def keep_preview(self, data: bytes) -> None:
        """Write how far the image at work is, as ``preview``; empty data removes it."""
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
        """How many questions were answered; a pair that was picked without a question is one answer too, and so is an
        image that was liked or disliked.

        This is what a taste learns from, and the number that is shown everywhere.
        """
        return self._count(_ANSWERS)

    @property
    def pair_count(self) -> int:
        return self._count("SELECT COUNT(*) FROM pairs")

    @property
    def groups_done(self) -> int:
        """How many prompts are finished in the pair tool."""
        return self._count(_DONE_GROUPS)

    @property
    def prompt_count(self) -> int:
        return len({one.prompt for one in self.images()})

    # --- training ---

    @property
    def trained(self) -> dict[str, Any]:
        """What was trained (``steps``, ``pairs``, ...); empty until a run has finished."""
        if not self._trained_path.is_file() or not self.adapter_path.is_file():
            return {}
        data = read_json(self._trained_path, "record of a training")
        return data if isinstance(data, dict) else {}

    def write_trained(self, record: dict[str, Any]) -> None:
        write_json_in(self._owned, f"{self.name}/trained.json", record)

    @property
    def taste(self) -> dict[str, Any]:
        """How well the taste was learned from the answers up to this round; empty where it was not."""
        path = self.folder / "taste.json"
        data = read_json(path, "record of a learned taste") if path.is_file() else {}
        return data if isinstance(data, dict) else {}

    def write_taste(self, record: dict[str, Any]) -> None:
        write_json_in(self._owned, f"{self.name}/taste.json", record)

    def write_prompts(self, prompts: Sequence[str]) -> None:
        """Of which prompts images are made while training."""
        with self._owned.write(f"{self.name}/prompts.txt") as temporary:
            temporary.write_text("".join(f"{prompt}\n" for prompt in prompts), encoding="utf-8")

    def write_config(self, config: dict[str, Any]) -> None:
        write_json_in(self._owned, f"{self.name}/config.json", config)

    def forget_training(self) -> None:
        """Remove run and adapter, so that it can be trained again."""
        self._owned.remove(f"{self.name}/trained.json")
        self._owned.remove(f"{self.name}/taste.json")
        self._owned.remove(f"{self.name}/adapter.safetensors")
        self._owned.remove_tree(f"{self.name}/run")


def write_json_in(owned: Owned, name: str, data: Any) -> None:
    """Write JSON to a file of a project, atomically."""
    with owned.write(name) as temporary:
        temporary.write_text(
            json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
        )
