"""The line that stands for images, in a call to a model that takes none."""

from collections.abc import Sequence

from holdfast.events.message import Image


def with_image_note(text: str, images: Sequence[Image]) -> str:
    """The text of a message whose images are left out, with a line that says so."""
    if not images:
        return text
    note = "1 image was" if len(images) == 1 else f"{len(images)} images were"
    return f"{text}\n\n[{note} left out: this model takes no images.]".lstrip()
