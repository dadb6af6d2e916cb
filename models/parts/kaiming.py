"""Initial weights of the models for small images (He et al. 2015, "Delving Deep into Rectifiers", equation 14)."""

from torch import nn


def kaiming_init(model: nn.Module) -> None:
    """Draw the weights of every convolution and linear layer from torch's global generator; biases become 0.

    A convolution preserves the variance of the backward pass through a ReLU (fan_out, gain sqrt 2). A linear layer,
    which no ReLU follows in these models, preserves the forward pass's variance (fan_in, gain 1). BatchNorm keeps
    scale 1, shift 0.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="linear")
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
