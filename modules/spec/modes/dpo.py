"""DPO on pairs of images on disk."""

from typing import Protocol

from modules.spec.ModeSpec import ModeSpec

WITHOUT_REFERENCE = "MAPO"


class _Settings(Protocol):
    @property
    def rlhf_dpo_objective(self) -> str: ...


def _needs_reference(settings: _Settings) -> bool:
    """Needed unless the objective compares the images with each other alone."""
    return settings.rlhf_dpo_objective != WITHOUT_REFERENCE


DPO = ModeSpec(
    key="DPO",
    label="DPO",
    help="learns from fixed pairs of a chosen and a rejected image.",
    order=1,
    online=False,
    takes_kl=False,
    rows=("norm_guard",),
    needs_reference=_needs_reference,
)
