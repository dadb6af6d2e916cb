"""Models: one file per family; `build(name, num_classes, image_shape, **options)` makes one."""

if __name__ != "wirebench.models":
    raise ImportError("models is imported as: from wirebench import models")

from typing import Any

from torch import nn

from wirebench.config.plugins import Plugins

PLUGINS = Plugins("wirebench.models", "model", fixed=("num_classes", "image_shape"))


def available() -> list[str]:
    """Names that `build` takes."""
    return PLUGINS.available()


def build(name: str, num_classes: int, image_shape: tuple[int, ...], /, **options: Any) -> nn.Module:
    """A fresh model for images of shape (channels, height, width), drawn from torch's global generator."""
    given = PLUGINS.given(name, num_classes=num_classes, image_shape=image_shape)
    return PLUGINS.build(name, **{**given, **options})
