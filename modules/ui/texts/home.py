"""Texts of the Home page: creating or opening a project, and its five cards."""

from modules.ui.pages.PageSpec import PageSpec

PAGE = PageSpec(
    "home",
    "Home",
    order=5,
    module="HomePage",
    about="Teach a model your taste, step by step.",
    key_name="Alt+Home",
)

# a new project
NEW = "New project"
FOLDER, BROWSE, ASK_FOLDER = "Folder", "Browse\u2026", "Folder of the project"
BASE, ASK_BASE, FILE, ASK_FILE = (
    "Base model",
    "Folder of the base model",
    "File\u2026",
    "File of the base model",
)
TYPE = "Model type"
CARD, CARD_UNIT, GB = "Graphics card", "of memory", "{size} GB"
PROMPTS = "Prompts"
ASK_PROMPTS = "File of prompts"
PROMPTS_TIP = (
    "One prompt per line. {a|b} stands for a or b. A fifth of the prompts are kept for judging. Enter 20 "
    "prompts or more if you can."
)
TO_EDIT, ASK_TO_EDIT, ASK_TO_EDIT_FILE = "Images to edit", "Folder of images to edit", "Image to edit"
TO_EDIT_TIP = (
    "Each prompt is applied to each of these images. In a .jsonl file of prompts, each line names its own image "
    "instead."
)
EDITS_TIP = (
    "Each line keeps the source images that it was used with. Remove the lines that you do not want, or clear the "
    "list to write prompts yourself."
)
CREATE, CREATING = "Create project", "Creating\u2026"
FILL_DEMO = "Fill in the demo"
FROM_IMAGES, ASK_IMAGES = "From images\u2026", "Folder of images that you have made"
FROM_EDITS, EDITS_TITLE = "From edits\u2026", "Project from edits"
EDITS_ABOUT = (
    "Start a project from edited images. Their instructions become its prompts, and their sources its images to "
    "edit."
)
EDITED_IMAGES, ASK_EDITED = "Edited images", "Folder of edited images"
ASK_INPUTS, ASK_SOURCE = "Folder of source images", "Image that all edits were made from"
EDITS_NOTE = (
    "ComfyUI's input folder, or the one image that all edits were made from. Leave this field empty if the "
    "sources are next to the images, as NAME-source.png or in a folder \u201csource\u201d."
)
SOURCES_LOST = "These images are edits, but their source images were not found. Choose the source images."
READ_EDITS, CANCEL = "Read the edits", "Cancel"
NO_EDITED = "Choose the folder with the edited images."
READING_IMAGES = "Reading the images\u2026"
PROPOSED = "From {images}: {facts}."
EDITS_OF, SOURCE = "edits of {sources}", "source image"
BY_PROGRAM, BY_WORKFLOW = "made by {program}", "made by {program}; the workflow in the images will be used"
PROGRAMS = {
    "own": "the built-in sampler",
    "comfyui": "ComfyUI",
    "swarmui": "SwarmUI",
    "a1111": "A1111 or Forge",
}
SIZE, STEPS_FACT, SCALE = "{width} \u00d7 {height} pixels", "{steps} steps", "guidance {cfg:g}"
NO_TYPE = "Check the model type: it could not be read from the images."
DEMO_FOLDER = "demo-taste"
FIELDS = {
    "DIR": FOLDER,
    "--base-model": BASE,
    "--model-type": TYPE,
    "--prompts": PROMPTS,
    "--to-edit": TO_EDIT,
}
"""Titles of the form's fields by the arguments of ``taste.py new``."""
IS_PROJECT = "{folder} is already a project. Do you want to open it?"
OPEN_IT, OPEN_NOT = "Open the project", "Cancel"
NO_FOLDER = "Choose a new folder for the project."
NO_BASE = "Choose the base model: a folder, a file, or a name on the Hugging Face hub."
NO_PROMPTS = "Write some prompts, one per line."

# a project that exists
OPEN = "Open project"
OPEN_OTHER = "Open\u2026"
NO_RECENT = "Projects that you have opened are listed here."
CANNOT_OPEN = "{folder} cannot be opened: {reason}"
LEAVE = "Other project\u2026"
ROUND = "Round {number}"
EARLIER = "Round {number}: {sentence}"
LOOKING = "Looking at the project\u2026"

