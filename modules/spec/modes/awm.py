"""AWM: the denoising error of each image is weighted by its advantage, with a clipped ratio (arXiv 2509.25050)."""

from modules.spec.ModeSpec import ModeSpec, always, with_kl_or_guard

AWM = ModeSpec(
    key="AWM",
    label="AWM",
    help="trains as on plain images; good images have positive weights, bad ones negative weights.",
    order=7,
    rows=("clip", "norm_guard", "old_policy"),
    needs_reference=with_kl_or_guard,
    needs_old_policy=always,
)
