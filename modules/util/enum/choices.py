"""Choices in configs, grouped by topic. Those with a documented path have a file of their own."""

from __future__ import annotations

from modules.util.enum.BaseEnum import BaseEnum

# -- Models and weights ----------------------------------------------------------------------------------------


class WeightDtype(BaseEnum):
    """Number format of a part's weights; the last three are for frozen parts only."""

    FLOAT_32 = "FLOAT_32"
    BFLOAT_16 = "BFLOAT_16"
    FLOAT_16 = "FLOAT_16"
    FLOAT_8 = "FLOAT_8"
    INT_8 = "INT_8"
    NFLOAT_4 = "NFLOAT_4"

    @property
    def quantized(self) -> bool:
        """True if weights in this format cannot be trained directly."""
        return self.value in ("FLOAT_8", "INT_8", "NFLOAT_4")


class DataType(BaseEnum):
    """Number format of weights or of autocast."""

    FLOAT_32 = "FLOAT_32"
    BFLOAT_16 = "BFLOAT_16"
    FLOAT_16 = "FLOAT_16"


class ModelFormat(BaseEnum):
    """File format of the trained model."""

    AUTO = "AUTO"
    KOHYA_LORA = "KOHYA_LORA"
    DIFFUSERS_LORA = "DIFFUSERS_LORA"
    COMFY_LORA = "COMFY_LORA"
    LEGACY_LORA = "LEGACY_LORA"
    DIFFUSERS = "DIFFUSERS"
    SAFETENSORS = "SAFETENSORS"

    @property
    def for_adapters(self) -> bool:
        """True if adapters can be written in this format; AUTO fits everything."""
        return self.name.endswith("_LORA")


class PeftType(BaseEnum):
    """Adapter type."""

    LORA = "LORA"
    LOHA = "LOHA"
    LOKR = "LOKR"
    OFT_2 = "OFT_2"


class TrainingMethod(BaseEnum):
    """Subjects of training: a small adapter, the weights of the model itself, or a word of its prompts."""

    LORA = "LORA"
    FINE_TUNE = "FINE_TUNE"
    EMBEDDING = "EMBEDDING"

    @property
    def keeps_the_model(self) -> bool:
        """True if the model's own weights stay unchanged."""
        return self is not TrainingMethod.FINE_TUNE

    @property
    def writes_file(self) -> bool:
        """True if the result is always written as a single file."""
        return self is not TrainingMethod.FINE_TUNE


# -- Data ------------------------------------------------------------------------------------------------------


class BalancingStrategy(BaseEnum):
    """Choices of whether a concept's balancing number means repeats or the number of samples."""

    REPEATS = "REPEATS"
    SAMPLES = "SAMPLES"


class TagDropoutMode(BaseEnum):
    """Ways of dropping tags: all together, each alone, or each alone and later ones more often."""

    FULL = "FULL"
    RANDOM = "RANDOM"
    RANDOM_WEIGHTED = "RANDOM_WEIGHTED"


class TagDropoutSpecialTagsMode(BaseEnum):
    """Meanings of the list of special tags for dropout."""

    NONE = "NONE"
    WHITELIST = "WHITELIST"
    BLACKLIST = "BLACKLIST"


class ImageFormat(BaseEnum):
    """File format of sample images."""

    PNG = "PNG"
    JPG = "JPG"


# -- The training loop -----------------------------------------------------------------------------------------


class TimeUnit(BaseEnum):
    """Unit of an interval."""

    NEVER = "NEVER"
    EPOCH = "EPOCH"
    STEP = "STEP"
    SECOND = "SECOND"
    MINUTE = "MINUTE"
    HOUR = "HOUR"
    ALWAYS = "ALWAYS"


class PaddingMask(BaseEnum):
    """Ways of handling the padding after a prompt."""

    FAMILY = "FAMILY"
    MASKED = "MASKED"
    SEEN = "SEEN"


class StopUnit(BaseEnum):
    """Unit of the point at which training of a part stops."""

    NEVER = "NEVER"
    EPOCH = "EPOCH"
    STEP = "STEP"


