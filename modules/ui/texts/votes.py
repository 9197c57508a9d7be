"""Texts of the votes requested by a run whose reward is a person."""

TAB, TAB_OPEN = "Votes", "Votes ({count})"
NO_QUESTION = (
    "No question is open. With the reward \u201cperson\u201d, a run shows you images and waits for your "
    "votes."
)
QUESTION = "Which of these do you like?  \u2013  {prompt}"
NO_PROMPT = "(no prompt)"
SOURCE = "Source  {name}"
LIKE, DISLIKE = "Space  Like", "D  Dislike"
BEST, DONE = "B  Best", "Enter  Done"
OPEN = "open question"
WANTED = "Votes wanted: {prompt}"
COUNTED = "Votes counted: {liked} of {images} liked"
COUNTED_BY = {"head": "The taste head voted", "nobody": "Nobody voted in time"}
