"""GSPO: one clipped ratio for all trained steps of an image (arXiv 2507.18071)."""

from modules.spec.ModeSpec import ModeSpec

GSPO = ModeSpec(
    key="GSPO",
    label="GSPO",
    help="is GRPO with one ratio for all steps of an image.",
    order=4,
    coupled=True,
    whole_trajectories=True,
    rows=("clip", "trajectory_loss"),
)
