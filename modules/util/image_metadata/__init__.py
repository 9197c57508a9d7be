"""Reads prompts from image files: containers (PNG, JPEG, WebP, AVIF), then the formats of generators.

Only headers are read. Pixels are decoded only for stealth text, and only on request. Every step is bounded,
because the files are untrusted. The public interface is ``modules.util.image_metadata_util``.
"""
