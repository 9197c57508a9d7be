"""Texts of the page of preference training."""

from modules.ui.pages.PageSpec import PageSpec
from modules.util.enum.DPOExecutionMode import DPOExecutionMode

PAGE = PageSpec(
    "rlhf", "RLHF", order=60, sections=("RLHF",), module="RlhfPage", about="Learning from your preferences."
)

# pairs
PAIRS_CARD = "Pairs and reference"
PAIR_TOOL, PAIR_TOOL_TIP = "Open pair tool", "Choose between generated images with a few keys"
REVIEW, REVIEW_TIP = "Review pairs\u2026", "Go through finished pairs: swap, edit captions, remove"
CHECK, CHECK_TIP = "Check pairs", "Compare the folders of the concepts, pair by pair"
BUCKETS = "Bucket analysis"
BUCKETS_TIP = "Pairs per aspect ratio, and how many more would fill each batch"
ASK_PAIRS = "Output folder of the pair tool"
WORKING = "{title}\u2026"
REPORT_GOOD = "{title}: done"
REPORT_BAD = "{title}: there are errors"
CANNOT_TRAIN = "Training on these pairs is not possible. Fix these errors first."
READY = "Ready to train on the pairs of {folder}. Press Start. Ctrl+Z restores the previous settings"

# what follows from the settings
PAPER_BETA = "On the scale of the Diffusion-DPO paper: beta {beta:g}"
USUAL = "Usual for {label}: beta {beta:g}, supervised mix {mix:g}, learning rate {rate:g} (LoRA)"
USUAL_WITHOUT_BETA = "Usual for {label}: supervised mix {mix:g}, learning rate {rate:g} (LoRA)"
USUAL_WITHOUT_REFERENCE = "Usual for {objective}: beta 10 to 50"
MEMORY = {
    DPOExecutionMode.AUTO: "The fastest mode that fits into the free memory of the GPU. The log names it.",
    DPOExecutionMode.FULL_CONCURRENT: (
        "Fastest. Keeps the activations of both images: twice the activation memory of an ordinary step."
    ),
    DPOExecutionMode.POLICY_CONCURRENT: (
        "The trained model processes both images at once; the reference processes them one after the other."
    ),
    DPOExecutionMode.SEQUENTIAL: (
        "One image at a time: needs the memory of an ordinary LoRA step. About 10 % slower than FULL_CONCURRENT."
    ),
}
POLICY_WITHOUT_REFERENCE = (
    "The trained model processes one image after the other and keeps the activations of both. Without a reference, "
    "this saves no memory."
)
THREE_FORWARD = " THREE_FORWARD needs one more forward pass."

# what is trained
ORDINARY = "Ordinary training on images. To learn from pairs, switch preference training on."
NEW_ADAPTER = "Trains a new adapter. The reference is the base model without it."
OWN_START = (
    "Continues the adapter {name}. The reference is a frozen copy of that adapter as it was at the start."
)
NEW_WITHOUT_REFERENCE = "Trains a new adapter. {objective} compares the two images of a pair and has no reference."
OWN_WITHOUT_REFERENCE = (
    "Continues the adapter {name}. {objective} compares the two images of a pair and has no reference."
)
ONLINE = (
    "Makes images with {start} during training, compares images of the same prompt by their reward, and learns "
    "from the difference. No pairs are needed."
)
FROM_ADAPTER, FROM_NEW = "the adapter {name}", "a new adapter"

# prompts, rewards, accelerators
EPOCH_MAKES = "Each epoch makes {images}."
CAPTIONS = "Uses the captions of the enabled concepts. {epoch}"
IN_FILE = "{prompts} in the file. {epoch}"
REWARDS_HEAD = "Rewards with all their settings. If this list has entries, they replace the field above."
ITEM_HEAD = "{title}: {tip}"
REWARD, ACCELERATOR = "reward", "accelerator"
COLUMN_REWARD, COLUMN_WEIGHT, COLUMN_SETTINGS = "Reward", "Weight", "Settings"
COLUMN_NAME, COLUMN_PARAMETERS = "Name", "Parameters"
ADD_TIP = "Add a {what}"
NEW_ITEM = "New {what}"
AS_NAME = "as {name}"

# images the run has made
IMAGES_CARD = "Images and reference"
OPEN_IMAGES, OPEN_IMAGES_TIP = (
    "Open image folder",
    "The images that the run has kept, in one folder per epoch",
)
MAKE_PAIRS, MAKE_PAIRS_TIP = "Make pairs", "Choose pairs for DPO from the images that the run has kept"
NO_IMAGES = "No images yet. A run keeps some images of each epoch."

# the reports on pairs
CONCEPTS_OF = "{chosen} \u2013 {rejected} ({split})"
MATCHING = "  Matching: {pairs}"
FAULTS = {
    "only_chosen": "in the chosen folder only",
    "only_rejected": "in the rejected folder only",
    "shared_stems": "several files with the same name",
    "missing_captions": "no caption on one side or both",
    "differing_captions": "different captions on the two sides",
    "multiline_captions": "a caption of several lines",
    "identical_images": "the same image on both sides",
    "unreadable": "images that cannot be decoded",
}
EMPTY_CAPTIONS = "  Empty caption, trained with the empty prompt: {pairs}"
ALL_WELL = "  No faults"
BUCKETS_TOTAL = "{pairs} at resolution {pixels}, batch size {batch}"
FULL_BATCHES = "full batches"
NOT_FULL = "{over} left over: add {missing} or remove {over} for full batches"
BUCKET_LINE = "{shape:>6}   {width} \u00d7 {height}   {pairs:>9}   {batches}"
UNREADABLE = "{images} cannot be read"
IMAGE, PAIR, TRAINING_PAIR = "image", "pair", "training pair"