class Optimizer(BaseEnum):
    """The update rule."""

    ADAMW = "ADAMW"
    ADAM = "ADAM"
    ADAMW_8BIT = "ADAMW_8BIT"
    ADAM_8BIT = "ADAM_8BIT"
    ADAFACTOR = "ADAFACTOR"
    ADAGRAD = "ADAGRAD"
    RMSPROP = "RMSPROP"
    SGD = "SGD"
    ADABELIEF = "ADABELIEF"
    ADEMAMIX = "ADEMAMIX"
    ADOPT = "ADOPT"
    CAME = "CAME"
    LAMB = "LAMB"
    LION = "LION"
    LION_8BIT = "LION_8BIT"
    PRODIGY = "PRODIGY"
    SCHEDULE_FREE_ADAMW = "SCHEDULE_FREE_ADAMW"
    SCHEDULE_FREE_SGD = "SCHEDULE_FREE_SGD"
    TIGER = "TIGER"
    ADAGRAD_8BIT = "ADAGRAD_8BIT"
    ADEMAMIX_8BIT = "ADEMAMIX_8BIT"
    AIDA = "AIDA"
    DADAPT_ADAM = "DADAPT_ADAM"
    DADAPT_ADAN = "DADAPT_ADAN"
    DADAPT_ADA_GRAD = "DADAPT_ADA_GRAD"
    DADAPT_LION = "DADAPT_LION"
    DADAPT_SGD = "DADAPT_SGD"
    LAMB_8BIT = "LAMB_8BIT"
    LARS = "LARS"
    LARS_8BIT = "LARS_8BIT"
    MUON = "MUON"
    RMSPROP_8BIT = "RMSPROP_8BIT"
    SGD_8BIT = "SGD_8BIT"
    YOGI = "YOGI"
    PRODIGY_PLUS_SCHEDULE_FREE = "PRODIGY_PLUS_SCHEDULE_FREE"
    ADAMW_ADV = "ADAMW_ADV"
    ADOPT_ADV = "ADOPT_ADV"
    LION_ADV = "LION_ADV"
    SIGNSGD_ADV = "SIGNSGD_ADV"
    PRODIGY_ADV = "PRODIGY_ADV"
    MUON_ADV = "MUON_ADV"
    ADAMUON_ADV = "ADAMUON_ADV"

    @property
    def adapts_its_rate(self) -> bool:
        """True if it finds its own step size, which the learning rate (1) multiplies."""
        return self.value.startswith(("PRODIGY", "DADAPT_"))

    @property
    def of_matrices(self) -> bool:
        """True if it moves matrices inside blocks alone, and leaves the rest to ADAMW."""
        return self.value in ("MUON", "MUON_ADV", "ADAMUON_ADV")

    @property
    def in_extra_packages(self) -> bool:
        """True if its class comes with requirements-optimizers.txt."""
        return self.value == "PRODIGY_PLUS_SCHEDULE_FREE" or self.value.endswith("_ADV")


class LearningRateScheduler(BaseEnum):
    """Schedules of the learning rate after the warm-up."""

    CONSTANT = "CONSTANT"
    LINEAR = "LINEAR"
    COSINE = "COSINE"
    COSINE_WITH_RESTARTS = "COSINE_WITH_RESTARTS"
    COSINE_WITH_HARD_RESTARTS = "COSINE_WITH_HARD_RESTARTS"
    REX = "REX"
    ADAFACTOR = "ADAFACTOR"
    CUSTOM = "CUSTOM"


class EMAMode(BaseEnum):
    """Places for the moving average of the trained weights."""

    OFF = "OFF"
    CPU = "CPU"
    GPU = "GPU"


class LossWeight(BaseEnum):
    """Weights of the supervised loss over noise levels."""

    CONSTANT = "CONSTANT"
    MIN_SNR_GAMMA = "MIN_SNR_GAMMA"
    DEBIASED_ESTIMATION = "DEBIASED_ESTIMATION"
    P2 = "P2"
    SNR = "SNR"
    SIGMA = "SIGMA"


class TimestepDistribution(BaseEnum):
    """Distributions of timesteps."""

    UNIFORM = "UNIFORM"
    SIGMOID = "SIGMOID"
    LOGIT_NORMAL = "LOGIT_NORMAL"
    HEAVY_TAIL = "HEAVY_TAIL"
    COS_MAP = "COS_MAP"
    INVERTED_PARABOLA = "INVERTED_PARABOLA"
    BETA = "BETA"
    POWER = "POWER"


