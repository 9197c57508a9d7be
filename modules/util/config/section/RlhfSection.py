from functools import partial
from typing import Annotated, ClassVar

from pydantic import Field

from modules.spec.modes.dpo import DPO, WITHOUT_REFERENCE
from modules.spec.registry import MODES
from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.setting import Float, setting
from modules.util.enum.choices import (
    DPOConfidence,
    DPOPatienceMetric,
    DPOSafeguard,
    DPOSequentialStrategy,
    DPOTimestepSampling,
    PairMaskNorm,
    PairMasks,
)
from modules.util.enum.DPOExecutionMode import DPOExecutionMode
from modules.util.enum.DPOObjective import DPOObjective
from modules.util.enum.DPOPatienceMode import DPOPatienceMode
from modules.util.enum.DPORefMode import DPORefMode
from modules.util.enum.RLHFMode import RLHFMode, shown_for

_ON = "rlhf_enabled"
_DPO = shown_for("offline")
_WITH_REFERENCE = f"!rlhf_dpo_objective={WITHOUT_REFERENCE}"
_VALIDATION = f"{_DPO},rlhf_dpo_validation"
_PATIENCE = f"{_VALIDATION},rlhf_dpo_patience_enabled"
_Metric = Annotated[DPOPatienceMetric, Field(strict=False)]


def _metrics() -> list[DPOPatienceMetric]:
    return [DPOPatienceMetric.VAL_ACCURACY, DPOPatienceMetric.VAL_LOSS]


_mode = partial(setting, group="Mode", free=False)
_loss = partial(setting, group="Loss", visible=_DPO, free=False)
_sigmoid_loss = partial(_loss, visible=f"{_DPO},rlhf_dpo_objective=SIGMOID")
_masks = partial(setting, group="Masks", visible=_DPO, free=False)
_noise = partial(setting, group="Noise", visible=_DPO, free=False)
_memory = partial(setting, group="Memory", visible=_DPO, cost="value", free=False)
_validation = partial(setting, group="Validation", visible=_VALIDATION, free=True)
_patience = partial(_validation, visible=_PATIENCE)


