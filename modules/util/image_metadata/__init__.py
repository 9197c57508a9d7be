"""Reading prompts out of image files: containers (PNG, JPEG, WebP, AVIF), then the generators' formats.

Headers only: pixels are never decoded, except for stealth text, and that only when asked. Every step is bounded,
because the files may come from anybody. The door is ``modules.util.image_metadata_util``.
"""
