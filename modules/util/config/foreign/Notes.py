"""What an import does not carry over as it is, with what would train other weights first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Self

from modules.util.config.BaseConfig import VERSION_KEY
from modules.util.config.faults import join_place, show

MOST_CHARACTERS = 120
"""Length of a line about one setting."""
_MOST_OF_A_VALUE = 40
_WORD = re.compile(r"[A-Za-z0-9_]+(?: [A-Z]+)?")

_SAME_WEIGHTS = re.compile(
    r"tensorboard|samples?(?:\[|\Z)|sample_|non_ema_sampling|backup|rolling_backup|save_|workspace_dir"
    r"|cache_dir|huggingface|offline_mode|output_model_format|prevent_overwrites|validat|attention_mechanism"
    r"|compile\Z|dataloader|only_cache|latent_caching|train_device|cloud|secrets|__version"
    r"|optimizer\.(?:fused|fused_back_pass|foreach|capturable|differentiable|log_every|is_paged|use_triton|compile|"
    r"fsdp_in_use)\Z|.*\.(?:offload_fraction|activation_offloading|gradient_checkpointing)\Z"
)
"""Places whose values change how a run goes, what it shows or where it saves, and not the weights that come out."""


class Note(str):
    """A line of up to ``MOST_CHARACTERS`` about a setting: ``field = value: what follows from it``.

    Attributes:
        place: the setting.
        theirs: its value, as shown.
        why: what follows.
        ours: what our config has instead, as shown; empty for nothing.
        changes_weights: without it the run trains other weights than it would have trained there.
        faulty: the file says something that its own program could not use either.
    """

    place: str
    theirs: str
    why: str
    ours: str
    changes_weights: bool
    faulty: bool

    def __new__(
        cls,
        place: str,
        theirs: str,
        why: str,
        ours: str = "",
        changes_weights: bool = True,
        faulty: bool = False,
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
    """Lines as they are found."""

    def __init__(self) -> None:
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
        """A line about ``place``.

        Args:
            place: the setting.
            value: what the file says.
            why: what follows from it.
            ours: what our config has instead.
            changes_weights: to say it; otherwise it is known from the place.
            faulty: an unknown setting, or a value of the wrong kind.
        """
        if changes_weights is None:
            changes_weights = _SAME_WEIGHTS.match(place) is None
        self._found.append(Note(place, _short(value), why, _short(ours), changes_weights, faulty))

    def say(self, place: str, why: str, changes_weights: bool | None = None) -> None:
        """A line about ``place`` whatever its value is."""
        if changes_weights is None:
            changes_weights = _SAME_WEIGHTS.match(place) is None
        self._found.append(Note(place, "", why, "", changes_weights))

    def moved(self, place: str, value: Any, ours: str, why: str) -> None:
        """Something that means the same elsewhere: told when the two files are compared, and no loss."""
        self._moved.append(Note(place, _short(value), why, ours, False))

    def extend(self, notes: Iterable[Note]) -> None:
        """Lines that were found elsewhere."""
        self._found.extend(notes)

    def differences(
        self, given: Mapping[str, Any], defaults: Mapping[str, Any], carried: Any, where: str
    ) -> None:
        """A line for each value that is not carried over and differs from its default."""
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
        """All lines, those that change the weights first; equal ones about several parts are one."""
        return sorted(_joined(self._found), key=lambda note: not note.changes_weights)

    def compared(self) -> list[tuple[str, list[Note]]]:
        """The same with what means the same elsewhere, under a heading for each kind."""
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
    """Notes that differ in the part or the list item alone, as one: ``unet, text_encoder.weight_dtype = ...``."""
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
