"""GRPO: every trained step of an image is an action with its own clipped ratio (arXiv 2505.05470)."""

from modules.spec.ModeSpec import ModeSpec

GRPO = ModeSpec(
    key="GRPO",
    label="GRPO",
    help="makes the denoising steps of images with above-average rewards more likely.",
    order=3,
    coupled=True,
    rows=("clip", "regulated_ratio"),
)
