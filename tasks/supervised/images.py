"""Pixels of Pillow images as arrays, without a loss of values."""

import re
from typing import Any

import numpy as np

from depthrate.tasks.data.sources import DatasetError

_GREY = ("1", "L", "I", "I;16", "I;16B", "F")
"""Pillow's modes with one number per pixel."""
_COLOUR = ("RGB", "P", "RGBA", "LA", "PA")
"""Modes that RGB represents if all pixels are opaque."""
_TRUNCATED = re.compile(r"(L|RGB|CMYK).*;16|(L|RGB)A?a?X")
"""Storage formats of which Pillow's modes keep 8 of 16 bits per channel, or not all channels."""


def is_image(value: Any) -> bool:
    """Return whether a value is a Pillow image."""
    return hasattr(value, "getbands") and hasattr(value, "convert")


def read_pixels(image: Any, name: str) -> np.ndarray:
    """Convert a grey Pillow image to its numbers [rows, columns], and others to bytes [3, rows, columns].

    Raises:
        DatasetError: An array would not have all values of the image.
    """
    if (loss := _find_loss(image)) is not None:
        raise DatasetError(
            f"{name} {loss}. Save it as grey (1 to 16 bits, int32 or float32) or opaque 8-bit RGB, or return arrays from a "
            "function ./data.py:make."
        )
    if image.mode in _GREY:
        pixels = np.asarray(image)
        return pixels.astype(pixels.dtype.newbyteorder("="))
    return np.moveaxis(np.asarray(image.convert("RGB")), -1, 0)


def _find_loss(image: Any) -> str | None:
    """Return a description of what an array would lose, or None."""
    if (num_frames := getattr(image, "n_frames", 1)) > 1 and image.format != "MPO":  # MPO adds previews to a photo
        return f"has {num_frames} frames, expected one"
    for codec, _, _, arguments in getattr(image, "tile", ()):
        stored, *others = arguments if isinstance(arguments, tuple) else (arguments,)
        is_rescaled = codec.startswith("ppm") and others[0] > 255
        if is_rescaled or (image.format != "WEBP" and _TRUNCATED.match(str(stored))):
            return f"is stored as {stored}, which Pillow reads as {image.mode} with fewer bits or channels"
    if image.mode not in (*_GREY, *_COLOUR):
        return f"has the mode {image.mode}, which RGB does not represent exactly"
    if not image.has_transparency_data:
        return None
    is_opaque = image.mode not in _GREY[2:] and np.asarray(image.convert("RGBA"))[..., 3].min() == 255
    return None if is_opaque else "has transparent pixels"
