"""Texts of the demo project and of the strip that offers it."""

# the offer
SHORT_OFFER = "New here? Try the demo project."
OFFER = (
    "New here? The demo project takes you to a trained adapter in a few minutes. A tiny model that comes with the "
    "program makes images, you pick the ones you like, and the Start button trains on them."
)
ACCEPT, DECLINE = "Demo project\u2026", "Not now"
WHERE_IT_IS = "The demo project is on the Tools page"

# the window
TITLE = "Demo project"
INTRO = (
    "A tiny model draws shapes of 64x64 pixels, several images for each prompt. You say which ones you like, and "
    "training moves the model towards your taste. Stick to one preference throughout, for example: the "
    "larger shape is better."
)
FOLDER, BROWSE, ASK_FOLDER = "Folder", "Browse\u2026", "Folder of the demo project"
CLOSE, CANCEL = "Close", "Cancel"

IMAGES_HEAD = "1   Images"
PROMPTS_LABEL, EACH_LABEL = "prompts, with", "images each"
MAKE_IMAGES, MAKE_THE_REST = "Make images", "Make the rest"
NO_IMAGES = "No images yet"
IMAGE = "image"
MADE_OF = "{done} of {images}"
LOADING = "Loading the model\u2026"

PAIRS_HEAD = "2   Pairs"
PAIRS_ABOUT = (
    "The Left and Right arrow keys choose the better image. The Up key says that both are equally good."
)
CHOOSE, CONTINUE_CHOOSING = "Choose myself", "Continue choosing"
SIMULATE = "Let a simulated person choose"
SIMULATING = "The simulated person, who likes large shapes, is choosing\u2026"
NO_PAIRS = "No pairs yet"
PAIR = "pair"
SORTED = "{pairs}, ready for training"

TRAIN_HEAD = "3   Training"
TRAIN_ABOUT = (
    "Opens the settings with your pairs and shows the Run page. Press Start there. The samples show each prompt "
    "before training and with the adapter."
)
OPEN_SETTINGS = "Open the settings"
READY = "The demo project is ready. Press Start to train. Stop makes a backup, and Start then resumes the run."

CANNOT_WRITE = "{folder} cannot be written: {reason}"

# what is typed
PROMPTS_FIELD, EACH_FIELD = "prompts", "images per prompt"
NOT_POSSIBLE = "{field}: {value!r} is not a valid number"
RANGE = "enter a number from {low} to {high}"
