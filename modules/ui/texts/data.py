"""Texts of the page of images and of the window of a concept."""

from modules.ui.pages.PageSpec import PageSpec

PAGE = PageSpec(
    "data",
    "Data & concepts",
    order=30,
    sections=("Data",),
    module="DataPage",
    about="The images, and what each folder is for.",
)

# the page
CONCEPTS = "Concepts"
COLUMN_NAME, COLUMN_TYPE, COLUMN_IMAGES, COLUMN_FOLDER = "Name", "Type", "Images", "Folder"
NO_FOLDER = "(no folder yet)"
MISSING = "missing"
ADD_TIP = "Add a folder of images"
ADD_PAIRS, ADD_PAIRS_TIP = "Add pairs\u2026", "Add the output folder of the pair tool"
ASK_IMAGES = "A folder of images"
ASK_PAIRS = "Output folder of the pair tool"
USUAL_SIZE = "{family} is usually trained at {pixels} pixels."

# a concept
CONCEPT = "Concept {name}"
GENERAL_TAB, IMAGES_TAB, PROMPTS_TAB, FOLDER_TAB = "General", "Images", "Prompts", "Folder"
LOOKING = "Looking\u2026"
OFF_FOR_PAIRS = (
    "Off for preference pairs: both images of a pair must be treated alike, or the model learns the difference "
    "that the augmentation makes."
)

# what is in a folder
FOLDER_HOLDS = "{images}, {size:.1f} MiB"
CAPTIONS = "{captions}"
CAPTIONS_SOME = "{captions}, {images} without one"
SIZES = "Smallest {smallest}, largest {largest}"
SHAPES = "Shapes: {shapes}"
CANNOT_BE_READ = "Cannot be read: {images} ({names})"
IMAGE, CAPTION = "image", "caption"