class Scaler(BaseEnum):
    """Factors on the loss, or factors whose square root scales the learning rate."""

    NONE = "NONE"
    BATCH = "BATCH"
    GLOBAL_BATCH = "GLOBAL_BATCH"
    GRADIENT_ACCUMULATION = "GRADIENT_ACCUMULATION"
    BOTH = "BOTH"
    GLOBAL_BOTH = "GLOBAL_BOTH"

    def factor(self, batch: int, accumulation: int, processes: int) -> int:
        """The product of the named quantities.

        Args:
            batch: images per batch and process.
            accumulation: batches per optimizer step.
            processes: processes that train together.
        """
        batches = {"NONE": 1, "GRADIENT_ACCUMULATION": 1, "BATCH": batch, "BOTH": batch}
        both = self.value in ("GRADIENT_ACCUMULATION", "BOTH", "GLOBAL_BOTH")
        return batches.get(self.value, batch * processes) * (accumulation if both else 1)


class NoiseScheduler(BaseEnum):
    """The sampler that turns noise into an image; AUTO is the usual one of the family."""

    AUTO = "AUTO"
    DDIM = "DDIM"
    EULER = "EULER"
    EULER_A = "EULER_A"
    EULER_KARRAS = "EULER_KARRAS"
    DPMPP = "DPMPP"
    DPMPP_KARRAS = "DPMPP_KARRAS"
    DPMPP_SDE = "DPMPP_SDE"
    DPMPP_SDE_KARRAS = "DPMPP_SDE_KARRAS"
    UNIPC = "UNIPC"
    UNIPC_KARRAS = "UNIPC_KARRAS"


# -- Preference pairs ------------------------------------------------------------------------------------------


class DPOSequentialStrategy(BaseEnum):
    """Ways in which the sequential execution mode computes the exact gradient."""

    AUTO = "AUTO"
    THREE_FORWARD = "THREE_FORWARD"
    GRAD_STASH = "GRAD_STASH"


class DPOTimestepSampling(BaseEnum):
    """Choices of whether the timesteps of a pair's visits are independent or spread evenly."""

    UNIFORM = "UNIFORM"
    STRATIFIED = "STRATIFIED"


class DPOSafeguard(BaseEnum):
    """Choices of whether the rejected image of a pair may push the chosen one away, and where this is measured.
    """

    OFF = "OFF"
    OUTPUT = "OUTPUT"


class DPOConfidence(BaseEnum):
    """Effects of the ranking's certainty about a pair on its loss."""

    OFF = "OFF"
    SMOOTHING = "SMOOTHING"
    MARGIN = "MARGIN"


class DPOPatienceMetric(BaseEnum):
    """Validation metrics for early stopping; the values are their logged names."""

    VAL_ACCURACY = "val_accuracy"
    VAL_LOSS = "val_loss"
    VAL_CHOSEN_REWARD = "val_chosen_reward"

    @property
    def higher_is_better(self) -> bool:
        return self is not DPOPatienceMetric.VAL_LOSS


# -- Online modes: images and rewards --------------------------------------------------------------------------


class MaskSource(BaseEnum):
    """Sources of image masks: a file next to the image, its alpha channel, or a separate folder."""

    FILE = "FILE"
    ALPHA = "ALPHA"
    FOLDER = "FOLDER"


class PairMasks(BaseEnum):
    """Parts of a pair that count: all of it, its masked area, or the area where the images differ."""

    OFF = "OFF"
    FILE = "FILE"
    DIFFERENCE = "DIFFERENCE"


class PairMaskNorm(BaseEnum):
    """Divisors of the error inside a pair's mask: the mask area, or the whole image."""

    MASKED_MEAN = "MASKED_MEAN"
    MEAN = "MEAN"


class PromptSource(BaseEnum):
    """Sources of a concept's prompts: a text file next to each image, one text file for all images, the file
    name, or one JSON file that lists the caption of each image. The values are those that concept files have
    always used.
    """

    SAMPLE = "sample"
    CONCEPT = "concept"
    FILENAME = "filename"
    METADATA = "metadata"


class RolloutSampler(BaseEnum):
    """Ways of distributing the images of an epoch among the processes."""

    AUTO = "AUTO"
    GROUP_DISTRIBUTED = "GROUP_DISTRIBUTED"
    DISTRIBUTED_K_REPEAT = "DISTRIBUTED_K_REPEAT"
    GROUP_CONTIGUOUS = "GROUP_CONTIGUOUS"


