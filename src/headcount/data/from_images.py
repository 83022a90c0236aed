"""Images as a vision transformer takes them: pixels by its image processor, cut into patches.

A patch is a token: `0,1` is the second patch of the first row. The special token `[CLS]` stands before the patches.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from headcount.data.dataset import TokenizedText
from headcount.data.from_file import TokenizedModel
from headcount.data.tables import IMAGES
from headcount.errors import InputError
from headcount.files import require_regular


def pixels_of(images: Sequence[Any], tokenized: TokenizedModel) -> Tensor:
    """Return images, given as files or opened images, as pixels [image, channel, row, column] for the model."""
    channels = getattr(tokenized.config, "num_channels", 3)
    opened = [_opened(each, "L" if channels == 1 else "RGB") for each in images]
    made: Tensor = tokenized.tokenizer(images=opened, return_tensors="pt")["pixel_values"]
    if tuple(made.shape[1:]) != (channels, *_both(tokenized.config.image_size)):
        size, wanted = " x ".join(map(str, made.shape[1:])), " x ".join(map(str, _both(tokenized.config.image_size)))
        raise InputError(
            f"the image processor makes pixels of {size}, but the model takes {channels} x {wanted}",
            "save the image processor that belongs to this model into the model's folder",
        )
    return made.to(next(tokenized.model.parameters()))


def _opened(image: Any, mode: str) -> Any:
    """Return an opened image in a mode of PIL: `L` (grey) for one channel, `RGB` for three."""
    from PIL import Image, UnidentifiedImageError

    try:
        if hasattr(image, "convert"):
            return image.convert(mode)
        require_regular(Path(image))
        with Image.open(image) as opened:
            return opened.convert(mode)
    except (OSError, SyntaxError, ValueError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise InputError(f"{image} is not an image: {error}", f"give one of {', '.join(IMAGES)}") from error


def _both(size: int | Sequence[int]) -> tuple[int, int]:
    """Return height and width as a pair; a single number means a square."""
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def patch_grid(config: Any) -> tuple[int, int]:
    """Return the numbers of rows and columns of patches into which a vision transformer cuts an image."""
    height, width = _both(config.image_size)
    down, across = _both(config.patch_size)
    return height // down, width // across


def image_input(tokenized: TokenizedModel, file: str) -> TokenizedText:
    """Return one image file as the model's input, with a name for each patch, such as `0,1`."""
    if not Path(file).exists():
        raise InputError(f"{tokenized.name} takes images, and there is no file {file!r}", "give an image: --on cat.png")
    pixels, (n_rows, n_columns) = pixels_of([file], tokenized), patch_grid(tokenized.config)
    patches = [f"{row},{column}" for row in range(n_rows) for column in range(n_columns)]
    height, width = pixels.shape[2:]
    note = f"{n_rows} x {n_columns} patches, by row and column, of the image as {height} x {width} pixels"
    return TokenizedText((pixels,), {"layer": ["[CLS]", *patches]}, {"layer": [True, *(False for _ in patches)]}, note)
