"""Texts of the first page of the pair tool, and its window titles."""

PAIR_TOOL, REVIEW_TITLE = "Pair tool", "Review pairs"
EXPORT_OF, REVIEW_OF = "Export {name}", "Review {name}"
ABOUT_PROGRAM = "From a folder of generated images to preference pairs."

# folders
RECENT, EARLIER = "Resume", "Earlier sessions\u2026"
IMAGES, PAIRS = "Image folder", "Pairs folder"
BROWSE = "Browse\u2026"
NEW_FOLDER = "This folder will be created."
CONTINUES = "Continues where you stopped: {pairs} so far."
PAIR = "pair"

# ways of choosing
HOW = "How to choose"
PAIRS_PER_PROMPT, PAIRS_PER_PROMPT_UNIT = "Pairs per prompt", "before the next prompt"
CERTAINTY, CERTAINTY_UNIT = "Certainty", "% needed before a pair is saved"
MERGE = "Show near-duplicates once"
TOLERANCE = "Duplicate tolerance"
TOLERANCE_UNIT = "of 64 bits may differ between near-duplicates. 0 to 32, usually 2"
BLIND = "Hide file names and ratings while choosing"
ASK = "Ask after each pair whether to keep scoring the prompt"
APPEARANCE = "Appearance"

# edits
SOURCES = "Source images"
SOURCES_NOTE = (
    "For edits: ComfyUI's input folder, or the one image that all edits were made from. Leave this field "
    "empty if the sources are next to the images."
)
EDITS = "All images are edits"

# buttons
START, CONTINUE, REVIEW = "Start choosing", "Continue choosing", "Review pairs"

# what is wrong
NOT_A_NUMBER = "{value!r} is not {kind} from {low:g} to {high:g}"
WHOLE, ANY = "a whole number", "a number"
NO_PAIRS_FOLDER = "Choose a folder for the pairs"
