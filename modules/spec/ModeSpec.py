"""A mode of preference training described as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Paradigm = Literal["offline", "coupled", "decoupled"]
"""``offline``: no images are made; ``coupled``: the loss uses log-probabilities of the rollout; ``decoupled``: only
its images and rewards."""

Condition = Callable[[Any], bool]
"""A question about the settings of a run, as a function of a ``TrainConfig``."""


class KlSettings(Protocol):
    """The setting that most modes use for ``needs_reference``."""

    @property
    def rlhf_kl_beta(self) -> float: ...


class GuardSettings(KlSettings, Protocol):
    """The settings that modes with a norm guard use for it."""

    @property
    def rlhf_norm_guard(self) -> float: ...


def never(_: object) -> bool:
    """Never needed."""
    return False


def always(_: object) -> bool:
    """Always needed."""
    return True


def with_kl(settings: KlSettings) -> bool:
    """Needed only for the KL to the reference."""
    return settings.rlhf_kl_beta > 0


def with_kl_or_guard(settings: GuardSettings) -> bool:
    """Needed for the KL to the reference, or for its norm."""
    return settings.rlhf_kl_beta > 0 or settings.rlhf_norm_guard > 0


@dataclass(frozen=True)
class ModeSpec:
    """A value of ``rlhf_mode``.

    Args:
        key: its name in configs.
        label: its displayed name.
        help: what it learns from, in one line.
        order: its position in lists of modes; modes with the same position are sorted by key.
        online: whether images are made and scored during training.
        coupled: whether the loss compares with log-probabilities of the rollout. Online modes only.
        whole_groups: whether all images of a prompt must be in one optimizer step.
        whole_trajectories: whether the loss takes all trained steps of an image at once. Coupled modes only.
        groups_in_one_process: whether all images of a prompt must be made by one process.
        takes_kl: whether ``rlhf_kl_beta`` adds a KL to the loss; a mode may be anchored in another way.
        rows: groups of settings that are shown for it and act, besides those in ``kinds``.
        needs_reference: whether the loss compares with the initial weights of the run.
        needs_old_policy: whether a slowly moving copy of the weights is kept.
    """

    key: str
    label: str
    help: str
    order: int = 100
    online: bool = True
    coupled: bool = False
    whole_groups: bool = False
    whole_trajectories: bool = False
    groups_in_one_process: bool = False
    takes_kl: bool = True
    rows: tuple[str, ...] = ()
    needs_reference: Condition = with_kl
    needs_old_policy: Condition = never

    def __post_init__(self) -> None:
        if self.coupled and not self.online:
            raise ValueError(f"{self.key}: only online modes have log-probabilities of a rollout")
        if self.whole_trajectories and not self.coupled:
            raise ValueError(f"{self.key}: only coupled modes have trained steps")

    @property
    def paradigm(self) -> Paradigm:
        """The way in which the mode uses rollouts."""
        if not self.online:
            return "offline"
        return "coupled" if self.coupled else "decoupled"

    @property
    def kinds(self) -> tuple[str, ...]:
        """Groups of settings implied by the kind of mode."""
        kinds = ("online", self.paradigm) if self.online else ("offline",)
        return (*kinds, "kl") if self.takes_kl else kinds

    def shows(self, rows: str) -> bool:
        """Return whether a group of settings is shown for the mode, and acts."""
        return rows in self.kinds or rows in self.rows
