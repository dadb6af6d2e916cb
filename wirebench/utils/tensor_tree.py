"""Save a tree of tensors and plain values, such as a `state_dict`, as one safetensors file, and load it bit for bit.

A tensor stands in the file under its path in the tree (`parameter.conv.weight`). Everything else, and the place of each
tensor, is JSON in the file's metadata. Nothing is pickled, so a manipulated file runs no code.
"""

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from safetensors.torch import save_file as save_tensors_to
from torch import Tensor

from wirebench.errors import UserError
from wirebench.utils.parsing import json_of

TREE = "tree"
HEADER_BYTES = 8
"""A safetensors file begins with the length of its JSON header, a little-endian number of 8 bytes."""
ALIGNED_BYTES = 16
"""Tensors of `flatten` begin at multiples of 16 bytes; no element is larger."""


def pack(tree: Mapping[str, Any]) -> bytes:
    """The tree as a file: dictionaries, lists and tuples of tensors, numbers, texts and None.

    Tensors may lie on any device and share memory. UserError, which names the path, for a value of another type.
    """
    tensors: dict[str, Tensor] = {}
    shape = _split(tree, "", tensors)
    # Contiguous copies that share memory with nothing, as safetensors asks for.
    copies = {path: tensor.detach().to("cpu", copy=True).contiguous() for path, tensor in tensors.items()}
    return save_tensors(copies, {TREE: json.dumps(shape)})


def snapshot(tree: Any, path: str = "") -> Any:
    """A copy on the CPU, which shares nothing with the tree: that may change from now on. UserError as of `pack`.

    path  where the tree stands in a larger one, for the error
    """
    if isinstance(tree, Tensor):
        # In one go what pack_to wants, whatever the layout: two copies would take twice as long.
        return tree.detach().to(device="cpu", copy=True, memory_format=torch.contiguous_format)
    if isinstance(tree, Mapping):
        return {key: snapshot(value, _below(path, key)) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(snapshot(value, _below(path, place)) for place, value in enumerate(tree))
    return _plain(tree, path)


def pack_to(file: Path, tree: Mapping[str, Any]) -> None:
    """Write what `pack` returns of a tree that `snapshot` made; it is on disk when this returns. OSError.

    Unlike `pack` it copies no tensor and holds no lock of the interpreter's, so that other threads go on meanwhile.
    """
    tensors: dict[str, Tensor] = {}
    shape = _split(tree, "", tensors)
    try:
        save_tensors_to(tensors, file, {TREE: json.dumps(shape)})
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(file)) from error
    # The library lets nobody but the owner read it; here it is as readable as its folder.
    file.chmod(file.parent.stat().st_mode & 0o666)
    with file.open("rb") as written:
        os.fsync(written.fileno())


def unpack(content: bytes) -> dict[str, Any]:
    """What `pack` was given, with new tensors on the CPU; ValueError for a file that `pack` did not write."""
    try:
        tensors = load_tensors(content)
        length = int.from_bytes(content[:HEADER_BYTES], "little")
        header = json_of(content[HEADER_BYTES : HEADER_BYTES + length])
        tree: dict[str, Any] = _joined(json_of(header["__metadata__"][TREE]), tensors)
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"no tree of tensors: {error}") from error
    return tree


def flatten(tree: Mapping[str, Any]) -> tuple[bytes, Tensor]:
    """The tree as two messages, which `unflatten` takes: a head, and the bytes of all tensors, on the CPU.

    One copy of the tensors, where `pack` makes three. UserError as of `pack`.
    """
    tensors: dict[str, Tensor] = {}
    shape = _split(tree, "", tensors)
    places: list[tuple[str, str, list[int], int]] = []
    end = 0
    for path, tensor in tensors.items():
        places.append((path, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), end))
        end += -(-tensor.nbytes // ALIGNED_BYTES) * ALIGNED_BYTES
    content = torch.empty(end, dtype=torch.uint8)
    for (*_, start), tensor in zip(places, tensors.values(), strict=True):
        if tensor.nbytes:
            place = content[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            place.copy_(tensor.detach())
    return json.dumps([shape, places]).encode(), content


def unflatten(head: bytes, content: Tensor) -> dict[str, Any]:
    """The tree of `flatten`, whose tensors are views of `content`."""
    shape, places = json_of(head)
    tensors = {}
    for path, name, size, start in places:
        dtype = getattr(torch, name)
        stop = start + math.prod(size) * dtype.itemsize
        tensors[path] = content[start:stop].view(dtype).view(size)
    tree: dict[str, Any] = _joined(shape, tensors)
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
    """The tree as JSON, its tensors put into `tensors`, by path."""
    if isinstance(tree, Tensor):
        assert path not in tensors, f"two tensors are called {path}"
        tensors[path] = tree
        return {"tensor": path}
    if isinstance(tree, Mapping):
        # Pairs, since a JSON object has texts as keys only.
        return {"dict": [[key, _split(value, _below(path, key), tensors)] for key, value in tree.items()]}
    if isinstance(tree, list | tuple):
        items = [_split(value, _below(path, place), tensors) for place, value in enumerate(tree)]
        return items if isinstance(tree, list) else {"tuple": items}
    return _plain(tree, path)


def _plain(value: Any, path: str) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UserError(f"{path}: a checkpoint holds tensors, numbers and texts, not {type(value).__name__}")


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
