"""A tree of tensors and plain values as one safetensors file, and back to the bit: whatever a `state_dict` returns.

A tensor stands in the file under its path in the tree (`parameter.conv.weight`). Everything else, and the place of each
tensor, is JSON in the file's metadata. Nothing is pickled, so a file that somebody tampered with runs no code.
"""

import json
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from wirebench.errors import UserError

TREE = "tree"
HEADER_BYTES = 8
"""A safetensors file begins with the length of its JSON header, a little-endian number of so many bytes."""


def pack(tree: Mapping[str, Any]) -> bytes:
    """The tree as a file: dictionaries, lists and tuples of tensors, numbers, texts and None.

    Tensors may lie on any device and share memory. UserError, which names the path, for a value of another type.
    """
    tensors: dict[str, Tensor] = {}
    shape = _split(tree, "", tensors)
    return save_tensors(tensors, {TREE: json.dumps(shape)})


def unpack(content: bytes) -> dict[str, Any]:
    """What `pack` was given, with new tensors on the CPU; ValueError for a file that `pack` did not write."""
    try:
        tensors = load_tensors(content)
        length = int.from_bytes(content[:HEADER_BYTES], "little")
        header = json.loads(content[HEADER_BYTES : HEADER_BYTES + length])
        tree: dict[str, Any] = _joined(json.loads(header["__metadata__"][TREE]), tensors)
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"no tree of tensors: {error}") from error
    return tree


def on_device(tree: Any, device: torch.device) -> Any:
    """The same tree with its tensors on `device`."""
    if isinstance(tree, Tensor):
        return tree.to(device)
    if isinstance(tree, Mapping):
        return {key: on_device(value, device) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(on_device(value, device) for value in tree)
    return tree


def _split(tree: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """The tree as JSON, its tensors moved into `tensors`."""
    if isinstance(tree, Tensor):
        assert path not in tensors, f"two tensors are called {path}"
        # A contiguous copy that shares memory with nothing, as safetensors asks for.
        tensors[path] = tree.detach().to("cpu", copy=True).contiguous()
        return {"tensor": path}
    if isinstance(tree, Mapping):
        # Pairs, since a JSON object has texts as keys only.
        return {"dict": [[key, _split(value, _below(path, key), tensors)] for key, value in tree.items()]}
    if isinstance(tree, list | tuple):
        items = [_split(value, _below(path, place), tensors) for place, value in enumerate(tree)]
        return items if isinstance(tree, list) else {"tuple": items}
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    raise UserError(f"{path}: a checkpoint holds tensors, numbers and texts, not {type(tree).__name__}")


def _joined(shape: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The tree that `_split` was given."""
    if isinstance(shape, list):
        return [_joined(each, tensors) for each in shape]
    if not isinstance(shape, dict):
        return shape
    [(kind, content)] = shape.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _joined(value, tensors) for key, value in content}
    return tuple(_joined(each, tensors) for each in content)


def _below(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)
