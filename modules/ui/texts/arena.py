"""Texts of the arena: voting on two images without names, and the result."""

NAME = "Arena"
LOOKING = "Looking for the images\u2026"
VOTE = "vote"
LEFT = "up to {questions} left"
QUESTION = "question"
SEED = "{prompt}   (seed {seed})"
HINT = "Same prompt, same seed: which image is better?"
PAUSE = "Voting begins when no key has been pressed for a second."
UNDO, STANDING, ACTUAL_SIZE, KEYS, RESULT = "Undo", "Result so far", "1:1", "Keys", "Show result"
LOOKING_KEYS = (("F", "swap the images while the key is held"), ("+ \u2212", "zoom"))
SOURCE = "Source"
HIDDEN = "Names stay hidden until the end."

BECAUSE = {
    "decided": "The result is clear.",
    "votes": "The maximum number of votes has been reached.",
    "images": "There are no more images to compare.",
    "": "You stopped; you can continue at any time.",
}
COLUMNS = "Your votes: {names} side by side. A green frame marks the image that you preferred."
AUTOMATIC = "Automatic results, not your votes:"
MORE, CLOSE, NEXT_ROUND = "Keep voting", "Close", "Next round"
CONTESTANTS, COMPARE, CANCEL = "Compare in the arena", "Compare", "Cancel"
STRENGTHS_TIP = (
    "Choose at least two contestants. An adapter can have several strengths, separated by commas; each "
    "strength is a contestant."
)
ADD_FILE, ASK_ADAPTER, IMAGES_OF_EACH = "Add adapter\u2026", "Adapter file", "Images per contestant"
BAD_STRENGTH = "A strength is a number between -10 and 10, for example 0.7."
TOO_FEW = "Choose at least two contestants."
NO_VOTES = "There are no votes yet."
HALF = "50 %"
