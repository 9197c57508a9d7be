"""NFT: good images attract, bad ones attract their mirror image about the old policy (arXiv 2509.16117)."""

from modules.spec.ModeSpec import ModeSpec, always, with_kl_or_guard

NFT = ModeSpec(
    key="NFT",
    label="NFT",
    help="moves the model towards good images and away from bad ones, judging each image separately.",
    order=6,
    rows=("mirror_loss", "norm_guard", "old_policy"),
    needs_reference=with_kl_or_guard,
    needs_old_policy=always,
)