class RlhfSection(BaseConfig):
    """Learning from preferences."""

    SECTION: ClassVar[str] = "RLHF"

    rlhf_enabled: bool = _mode(
        False,
        cost="value",
        first=True,
        title="Preference training",
        tip="Learn from preferences instead of from images alone.",
    )
    rlhf_mode: RLHFMode = _mode(
        RLHFMode("DPO"),
        visible=_ON,
        cost="value",
        first=True,
        tip=(
            "How preferences are learned. "
            + " ".join(f"{mode.label} {mode.help}" for mode in MODES.values())
            + " All except DPO make their own images during training and learn from a reward."
        ),
    )

    rlhf_dpo_objective: DPOObjective = _loss(
        DPOObjective.SIGMOID,
        cost="value",
        first=True,
        tip=(
            "SIGMOID is DPO as published. IPO and HINGE use the margin of a pair: how much more the model "
            "prefers the chosen image to the rejected one than the reference does. IPO aims at a fixed "
            "margin and resists overfitting. HINGE stops when beta times the margin reaches 1. KTO learns "
            "from single images, liked or disliked, without pairs. MAPO compares the two images of a pair with each "
            "other and needs no passes of a reference."
        ),
    )
    rlhf_dpo_beta: Float = _loss(
        5000.0,
        within=(0, 1e9),
        visible=f"{_DPO},!rlhf_dpo_objective=IPO",
        first=True,
        tip=(
            "How strongly the model is held to the original: higher = smaller change. Usual: 2500 for Stable Diffusion "
            "1.5, 2 and XL and for PixArt; 200, with a supervised mix of 0.25, for flow-matching models. Values of "
            "the Diffusion-DPO paper are twice as large: its 5000 is 2500 here. MAPO: 10 to 50."
        ),
    )
    rlhf_dpo_label_smoothing: Float = _sigmoid_loss(
        0.0,
        below=(0, 0.5),
        first=True,
        tip="Share of your picks that is assumed to be wrong. 0: all picks are right.",
    )
    rlhf_dpo_confidence: DPOConfidence = _sigmoid_loss(
        DPOConfidence.OFF,
        tip=(
            "Use the certainty with which each pair was ranked. SMOOTHING assumes more mistakes in "
            "uncertain pairs. MARGIN requires a larger margin for certain pairs. Pairs that were "
            "chosen without comparisons count as usual."
        ),
    )
    rlhf_dpo_ipo_tau: Float = _loss(
        1000.0,
        within=(1e-6, 1e9),
        visible=f"{_DPO},rlhf_dpo_objective=IPO",
        title="IPO tau",
        tip=(
            "IPO aims at a margin of 1 / (2 tau): higher values stay closer to the reference. It takes the place of "
            "beta, which has no effect with IPO."
        ),
    )
    rlhf_dpo_mapo_weight: Float = _loss(
        0.1,
        within=(0, 1e6),
        visible=f"{_DPO},rlhf_dpo_objective=MAPO",
        title="MAPO weight",
        tip=(
            "Weight of the comparison of the two images, next to the error of the chosen image. Higher values learn "
            "more from the difference. 0 learns only from the chosen images. Usual: 0.1."
        ),
    )
    rlhf_dpo_adaptive_beta: bool = _sigmoid_loss(
        False,
        tip=(
            "Adapt beta to the margins of recent pairs. Beta stays between a quarter and four times the value set "
            "here."
        ),
    )
    rlhf_supervised_mix: Float = _loss(
        0.0,
        within=(0, 1e6),
        cost="switch",
        first=True,
        tip=(
            "Weight of the ordinary loss on the chosen images, which keeps the chosen images likely. 0.25 suits "
            "flow-matching models. 0: off."
        ),
    )
    rlhf_dpo_safeguard: DPOSafeguard = _loss(
        DPOSafeguard.OFF,
        cost="value",
        tip=(
            "OUTPUT weakens the push away from a rejected image if this push would also make the chosen "
            "image less likely, measured on the model's predictions. It protects fidelity with a small "
            "beta or many steps."
        ),
    )
    rlhf_dpo_safeguard_mu: Float = _loss(
        0.0,
        within=(0, 0.2),
        visible=f"{_DPO},rlhf_dpo_safeguard=OUTPUT",
        tip=(
            "The chosen image keeps at least this share of the improvement that it would have without the push away "
            "from the rejected image. Higher values weaken this push more."
        ),
    )
    rlhf_norm_guard: Float = _loss(
        0.0,
        within=(0, 1e6),
        visible=f"{shown_for('norm_guard')},!rlhf_mode={DPO.key} or {_WITH_REFERENCE}",
        cost="switch",
        tip=(
            "Keeps the model's predictions from growing larger than those of the reference. Signs of such "
            "growth are overly strong colours and ignored prompts. The value is the weight of max(0, norm "
            "/ norm of the reference - 1)^2 in the loss. 0: off."
        ),
    )
    rlhf_dpo_mask: PairMasks = _masks(
        PairMasks.OFF,
        title="Masks of pairs",
        tip=(
            "The part of a pair that counts. FILE: the white parts of the masks of both images. "
            "DIFFERENCE: the area in which the images differ, for pairs in which one image is an edited "
            "version of the other."
        ),
    )
    rlhf_dpo_mask_dilate: int = _masks(
        1,
        within=(0, 64),
        visible=f"{_DPO},rlhf_dpo_mask=DIFFERENCE",
        title="Enlarge masks",
        tip="Number of latent cells (usually of 8 pixels) by which a DIFFERENCE mask grows on all sides.",
    )
    rlhf_dpo_mask_norm: PairMaskNorm = _masks(
        PairMaskNorm.MASKED_MEAN,
        visible=f"{_DPO},!rlhf_dpo_mask=OFF",
        title="Mask averaging",
        tip=(
            "MASKED_MEAN averages over the mask, so that beta means the same as without masks. MEAN "
            "averages over the whole image, so small masks count little."
        ),
    )
    rlhf_dpo_anchor_weight: Float = _masks(
        0.0,
        within=(0, 1e6),
        visible=f"{_DPO},{_WITH_REFERENCE}",
        cost="switch",
        title="Anchor",
        tip=(
            "Weight of the squared distance between the predictions of model and reference, over both "
            "images in full. It keeps the area outside a mask as it is. 0: off."
        ),
    )
    rlhf_dpo_ref_mode: DPORefMode = setting(
        DPORefMode.NEW_ADAPTER,
        hidden=True,
        cost="value",
        free=True,
        title="Reference",
        group="Reference",
        tip=(
            "Follows from the adapter: a new adapter is compared with the base model, a loaded adapter "
            "with its own initial weights."
        ),
    )

    rlhf_dpo_shared_noise: bool = _noise(
        True,
        tip=(
            "Both images of a pair get the same timestep and noise, which makes the comparison far less "
            "noisy."
        ),
    )
    rlhf_dpo_timestep_sampling: DPOTimestepSampling = _noise(
        DPOTimestepSampling.STRATIFIED,
        title="Timesteps of a pair",
        tip=(
            "STRATIFIED: each time a pair is used, its timestep comes from another part of the range. UNIFORM draws "
            "each timestep independently."
        ),
    )
    rlhf_dpo_timestep_strata: int = _noise(
        16,
        within=(2, 1000),
        visible=f"{_DPO},rlhf_dpo_timestep_sampling=STRATIFIED",
        tip=(
            "Number of parts into which the range of timesteps is split. A pair is trained once in every "
            "part before any part is repeated."
        ),
    )

    rlhf_dpo_execution_mode: DPOExecutionMode = _memory(
        DPOExecutionMode.FULL_CONCURRENT,
        first=True,
        title="Execution",
        tip=(
            "FULL_CONCURRENT is fastest. POLICY_CONCURRENT saves some memory: the reference processes one "
            "image at a time. SEQUENTIAL needs no more memory than an ordinary LoRA step. AUTO takes the "
            "fastest mode that fits into the memory. All give the same gradient."
        ),
    )
    rlhf_dpo_sequential_strategy: DPOSequentialStrategy = _memory(
        DPOSequentialStrategy.AUTO,
        visible=f"{_DPO},rlhf_dpo_execution_mode=SEQUENTIAL|AUTO",
        tip=(
            "How SEQUENTIAL processes the images of a pair. GRAD_STASH is faster on one device. "
            "THREE_FORWARD works with several devices, too. AUTO chooses."
        ),
    )
    rlhf_dpo_reference_cache: bool = _memory(
        False,
        visible=f"{_DPO},{_WITH_REFERENCE}",
        first=True,
        title="Cache reference scores",
        tip=(
            "Compute the scores of the reference once, for a fixed set of draws (timestep and noise), and keep these "
            "scores. Training is then about a third faster."
        ),
    )
    rlhf_dpo_reference_cache_draws: int = _memory(
        16,
        within=(1, 10_000),
        visible=f"{_DPO},{_WITH_REFERENCE},rlhf_dpo_reference_cache",
        title="Cached draws per pair",
        tip=(
            "Number of draws (timestep and noise) cached for each pair. More draws are better for the "
            "model but take longer to compute."
        ),
    )

    rlhf_dpo_validation: bool = _validation(
        False,
        visible=_DPO,
        free=False,
        first=True,
        title="Validation on pairs",
        tip="Measure loss and accuracy on pairs that are not trained on.",
    )
    rlhf_dpo_validation_percentage: Float = _validation(
        10.0,
        between=(0, 100),
        free=False,
        title="Percentage held back",
        tip=(
            "Share of the pairs held back for validation if there are no validation concepts. All pairs of "
            "a prompt stay together."
        ),
    )
    rlhf_dpo_validation_draws: int = _validation(
        4,
        within=(1, 1000),
        tip="Number of timesteps at which each validation pair is measured. The timesteps are always the same.",
    )
    rlhf_dpo_timestep_margin_logging: bool = _validation(
        False,
        visible=_DPO,
        title="Margin by timestep",
        tip="Log the margin separately for each quarter of the timesteps.",
    )
    rlhf_dpo_save_best: bool = _validation(
        True,
        first=True,
        title="Keep the best",
        tip=(
            "Save the weights with the best validation accuracy instead of the last ones. If accuracies are equal, "
            "the lower loss decides. With MAPO, whose accuracy does not show what was learned, only the loss "
            "decides."
        ),
    )
    rlhf_dpo_patience_enabled: bool = _validation(
        False,
        title="Stop early",
        tip="Stop when validation no longer improves.",
    )
    rlhf_dpo_patience_value: int = _patience(
        5,
        within=(1, 1_000_000),
        title="Patience",
        tip="Number of consecutive validations without progress before training stops.",
    )
    rlhf_dpo_patience_mode: DPOPatienceMode = _patience(
        DPOPatienceMode.EITHER,
        title="Stalled metrics needed",
        tip=(
            "Number of watched metrics that must stall before a validation counts as one without progress. "
            "EITHER: one is enough, even if others improve. BOTH: all must stall. A metric stalls if it is "
            "not better than its best value so far. An accuracy of 1.0 can only stall."
        ),
    )
    rlhf_dpo_patience_metrics: list[_Metric] = _patience(
        factory=_metrics,
        min_length=1,
        title="Metrics watched",
        tip="The validation metrics that must improve. With MAPO, val_loss takes the place of val_accuracy.",
    )
