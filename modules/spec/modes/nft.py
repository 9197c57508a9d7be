"""NFT: good images pull, bad ones push their mirror image about the old policy (arXiv 2509.16117)."""

from typing import Protocol

from modules.spec.ModeSpec import KlSettings, ModeSpec, always


class _Settings(KlSettings, Protocol):
    @property
    def rlhf_norm_guard(self) -> float: ...


def _needs_reference(settings: _Settings) -> bool:
    return settings.rlhf_kl_beta > 0 or settings.rlhf_norm_guard > 0


NFT = ModeSpec(
    key="NFT",
    label="NFT",
    help="pulls towards good images and away from bad ones, each image on its own.",
    order=6,
    rows=("mirror_loss", "norm_guard", "old_policy"),
    needs_reference=_needs_reference,
    needs_old_policy=always,
)
