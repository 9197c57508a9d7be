"""The LoRA page, which is a form of its settings."""

from modules.ui.pages.PageSpec import PageSpec

PAGE = PageSpec("lora", "LoRA", order=50, sections=("LoRA",), about="The adapter and the layers it changes.")