class RolloutTransition(BaseEnum):
    """Ways in which a trained denoising step adds its noise; AUTO is DDIM or FLOW_SDE, depending on the model."""

    AUTO = "AUTO"
    DDIM = "DDIM"
    FLOW_SDE = "FLOW_SDE"
    DANCE_SDE = "DANCE_SDE"
    CPS = "CPS"


class SdeChoice(BaseEnum):
    """Ways of choosing the trained steps if not all are trained."""

    RANDOM = "RANDOM"
    CONTIGUOUS = "CONTIGUOUS"


class GroupNoise(BaseEnum):
    """The noise that the images of a group are trained with."""

    GROUP_FIXED = "GROUP_FIXED"
    GROUP_PER_TIMESTEP = "GROUP_PER_TIMESTEP"
    INDEPENDENT = "INDEPENDENT"


class GuidanceLayout(BaseEnum):
    """Ways of computing the two predictions of a guided step."""

    SPLIT = "SPLIT"
    JOINT = "JOINT"


class RewardCombination(BaseEnum):
    """Ways of combining several rewards into one advantage."""

    SUM = "SUM"
    GDPO = "GDPO"


class RewardFailure(BaseEnum):
    """Consequences of a failed reward."""

    FAIL = "FAIL"
    SKIP_GROUP = "SKIP_GROUP"


class OnlinePairs(BaseEnum):
    """Ways of forming pairs from the images of a group."""

    BEST_WORST = "BEST_WORST"
    ALL = "ALL"


# -- Online modes: losses and steps ----------------------------------------------------------------------------


class AdvantageScale(BaseEnum):
    """The standard deviation that rewards are divided by."""

    GLOBAL_STD = "GLOBAL_STD"
    GROUP_STD = "GROUP_STD"
    NONE = "NONE"


class GroupStrategy(BaseEnum):
    """Ways of computing a loss over a whole group or trajectory from micro-batches."""

    AUTO = "AUTO"
    EXACT = "EXACT"
    TWO_PASS = "TWO_PASS"
    STASH = "STASH"


class GspoWeighting(BaseEnum):
    """Weights of an image by its number of trained steps."""

    LENGTH = "LENGTH"
    DOCUMENT = "DOCUMENT"


class KlType(BaseEnum):
    """The divergence between policy and reference."""

    EXACT = "EXACT"
    FLOW_GRPO = "FLOW_GRPO"
    X = "X"
    V = "V"


class LogProbForm(BaseEnum):
    """The quantity used as the log-probability of a step."""

    GAUSSIAN = "GAUSSIAN"
    SQUARED_ERROR = "SQUARED_ERROR"


class LogProbReduction(BaseEnum):
    """Ways of reducing the log-densities of a step's latent values to one."""

    MEAN = "MEAN"
    SUM = "SUM"


class LossAggregation(BaseEnum):
    """Ways of aggregating the losses of steps; STEP_MEAN is another name for TOKEN_MEAN."""

    SAMPLE_MEAN = "SAMPLE_MEAN"
    PROMPT_MEAN = "PROMPT_MEAN"
    TOKEN_MEAN = "TOKEN_MEAN"
    STEP_MEAN = "STEP_MEAN"
    CONSTANT = "CONSTANT"


class OldLogProbSource(BaseEnum):
    """Sources of the log-probabilities before the update."""

    ROLLOUT = "ROLLOUT"
    RECOMPUTE = "RECOMPUTE"


class RatioCheck(BaseEnum):
    """Consequences of a first ratio after a rollout that is not 1."""

    AUTO = "AUTO"
    OFF = "OFF"
    WARN = "WARN"
    ERROR = "ERROR"


class ShortStep(BaseEnum):
    """Ways of treating the last step of an epoch if too few images are left for it."""

    TRAIN = "TRAIN"
    ERROR = "ERROR"


class TimestepSampler(BaseEnum):
    """Ways of drawing the timesteps of a decoupled loss."""

    UNIFORM = "UNIFORM"
    LOGIT_NORMAL = "LOGIT_NORMAL"
    DISCRETE = "DISCRETE"
    DISCRETE_WITH_INIT = "DISCRETE_WITH_INIT"
    DISCRETE_WO_INIT = "DISCRETE_WO_INIT"
