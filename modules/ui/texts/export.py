"""Texts of the last page of the pair tool."""

FINALISE = "Finalise"
VALIDATION_UNIT = "% of the pairs for validation. All pairs of a prompt stay together"
ANSWERS = "Your answers"
PASSED = "{prompts} without a pair"
LEFT_OUT = "{files} left out"
TRAIN, TRAIN_ON = "Train on these pairs", "Train on these {pairs}"
BACK = "Esc  Back to choosing"
REVIEW = "Review pairs"
COPY_PATH = "Copy path of concepts.json"
EXPORT_DATASETS, EXPORT_JSONL = "Export datasets folder\u2026", "Export JSON lines\u2026"
OTHER_FOLDERS = "Choose other folders"
ASK_EMPTY_FOLDER = "Choose an empty folder"

SUMMARY = (
    "{pairs} from {prompts} in {folder}\n"
    "{train} for training, {val} for validation, {waiting} not finalised yet."
)
NOT_A_PERCENTAGE = "{value!r} is not a percentage: enter a number from 0 to 100"
READY = "Ready to train: {pairs} for training, {val} for validation.\nConcepts: {path}"
COPIED = "{pairs} copied to {folder}"

# edits
EDIT_WITHOUT_SOURCE = "edit without source: {prompt} ({images})"

# prompts without a pair
PASSED_PROMPT = "{prompt}   [{shape}]   {images}"
OPEN_PROMPT = "Open this prompt"

# consistency
NO_ANSWERS = "No comparisons yet."
ANSWERED = "{questions}: {answered} answered, {ties}, {both_bad} both bad, {skips} skipped."
LEFT_WON = "The left image won {share:.0%} of the time. 50% means no bias."
AGREEING = "{agreeing} of {questions} got the same answer again."
CIRCLES = "{circles} of {triples} are circular: A beats B, B beats C, C beats A."
MARKED = "\n{liked} liked, {disliked} disliked. Finalise writes both lists to {file}."
FILE, IMAGE, PAIR, PROMPT, QUESTION, TIE = "file", "image", "pair", "prompt", "question", "tie"
REPEATED, TRIPLE = "repeated question", "triple"