# the cards
TITLES = {
    "generate": "1   Images",
    "pick": "2   Pick",
    "train": "3   Train",
    "compare": "4   Compare",
    "new-round": "5   Next round",
}
BUTTONS = {
    "generate": "Make images",
    "pick": "Pick",
    "train": "Train",
    "compare": "Compare",
    "new-round": "Next round",
}
RESUME = {
    "generate": "Make the rest",
    "pick": "Continue picking",
    "train": "Resume training",
    "compare": "Continue comparing",
}
SHOW_RESULT = "Show the result"
STOP = "Stop"
STOPPING = "Stopping\u2026"
LEARN = "Learn my taste"
LEARNING = "Learning your taste\u2026"
LEARNING_OF = "Learning your taste: {done} of {images}"
LEARNED = (
    "Your taste was learned. On other prompts, it picks the better of two images in {share:.0%} of "
    "{comparisons} (likely range: {low:.0%} to {high:.0%})."
)
GUESSES = "That may be no better than guessing. Pick some more images before you train on this taste."
LEARNED_UNMEASURED = "Your taste was learned from {comparisons}. No comparison was left to measure how well."
UNGUARDED = (
    "This taste cannot tell whether an image shows its prompt, so training does not lower the score of images "
    "that ignore their prompts."
)
COMPARISON = "comparison"
WORK = {
    "learn": "learning your taste",
    "generate": "making images",
    "train": "training",
    "compare": "making images to compare",
    "judge": "judging automatically",
    "next": "starting a round",
}
NOT_STARTED = (
    "Training has not started, because the project is still {work}. Wait until this has finished or stop it, then "
    "press Train."
)
BLOCKED = {
    "made": "All images of this round are made.",
    "no_images": "You can pick as soon as all images of one prompt are made.",
    "no_pairs": "Pick at least 2 pairs first.",
    "picked": "This round is trained. Pick again in the next round.",
    "trained": "This round is trained.",
    "not_trained": "Train this round first.",
}
BUSY = "Waiting for the current step to finish."
IMAGE, ANSWER, PAIR, VOTE = "image", "answer", "pair", "vote"
IMAGES_OF = "{done} of {images}"
TO_BE_MADE = "{images} will be made."
PICKED = "{answers}, {pairs}. That is enough for a first training run. Further answers help less and less."
ENOUGH = "{answers}, {pairs}. About 48 pairs make a good round."
NOTHING_PICKED = "Choose the better of two images with the arrow keys."
TO_TRAIN_ON = "{pairs} to train on"
LOADING = "Loading\u2026"
STEP_OF = "Step {done} of {total}"
STOPPED_AT = "Stopped at step {done} of {total}"
TRAINED = "Trained for {steps}"
STEP = "step"
TOOK, LEFT = "took {time}", "{time} left"
COMPARE_ABOUT = "Two images of the same prompt and seed, without names: which one is better?"
NEXT_ABOUT = "New images with the new adapter, mostly for new prompts and for prompts with uncertain picks."
CONTESTANTS = "Contestants\u2026"
JUDGE = "Judge automatically"
JUDGING = "Judging {done} of {images} automatically"
AUTOMATIC = "Automatic: {sentence}"
PREPARING = "Making {done} of {images} to compare"

# what is dropped
DROP_TITLE = "Dropped file"
DROP_KINDS = (
    "drop one kind at a time: images, prompts (.txt, .jsonl), a workflow or config (.json), or a project; while no "
    "project is open, also a base model or an empty folder"
)
DROP_PICK, DROP_WORKFLOW, DROP_CANCEL = "Pick from it", "Use its workflow", "Cancel"
DROP_WHICH = (
    "{name} contains a ComfyUI workflow. Pick from this image, or make the project's images with its "
    "workflow?"
)
DROP_ASK_WORKFLOW = (
    "Make the images of this project in ComfyUI with this workflow? At present, {program} makes them."
)
DROP_USED = "ComfyUI makes the images of this project with this workflow."
DROP_OPEN, DROP_OPEN_HINT = "A window of this project is open.", "Close it, then open the other project."
DROP_BUSY, DROP_BUSY_HINT = "A step of the project is running.", "Wait until it has finished, or stop it."
DROP_NEW_ONLY = "The base model of a project cannot be changed."
DROP_NEW_HINT = "Create a new project for this model."
DROP_NO_IMAGES = "There are no images in {name}."
DROP_NO_IMAGES_HINT = "Drop images, or a folder that contains images."
DROP_ADDED = "{images} added to pick from."
DROP_KNOWN, DROP_SILENT = "{images} already in the project.", "{images} left out: no prompt."
DROP_JUDGING = "{images} left out: prompt held out for judging."
DROP_EDITS = (
    "{images} left out: made from other images, but this project makes images from prompts alone. Use the pair "
    "tool to pick from edits."
)
DROP_NO_SOURCE = (
    "{images} left out: no usable source image. Put each source next to its image, as NAME-source.png. Then drop "
    "the images again."
)
PROMPT = "prompt"
DROP_PROMPTS = "{prompts} added. They are used in the next round, or in this one if it has no images yet."
BY_DROPPED_WORKFLOW = "Images are made by ComfyUI with the workflow {name}."
SHOWN_OF = "Up to {count} images of each prompt are shown: those that your learned taste is least sure about."
OWN_IMAGES = "{images} of your own"
