"""Notes on what an import changes. What would train other weights comes first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from modules.util.config.BaseConfig import VERSION_KEY
from modules.util.config.faults import join_place, show

MOST_CHARACTERS = 120
"""Maximum length of a note."""
_MOST_OF_A_VALUE = 40
_WORD = re.compile(r"[A-Za-z0-9_]+(?: [A-Z]+)?")

_SAME_WEIGHTS = re.compile(
    r"tensorboard|samples?(?:\[|\Z)|sample_|non_ema_sampling|backup|rolling_backup|save_|workspace_dir"
    r"|cache_dir|huggingface|offline_mode|output_model_format|prevent_overwrites|validat|attention_mechanism"
    r"|compile\Z|dataloader|only_cache|latent_caching|train_device|cloud|secrets|__version"
    r"|optimizer\.(?:fused|fused_back_pass|foreach|capturable|differentiable|log_every|is_paged|use_triton|compile|"
    r"fsdp_in_use)\Z|.*\.(?:offload_fraction|activation_offloading|gradient_checkpointing)\Z"
)
"""Settings that affect the progress, output or files of a run, but not the resulting weights."""


class Note(str):
    """A line of up to ``MOST_CHARACTERS`` about a setting: ``field = value: consequence``.

    Attributes:
        place: the setting.
        theirs: its value in the file, as text.
        why: the consequence.
        ours: the value in our config, as text; empty for none.
        changes_weights: whether the run trains other weights here than it would have there.
        faulty: whether the value is invalid in its own program too.
    """

    place: str
    theirs: str
    why: str
    ours: str
    changes_weights: bool
    faulty: bool

    def __new__(
        cls, place: str, theirs: str, why: str, ours: str, changes_weights: bool, faulty: bool = False
    ) -> Self:
        made = super().__new__(cls, _line(place, theirs, why))
        made.place, made.theirs, made.why, made.ours = place, theirs, why, ours
        made.changes_weights, made.faulty = changes_weights, faulty
        return made


def _line(place: str, theirs: str, why: str) -> str:
    head = f"{place} = {theirs}" if theirs else place
    line = f"{head}: {why}" if head else why
    return line if len(line) <= MOST_CHARACTERS else line[: MOST_CHARACTERS - 1].rstrip() + "…"


class Notes:
    """Notes in the order found.

    Args:
        proceed: called before each file of the data that an import looks into. What it raises ends the import.
    """

    def __init__(self, proceed: Callable[[], object] = lambda: None) -> None:
        self.proceed = proceed
        self._found: list[Note] = []
        self._moved: list[Note] = []

    def add(
        self,
        place: str,
        value: Any,
        why: str,
        *,
        ours: Any = None,
        changes_weights: bool | None = None,
        faulty: bool = False,
    ) -> None:
        """Add a note about ``place``.

        Args:
            place: the setting.
            value: the value in the file.
            why: the consequence.
            ours: the value in our config.
            changes_weights: set it explicitly; otherwise it is derived from the setting.
            faulty: whether the setting is unknown or its value of the wrong kind.
        """
        if changes_weights is None:
            changes_weights = _SAME_WEIGHTS.match(place) is None
        self._found.append(Note(place, _short(value), why, _short(ours), changes_weights, faulty))

    def say(self, place: str, why: str, changes_weights: bool | None = None) -> None:
        """Add a note about ``place`` whatever its value is."""
        self.add(place, None, why, changes_weights=changes_weights)

    def moved(self, place: str, value: Any, ours: str, why: str) -> None:
        """Note a setting that means the same elsewhere. It loses nothing, and is shown only in a comparison."""
        self._moved.append(Note(place, _short(value), why, ours, False))

    def extend(self, notes: Iterable[Note]) -> None:
        """Add the notes of another list."""
        self._found.extend(notes)

    def differences(
        self, given: Mapping[str, Any], defaults: Mapping[str, Any], carried: Any, where: str
    ) -> None:
        """Add a note for each value that is not imported and differs from its default."""
        for name, value in given.items():
            if name in carried:
                continue
            place = join_place((name,), where)
            default = defaults.get(name)
            if isinstance(value, Mapping) and isinstance(default, Mapping):
                self.differences(value, default, {VERSION_KEY, "uuid"}, place)
            elif name not in defaults:
                self.add(place, value, "unknown setting", faulty=True)
            elif value != default:
                self.add(place, value, "not supported")

    def listed(self) -> list[Note]:
        """All notes, those that change the weights first. Equal notes about several parts are merged."""
        return sorted(_joined(self._found), key=lambda note: not note.changes_weights)

    def compared(self) -> list[tuple[str, list[Note]]]:
        """All notes and the settings that mean the same elsewhere, each kind under a heading."""
        found = self.listed()
        return [
            ("changed", [note for note in found if note.ours]),
            ("lost", [note for note in found if not note.ours]),
            ("same meaning elsewhere", _joined(self._moved)),
        ]


def _short(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) and _WORD.fullmatch(value) else show(value)
    return text if len(text) <= _MOST_OF_A_VALUE else text[: _MOST_OF_A_VALUE - 1] + "…"


def _joined(notes: Iterable[Note]) -> list[Note]:
    """Merge notes that differ only in the part or list item: ``unet, text_encoder.weight_dtype = ...``."""
    places: dict[tuple[str, ...], list[str]] = {}
    first: dict[tuple[str, ...], Note] = {}
    key: tuple[str, ...]
    for note in notes:
        owner, dot, leaf = note.place.rpartition(".")
        owner = owner if dot else note.place
        key = (leaf if dot else f"={note.place}", note.theirs, note.why, note.ours)
        first.setdefault(key, note)
        owners = places.setdefault(key, [])
        if owner not in owners:
            owners.append(owner)
    made = []
    for key, note in first.items():
        owners = places[key]
        if len(owners) > 1:
            together = ", ".join(owners) if len(owners) < 4 else f"{owners[0]} and {len(owners) - 1} more"
            place = f"{together}.{key[0]}"
            note = Note(place, note.theirs, note.why, note.ours, note.changes_weights, note.faulty)
        made.append(note)
    return made
