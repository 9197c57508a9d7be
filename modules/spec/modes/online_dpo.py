"""Online DPO: pairs made of a prompt's own images by their rewards."""

from modules.spec.ModeSpec import ModeSpec, always

ONLINE_DPO = ModeSpec(
    key="ONLINE_DPO",
    label="Online DPO",
    help="is DPO on pairs of each prompt's best and worst images.",
    order=5,
    whole_groups=True,
    groups_in_one_process=True,
    takes_kl=False,
    rows=("pair_loss",),
    needs_reference=always,
)
