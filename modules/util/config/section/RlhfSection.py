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


class RlhfSection(BaseConfig):
    """Learning from preferences."""

    SECTION: ClassVar[str] = "RLHF"

    rlhf_enabled: bool = setting(
        False,
        cost="value",
        free=False,
        first=True,
        title="Preference training",
        group="Mode",
        tip="Learn from preferences instead of from images alone.",
    )
    rlhf_mode: RLHFMode = setting(
        RLHFMode("DPO"),
        visible=_ON,
        cost="value",
        free=False,
        first=True,
        title="Mode",
        group="Mode",
        tip=(
            "How preferences are learned. "
            + " ".join(f"{mode.label} {mode.help}" for mode in MODES.values())
            + " All except DPO make their own images during training and learn from a reward."
        ),
    )

    rlhf_dpo_objective: DPOObjective = setting(
        DPOObjective.SIGMOID,
        visible=_DPO,
        cost="value",
        free=False,
        first=True,
        title="Objective",
        group="Loss",
        tip=(
            "SIGMOID is DPO as published. IPO and HINGE use the margin of a pair: how much more the model "
            "prefers the chosen image to the rejected one than the reference does. IPO aims at a fixed "
            "margin and resists overfitting. HINGE stops when beta times the margin reaches 1. KTO learns "
            "from single images, liked or disliked, without pairs. MAPO compares the two images of a pair with each "
            "other and needs no passes of a reference."
        ),
    )
    rlhf_dpo_beta: Float = setting(
        5000.0,
        ge=0,
        le=1e9,
        visible=f"{_DPO},!rlhf_dpo_objective=IPO",
        free=False,
        first=True,
        title="Beta",
        group="Loss",
        tip=(
            "How strongly the model is held to the original: higher = smaller change. Usual: 2500 for Stable Diffusion "
            "1.5, 2 and XL and for PixArt; 200, with a supervised mix of 0.25, for flow-matching models. Values of "
            "the Diffusion-DPO paper are twice as large: its 5000 is 2500 here. MAPO: 10 to 50."
        ),
    )
    rlhf_dpo_label_smoothing: Float = setting(
        0.0,
        ge=0,
        lt=0.5,
        visible=f"{_DPO},rlhf_dpo_objective=SIGMOID",
        free=False,
        first=True,
        title="Label smoothing",
        group="Loss",
        tip="Share of your picks that is assumed to be wrong. 0: all picks are right.",
    )
    rlhf_dpo_confidence: DPOConfidence = setting(
        DPOConfidence.OFF,
        visible=f"{_DPO},rlhf_dpo_objective=SIGMOID",
        free=False,
        title="Confidence",
        group="Loss",
        tip=(
            "Use the certainty with which each pair was ranked. SMOOTHING assumes more mistakes in "
            "uncertain pairs. MARGIN requires a larger margin for certain pairs. Pairs that were "
            "chosen without comparisons count as usual."
        ),
    )
    rlhf_dpo_ipo_tau: Float = setting(
        1000.0,
        ge=1e-6,
        le=1e9,
        visible=f"{_DPO},rlhf_dpo_objective=IPO",
        free=False,
        title="IPO tau",
        group="Loss",
        tip=(
            "IPO aims at a margin of 1 / (2 tau): higher values stay closer to the reference. It takes the place of "
            "beta, which has no effect with IPO."
        ),
    )
    rlhf_dpo_mapo_weight: Float = setting(
        0.1,
        ge=0,
        le=1e6,
        visible=f"{_DPO},rlhf_dpo_objective=MAPO",
        free=False,
        title="MAPO weight",
        group="Loss",
        tip=(
            "Weight of the comparison of the two images, next to the error of the chosen image. Higher values learn "
            "more from the difference. 0 learns only from the chosen images. Usual: 0.1."
        ),
    )
    rlhf_dpo_adaptive_beta: bool = setting(
        False,
        visible=f"{_DPO},rlhf_dpo_objective=SIGMOID",
        free=False,
        title="Adaptive beta",
        group="Loss",
        tip=(
            "Adapt beta to the margins of recent pairs. Beta stays between a quarter and four times the value set "
            "here."
        ),
    )
    rlhf_supervised_mix: Float = setting(
        0.0,
        ge=0,
        le=1e6,
        visible=_DPO,
        cost="switch",
        free=False,
        first=True,
        title="Supervised mix",
        group="Loss",
        tip=(
            "Weight of the ordinary loss on the chosen images, which keeps the chosen images likely. 0.25 suits "
            "flow-matching models. 0: off."
        ),
    )
    rlhf_dpo_safeguard: DPOSafeguard = setting(
        DPOSafeguard.OFF,
        visible=_DPO,
        cost="value",
        free=False,
        title="Safeguard",
        group="Loss",
        tip=(
            "OUTPUT weakens the push away from a rejected image if this push would also make the chosen "
            "image less likely, measured on the model's predictions. It protects fidelity with a small "
            "beta or many steps."
        ),
    )
    rlhf_dpo_safeguard_mu: Float = setting(
        0.0,
        ge=0,
        le=0.2,
        visible=f"{_DPO},rlhf_dpo_safeguard=OUTPUT",
        free=False,
        title="Safeguard mu",
        group="Loss",
        tip=(
            "The chosen image keeps at least this share of the improvement that it would have without the push away "
            "from the rejected image. Higher values weaken this push more."
        ),
    )
    rlhf_norm_guard: Float = setting(
        0.0,
        ge=0,
        le=1e6,
        visible=f"{shown_for('norm_guard')},!rlhf_mode={DPO.key} or {_WITH_REFERENCE}",
        cost="switch",
        free=False,
        title="Norm guard",
        group="Loss",
        tip=(
            "Keeps the model's predictions from growing larger than those of the reference. Signs of such "
            "growth are overly strong colours and ignored prompts. The value is the weight of max(0, norm "
            "/ norm of the reference - 1)^2 in the loss. 0: off."
        ),
    )
    rlhf_dpo_mask: PairMasks = setting(
        PairMasks.OFF,
        visible=_DPO,
        free=False,
        title="Masks of pairs",
        group="Masks",
        tip=(
            "The part of a pair that counts. FILE: the white parts of the masks of both images. "
            "DIFFERENCE: the area in which the images differ, for pairs in which one image is an edited "
            "version of the other."
        ),
    )
    rlhf_dpo_mask_dilate: int = setting(
        1,
        ge=0,
        le=64,
        visible=f"{_DPO},rlhf_dpo_mask=DIFFERENCE",
        free=False,
        title="Enlarge masks",
        group="Masks",
        tip="Number of latent cells (usually of 8 pixels) by which a DIFFERENCE mask grows on all sides.",
    )
    rlhf_dpo_mask_norm: PairMaskNorm = setting(
        PairMaskNorm.MASKED_MEAN,
        visible=f"{_DPO},!rlhf_dpo_mask=OFF",
        free=False,
        title="Mask averaging",
        group="Masks",
        tip=(
            "MASKED_MEAN averages over the mask, so that beta means the same as without masks. MEAN "
            "averages over the whole image, so small masks count little."
        ),
    )
    rlhf_dpo_anchor_weight: Float = setting(
        0.0,
        ge=0,
        le=1e6,
        visible=f"{_DPO},{_WITH_REFERENCE}",
        cost="switch",
        free=False,
        title="Anchor",
        group="Masks",
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

    rlhf_dpo_shared_noise: bool = setting(
        True,
        visible=_DPO,
        free=False,
        title="Shared noise",
        group="Noise",
        tip=(
            "Both images of a pair get the same timestep and noise, which makes the comparison far less "
            "noisy."
        ),
    )
    rlhf_dpo_timestep_sampling: DPOTimestepSampling = setting(
        DPOTimestepSampling.STRATIFIED,
        visible=_DPO,
        free=False,
        title="Timesteps of a pair",
        group="Noise",
        tip=(
            "STRATIFIED: each time a pair is used, its timestep comes from another part of the range. UNIFORM draws "
            "each timestep independently."
        ),
    )
    rlhf_dpo_timestep_strata: int = setting(
        16,
        ge=2,
        le=1000,
        visible=f"{_DPO},rlhf_dpo_timestep_sampling=STRATIFIED",
        free=False,
        title="Timestep strata",
        group="Noise",
        tip=(
            "Number of parts into which the range of timesteps is split. A pair is trained once in every "
            "part before any part is repeated."
        ),
    )

    rlhf_dpo_execution_mode: DPOExecutionMode = setting(
        DPOExecutionMode.FULL_CONCURRENT,
        visible=_DPO,
        cost="value",
        free=False,
        first=True,
        title="Execution",
        group="Memory",
        tip=(
            "FULL_CONCURRENT is fastest. POLICY_CONCURRENT saves some memory: the reference processes one "
            "image at a time. SEQUENTIAL needs no more memory than an ordinary LoRA step. AUTO takes the "
            "fastest mode that fits into the memory. All give the same gradient."
        ),
    )
    rlhf_dpo_sequential_strategy: DPOSequentialStrategy = setting(
        DPOSequentialStrategy.AUTO,
        visible=f"{_DPO},rlhf_dpo_execution_mode=SEQUENTIAL|AUTO",
        cost="value",
        free=False,
        title="Sequential strategy",
        group="Memory",
        tip=(
            "How SEQUENTIAL processes the images of a pair. GRAD_STASH is faster on one device. "
            "THREE_FORWARD works with several devices, too. AUTO chooses."
        ),
    )
    rlhf_dpo_reference_cache: bool = setting(
        False,
        visible=f"{_DPO},{_WITH_REFERENCE}",
        cost="value",
        free=False,
        first=True,
        title="Cache reference scores",
        group="Memory",
        tip=(
            "Compute the scores of the reference once, for a fixed set of draws (timestep and noise), and keep these "
            "scores. Training is then about a third faster."
        ),
    )
    rlhf_dpo_reference_cache_draws: int = setting(
        16,
        ge=1,
        le=10_000,
        visible=f"{_DPO},{_WITH_REFERENCE},rlhf_dpo_reference_cache",
        cost="value",
        free=False,
        title="Cached draws per pair",
        group="Memory",
        tip=(
            "Number of draws (timestep and noise) cached for each pair. More draws are better for the "
            "model but take longer to compute."
        ),
    )

    rlhf_dpo_validation: bool = setting(
        False,
        visible=_DPO,
        free=False,
        first=True,
        title="Validation on pairs",
        group="Validation",
        tip="Measure loss and accuracy on pairs that are not trained on.",
    )
    rlhf_dpo_validation_percentage: Float = setting(
        10.0,
        gt=0,
        lt=100,
        visible=_VALIDATION,
        free=False,
        title="Percentage held back",
        group="Validation",
        tip=(
            "Share of the pairs held back for validation if there are no validation concepts. All pairs of "
            "a prompt stay together."
        ),
    )
    rlhf_dpo_validation_draws: int = setting(
        4,
        ge=1,
        le=1000,
        visible=_VALIDATION,
        free=True,
        title="Validation draws",
        group="Validation",
        tip="Number of timesteps at which each validation pair is measured. The timesteps are always the same.",
    )
    rlhf_dpo_timestep_margin_logging: bool = setting(
        False,
        visible=_DPO,
        free=True,
        title="Margin by timestep",
        group="Validation",
        tip="Log the margin separately for each quarter of the timesteps.",
    )
    rlhf_dpo_save_best: bool = setting(
        True,
        visible=_VALIDATION,
        free=True,
        first=True,
        title="Keep the best",
        group="Validation",
        tip=(
            "Save the weights with the best validation accuracy instead of the last ones. If accuracies are equal, "
            "the lower loss decides. With MAPO, whose accuracy does not show what was learned, only the loss "
            "decides."
        ),
    )
    rlhf_dpo_patience_enabled: bool = setting(
        False,
        visible=_VALIDATION,
        free=True,
        title="Stop early",
        group="Validation",
        tip="Stop when validation no longer improves.",
    )
    rlhf_dpo_patience_value: int = setting(
        5,
        ge=1,
        le=1_000_000,
        visible=_PATIENCE,
        free=True,
        title="Patience",
        group="Validation",
        tip="Number of consecutive validations without progress before training stops.",
    )
    rlhf_dpo_patience_mode: DPOPatienceMode = setting(
        DPOPatienceMode.EITHER,
        visible=_PATIENCE,
        free=True,
        title="Stalled metrics needed",
        group="Validation",
        tip=(
            "Number of watched metrics that must stall before a validation counts as one without progress. "
            "EITHER: one is enough, even if others improve. BOTH: all must stall. A metric stalls if it is "
            "not better than its best value so far. An accuracy of 1.0 can only stall."
        ),
    )
    rlhf_dpo_patience_metrics: list[_Metric] = setting(
        factory=_metrics,
        min_length=1,
        visible=_PATIENCE,
        free=True,
        title="Metrics watched",
        group="Validation",
        tip="The validation metrics that must improve. With MAPO, val_loss takes the place of val_accuracy.",
    )
