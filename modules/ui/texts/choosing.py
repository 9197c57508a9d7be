"""Texts of the page where pairs are picked."""

from modules.curation.marking.advice import Next

# actions
PAIR_NOW, RANK, NEXT_PROMPT, UNDO = "Pair now", "Rank", "Next prompt", "Undo"
BLIND, PROMPT, KEYS, EXPORT, BACK = "Blind", "Prompt", "Keys", "Export", "Back"
FEWER, MORE = "Fewer pairs", "More pairs"
MOVE_UP, MOVE_DOWN = "Move up", "Move down"
KEEP_SCORING, TO_NEXT_PROMPT = "Yes, keep scoring", "No, next prompt"

# keys for looking
LOOKING_KEYS = (
    ("F, held", "swap the images in turn"),
    ("+, \u2212, wheel", "zoom in, zoom out"),
    ("drag", "move all images together"),
    ("Esc", "show the whole image"),
)

# edits
SOURCE, DIFFERENCE = "Source", "Difference"
DIFFERENCE_SHOWN = "Difference from the source"
DIFFERENCE_HINT = "Changed pixels are bright. X shows the images again"
SOURCE_KEYS = (("S, held", "show the source instead of the images"),)
EDITS_WITHOUT_SOURCE = "\n{edits} without a source image: choose the source images on the start page."
EDIT = "edit"

# position
LOOKING = "Looking for images\u2026"
PLACE = "Prompt {place} of {count}{searching}"
COUNTS = "seen {seen} \u00b7 skipped {skipped} \u00b7 paired {paired}"
PLACES = "Prompts {place}\u2013{last} of {count}{searching}"
COUNTS_OF_MARKS = "seen {seen} \u00b7 liked {liked} \u00b7 disliked {disliked} \u00b7 paired {paired}"
WITHOUT_PAIR = " \u00b7 without a pair {count}"
TIME_LEFT = " \u00b7 {time} left"
NO_PROMPT = "   no prompt: the pairs of these images get empty captions"
SHOWN_AGAIN = "   shown again: {reason}"
PROMPT_AND_SHAPE = "{prompt}   [{shape}]{note}"
SECONDS, MINUTES, HOURS = "{seconds} s", "{minutes} min", "{hours} h {minutes:02d} min"

# certainty
SURE = "{share:.0%} sure"
SAVED_AT = "{sure}; a pair is saved at {share:.0%}"
LOOKING_FOR_CLEARER = "{sure}; looking for a clearer pair"

# how well a taste is known
MEASURING = "measuring how well your choices can be predicted"
TASTE_UNKNOWN = "Taste: not measured yet"
TASTE_KNOWN = "Taste: {share:.0%} of your choices predicted ({low:.0%} to {high:.0%})"
TASTE_FAILED = "Taste: not measured ({reason})"
WHAT_NEXT = {
    Next.BOTH: "{known}. Mark some images as liked and leave others unmarked",
    Next.MORE: "{known}; look at {more} more",
    Next.FIRST: "{known}; enough for a first training run",
    Next.ENOUGH: "{known}; enough to train",
}

# the end
NOTHING_TO_COMPARE = (
    "No two images in {folder} have the same prompt and shape, so there is nothing to compare.\n{files} could not be "
    "used."
)
ALL_DONE = "All {prompts} are done: {pairs}."
SOME_WITHOUT = (
    "\n{prompts} ended without a pair. The export page lists these prompts and can open them again."
)
FILE, IMAGE, PAIR = "file", "image", "pair"

# views
RANKED_HINT = "Best first: drag to reorder. {pairs}: green is chosen, red is rejected"
SAVED_HINT = "Saved: {pairs}. Keep scoring this prompt? {images} left."
CHOSEN, REJECTED = "Chosen", "Rejected"

# undo
NOTHING_TO_UNDO = "There is nothing to undo."
UNDONE_LATER = "Undone. The prompt will be shown again later."
UNDONE_ELSEWHERE = "Undone. The images of this step are not in the image folder."

# questions
KEEP = "N  Keep"
YES = "Y  {verb}"
CANNOT_BE_SHOWN = "{name}\ncannot be shown: {reason}"
