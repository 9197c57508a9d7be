"""Texts of the caption editor."""

TITLE = "Captions"
ABOUT_PROGRAM = "Write, find and change the captions of a folder of images."
READING = "Reading\u2026"
NO_CAPTION, NOT_SAVED = "no caption", "not saved"

# find
BY_TEXT, BY_TAG, WITHOUT = "Text", "Tag", "Without caption"
FIND_BY = (BY_TEXT, BY_TAG, WITHOUT)
FIND, SHOW_ALL, MASKS, READ_AGAIN, KEYS_BUTTON = "Find", "Show all", "Masks", "Read again", "Keys"
PLACE = "{shown} of {images} \u00b7 {chosen} selected"
IMAGE, CAPTION = "image", "caption"
NOTHING_FOUND = "No image matches."
NO_IMAGES = "There are no images in this folder."

# one caption
SEVERAL_LINES = (
    "Enter saves and shows the next image. Shift+Enter begins another caption for this image. Training uses "
    "the captions of an image in turn."
)
UNREADABLE = "This caption cannot be changed: {reason}."

# many captions
CHANGE = "Change {images}"
ALL_SHOWN = "All shown images"
OLD, NEW, TAG = "Find", "Replace with", "Tags"
WHOLE_TAGS = "Whole tags"
REPLACE, ADD_FRONT, ADD_END, DELETE = "Replace", "Add at the start", "Add at the end", "Delete"
UNDO, STOP = "Undo", "Stop"
WORKING = "{done} of {total} written"
CHANGED, LEFT = "{captions} changed", "not changed: {captions} ({reason})"
UNDONE, NOTHING_TO_UNDO = "The last change was undone.", "There is nothing to undo."
STOPPED = "Stopped. Nothing was changed."

# tags
MORE_TAGS = "and {count:,} more"
TAG_COLUMN, COUNT_COLUMN = "Tags of all images", "Captions"

# a caption that others changed
CHANGED_TITLE = "Caption changed"
CHANGED_QUESTION = (
    "{name} was changed by another program while you were writing. It now says:\n\n{now}\n\nYou wrote:\n\n{mine}\n\n"
    "Keep the caption as it is on the disk?"
)
WRITE_MINE = "Save mine"
UNSAVED_TITLE = "Captions not saved"
UNSAVED_QUESTION = "{captions} could not be saved. Close the window and lose these changes?"
CLOSE = "Close"

# masks by hand
PAINT = "Paint mask\u2026"
MASK_TITLE = "{name} ({number} of {count}) \u2013 Mask"
BRUSH, FILL = "Brush", "Fill"
SIZE, STRENGTH = "Size {size}", "Strength {percent} %"
ALL_LEARNED, ALL_HIDDEN, INVERT, REDO, SAVE = "Learn all", "Hide all", "Invert", "Redo", "Save"
PAINT_HINT = "Left button: area to learn. Right button: area to hide (red). Wheel: size of the brush."
OPENING, SAVING, SAVED = "Opening\u2026", "Saving\u2026", "Saved."
NOT_YET_SAVED = "Not saved yet. The mask is saved when you go to another image or close the window."
MASK_CHANGED_TITLE = "Mask changed"
MASK_CHANGED_QUESTION = (
    "The mask of {name} was changed by another program while you painted. Keep the mask as it is on the disk?"
)
LOSE_TITLE = "Mask not saved"
LOSE_QUESTION = "The mask of {name} could not be saved. Close the window and lose what you painted?"
PAINT_KEYS = (
    ("Left button", "paint the area to learn"),
    ("Right button", "paint the area to hide: it turns red and is not learned"),
    ("Wheel, [ and ]", "size of the brush"),
    ("B, F", "brush, fill an area of the same level"),
    ("+ and -, Ctrl+wheel", "zoom in, zoom out"),
    ("0", "the whole image"),
    ("Arrows, drag with the middle button", "move the image"),
    ("A, H, I", "learn all, hide all, invert"),
    ("Ctrl+Z, Ctrl+Y", "undo, redo"),
    ("Page Up, Page Down", "save, then the previous or next image"),
    ("Ctrl+S", "save"),
    ("Esc, Ctrl+W", "save and close"),
)

KEYS = (
    ("Arrows, Home, End", "another image"),
    ("Shift+arrows, Shift+click", "select up to that image"),
    ("Ctrl+click, Space", "add to the selection, or remove from it"),
    ("Ctrl+A", "select all shown images"),
    ("Enter, F2", "write the caption"),
    ("In the caption: Enter", "save, then the next image"),
    ("In the caption: Page Up, Page Down", "save, then the previous or next image"),
    ("In the caption: Esc", "discard what you typed since the last save"),
    ("Ctrl+F", "find"),
    ("Ctrl+H", "replace"),
    ("In the tags: click", "put the tag into the fields for changes"),
    ("In the tags: double click, Enter", "show the images with the tag"),
    ("Ctrl+Z", "undo the last change"),
    ("M", "masks on and off"),
    ("B", "paint the mask of the image"),
    ("+ and -", "larger or smaller images"),
    ("F5", "read the folder again"),
    ("Ctrl+W", "close"),
)
