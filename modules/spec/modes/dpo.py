"""DPO on pairs of images on disk."""

from modules.spec.ModeSpec import ModeSpec, always

DPO = ModeSpec(
    key="DPO",
    label="DPO",
    help="learns from fixed pairs of a chosen and a rejected image.",
    order=1,
    online=False,
    takes_kl=False,
    rows=("norm_guard",),
    needs_reference=always,
)
