"""Reads ``acceleration: {shared: [...], rollout: [...]}`` and checks it against the way of training.

Nothing here loads torch, so that a check can run before a model is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from modules.accelerator.base import ACCELERATORS, Accelerator, Params
from modules.util.config.faults import raise_all
from modules.util.errors import ConfigError, UserError

Paradigm = Literal["coupled", "decoupled", "offline"]
"""``coupled``: the loss uses log-probabilities of the rollout (GRPO, GSPO); ``decoupled``: only its images
(DGPO, NFT); ``offline``: no rollout (DPO)."""

PARADIGMS: tuple[Paradigm, ...] = ("coupled", "decoupled", "offline")
SLOTS = ("shared", "rollout")
SECTION = "acceleration"
_REFUSED = "The acceleration settings cannot be used:"

REMOVED = {
    "cache_dit": "use diffusers_cache: cache_dit never engages when the denoiser is called directly",
    "model.attn_backend": "use the attention_backend accelerator, with the name as its parameter backend",
    "attn_backend": "use the attention_backend accelerator, with the name as its parameter backend",
}


@dataclass(frozen=True)
class Entry:
    """One accelerator as written in the config."""

    name: str
    params: dict[str, Any]
    field: str


@dataclass(frozen=True)
class Slots:
    """Both lists, in the order in which they are applied."""

    shared: tuple[Entry, ...] = ()
    rollout: tuple[Entry, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.shared or self.rollout)


@dataclass
class Checked:
    """Accelerators ready to set up, and messages for the user."""

    shared: list[Accelerator] = field(default_factory=list)
    rollout: list[Accelerator] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def _entry(value: Any, place: str) -> Entry:
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{value!r} is not an accelerator", place, 'write {"name": ..., "params": {...}}')
    unknown = [key for key in value if key not in ("name", "params")]
    if unknown:
        raise ConfigError(f"unknown key {unknown[0]!r}", place, "an entry has the keys name and params")
    name, params = value.get("name"), value.get("params")
    if not isinstance(name, str) or not name:
        raise ConfigError("an accelerator without a name", place, f"known: {', '.join(ACCELERATORS.keys())}")
    if params is not None and not (isinstance(params, Mapping) and all(isinstance(k, str) for k in params)):
        raise ConfigError(f"{params!r} is not a mapping of parameters", f"{place}.params")
    return Entry(name, dict(params or {}), place)


def _slot(value: Any, slot: str) -> Iterator[Entry | UserError]:
    place = f"{SECTION}.{slot}"
    if value is None:
        return
    single = isinstance(value, (str, Mapping))
    if not single and not isinstance(value, Sequence):
        yield ConfigError(f"{value!r} is not a list of accelerators", place)
        return
    for index, one in enumerate([value] if single else value):
        try:
            yield _entry(one, place if single else f"{place}[{index}]")
        except UserError as error:
            yield error


def parse_slots(value: Mapping[str, Any] | None) -> Slots:
    """Parse the section of the config. A slot may hold a list, one entry, or a bare name.

    Raises:
        UserErrors: the invalid entries.
    """
    if value is None:
        return Slots()
    if not isinstance(value, Mapping):
        raise ConfigError(f"{value!r} is not a mapping", SECTION, "write {shared: [...], rollout: [...]}")
    errors: list[UserError] = [
        ConfigError(
            REMOVED.get(str(key), "there is no such list"), f"{SECTION}.{key}", "slots: shared, rollout"
        )
        for key in value
        if key not in SLOTS
    ]
    entries: dict[str, tuple[Entry, ...]] = {}
    for slot in SLOTS:
        found = list(_slot(value.get(slot), slot))
        entries[slot] = tuple(one for one in found if isinstance(one, Entry))
        errors += [one for one in found if isinstance(one, UserError)]
    raise_all(errors, _REFUSED)
    return Slots(**entries)


def _build(entry: Entry) -> Accelerator:
    if entry.name in REMOVED:
        raise ConfigError(f"{entry.name!r} was removed", entry.field, REMOVED[entry.name])
    if entry.name not in ACCELERATORS.keys():  # noqa: SIM118 - a Registry, not a mapping
        known = ", ".join(ACCELERATORS.keys())
        raise ConfigError(f"unknown accelerator {entry.name!r}", entry.field, f"known: {known}")
    return ACCELERATORS.get(entry.name)(Params(entry.params, f"{entry.field}.params"))


def _faults(entry: Entry, kind: type[Accelerator], slot: str, paradigm: Paradigm) -> Iterator[UserError]:
    if slot == "shared" and kind.stage != "both":
        yield ConfigError(f"{entry.name} acts in rollouts only", entry.field, f"move it to {SECTION}.rollout")
        return
    if slot == "rollout" and kind.stage != "rollout":
        yield ConfigError(
            f"{entry.name} acts in both rollouts and training", entry.field, f"move it to {SECTION}.shared"
        )
        return
    if slot == "rollout" and paradigm == "offline":
        yield ConfigError(
            f"{entry.name} acts in rollouts, but this way of training makes none",
            entry.field,
            f"leave {SECTION}.rollout empty",
        )
    if slot == "rollout" and paradigm == "coupled" and kind.safety == "lossy":
        yield ConfigError(
            f"{entry.name} changes the log-probabilities of the rollout, which this way of training compares "
            "with those of the training forward",
            entry.field,
            "remove it, or use a way of training that needs only the images (DGPO)",
        )


def check_slots(
    slots: Slots,
    paradigm: Paradigm,
    *,
    swaps_weights: bool = False,
    num_inference_steps: int | None = None,
) -> Checked:
    """Build the accelerators and check them against the way of training.

    Args:
        slots: from ``parse_slots``.
        paradigm: how the mode uses its rollouts.
        swaps_weights: whether weights of the reference or an old policy are swapped by pointer.
        num_inference_steps: denoising steps of a rollout, for advice.

    Raises:
        ConfigError | UserErrors: every fault found.
    """
    if paradigm not in PARADIGMS:
        raise ValueError(f"unknown paradigm {paradigm!r}")
    checked, errors = Checked(), []
    for slot in SLOTS:
        seen: set[str] = set()
        for entry in getattr(slots, slot):
            try:
                one = _build(entry)
            except UserError as error:
                errors.append(error)
                continue
            if entry.name in seen:
                errors.append(ConfigError(f"{entry.name} is listed twice", entry.field, "remove one of them"))
                continue
            seen.add(entry.name)
            errors += _faults(entry, type(one), slot, paradigm)
            if swaps_weights and getattr(one, "uses_cuda_graphs", False):
                errors.append(_swapping(entry))
            getattr(checked, slot).append(one)
            checked.warnings += one.advice(num_inference_steps)
    raise_all(errors, _REFUSED)
    checked.warnings += _remarks(slots, checked, paradigm)
    return checked


def _swapping(entry: Entry) -> ConfigError:
    return ConfigError(
        f"{entry.name} with CUDA graphs keeps the addresses of the weights, but the reference of an existing adapter "
        "or an old policy swaps the weights: the graphs would keep reading the old ones",
        entry.field,
        "use mode default or max-autotune-no-cudagraphs, or, if the reference is the reason, start from a new adapter",
    )


def _remarks(slots: Slots, checked: Checked, paradigm: Paradigm) -> Iterator[str]:
    if paradigm == "coupled":
        for one in checked.shared:
            if one.safety == "lossy":
                yield (
                    f"{one.name} is not exact to the last bit: the ratio of the first update will be close to 1, "
                    "not 1"
                )
    names = [entry.name for entry in slots.shared]
    if {"attention_backend", "torch_compile"} <= set(names) and names.index("torch_compile") < names.index(
        "attention_backend"
    ):
        yield "attention_backend is listed after torch_compile: put it first, or the compiled code is discarded"
