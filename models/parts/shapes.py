"""Check that a model takes the images of a data set."""

from torch import nn

from wirebench.errors import UserError


def check_image_shape(
    model: nn.Module, image_shape: tuple[int, int, int], least_side: int = 1, channels: int | None = None
) -> None:
    """Raise UserError unless `model` takes images of `image_shape` = (channels, height, width).

    least_side  smallest height and width, in pixels
    channels    the only number of channels; None: any
    """
    fits = min(image_shape[1:]) >= least_side and channels in (None, image_shape[0])
    if fits:
        return
    name = type(model).__module__.rpartition(".")[2]  # a plugin's name is its file name
    wanted = f"{channels}-channel images" if channels else "images"
    size = f" of at least {least_side}x{least_side} pixels" if least_side > 1 else ""
    given = "x".join(str(length) for length in image_shape)
    raise UserError(f"model.name: {name} takes {wanted}{size}, but data.name gives {given} (channels x height x width)")
