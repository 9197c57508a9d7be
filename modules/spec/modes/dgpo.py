"""DGPO: the good images of a prompt against the bad ones, as groups (arXiv 2510.08425)."""

from typing import Protocol

from modules.spec.ModeSpec import KlSettings, ModeSpec


class _Settings(KlSettings, Protocol):
    @property
    def rlhf_dgpo_clip_dsm(self) -> bool: ...
    @property
    def rlhf_dgpo_clip_kl(self) -> bool: ...
    @property
    def rlhf_dgpo_use_ema_ref(self) -> bool: ...


def _needs_reference(settings: _Settings) -> bool:
    return settings.rlhf_kl_beta > 0 or not settings.rlhf_dgpo_use_ema_ref


def _needs_old_policy(settings: _Settings) -> bool:
    return settings.rlhf_dgpo_clip_dsm or settings.rlhf_dgpo_clip_kl or settings.rlhf_dgpo_use_ema_ref


DGPO = ModeSpec(
    key="DGPO",
    label="DGPO",
    help="compares the images of a prompt as a group; no noise is added in the denoising steps.",
    order=2,
    whole_groups=True,
    rows=("clip", "group_loss", "old_policy"),
    needs_reference=_needs_reference,
    needs_old_policy=_needs_old_policy,
)
