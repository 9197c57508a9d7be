"""Texts of the page of adapters and embeddings."""

from modules.ui.pages.PageSpec import PageSpec

PAGE = PageSpec(
    "lora",
    "LoRA",
    order=50,
    sections=("LoRA", "Embeddings"),
    module="LoraPage",
    about="The adapter, the layers it changes, and embeddings.",
)

LIST = "Additional embeddings"
COLUMN_PLACEHOLDER, COLUMN_START, COLUMN_TOKENS, COLUMN_TRAINED = (
    "Placeholder",
    "Initial value",
    "Tokens",
    "Trained",
)
AS_TEXT = "as in the text"
IN_FILE = "in the file"
YES, NO = "yes", "no"
ADD_TIP = "Add an embedding"
EMBEDDING = "Embedding {placeholder}"
NEW_EMBEDDING = "New embedding"
