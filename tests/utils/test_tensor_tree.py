"""Trees of tensors as files: what comes back is what went in, and nothing else is opened."""

import errno
import math
import pickle
import resource

import pytest
import torch
from safetensors.torch import load, save

from wirebench.errors import UserError
from wirebench.utils.tensor_tree import flatten, on_device, pack, pack_to, snapshot, unflatten, unpack

SHARED = torch.arange(6.0).view(2, 3)
TREE = {
    "parameter": {"conv.weight": SHARED, "its.transpose": SHARED.T, "none": torch.zeros(0, 4)},
    "optimizer": {"state": {0: {"step": torch.tensor(3.0), "slow": [SHARED[0], None]}}, "betas": (0.9, 0.999)},
    "flags": [True, 2, -0.0, math.inf, "text", {}, []],
    "bits": torch.tensor([1e-45, -0.0], dtype=torch.float64),
}


def same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and all(map(same, one, other)) and len(one) == len(other)
    return type(one) is type(other) and repr(one) == repr(other)


def test_a_tree_comes_back_as_it_was():
    assert same(unpack(pack(TREE)), TREE)
    assert same(unpack(pack({})), {})
    assert not same(unpack(pack(TREE)), {**TREE, "flags": [1, 2]}), "this test can tell"


def test_tensors_are_called_by_their_paths_and_are_copies():
    names = load(pack(TREE)).keys()
    assert {"parameter.conv.weight", "optimizer.state.0.slow.0", "bits"} <= names
    back = unpack(pack({"a": SHARED}))["a"]
    back.zero_()
    assert SHARED.sum() == 15


def test_a_snapshot_keeps_what_the_tree_was():
    weights, more = torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last), [{"step": 1}]
    tree = {"weights": weights, "view": weights[0, 1].T, "more": more}
    copy = snapshot(tree)
    assert same(copy, tree)
    assert all(copy[name].is_contiguous() for name in ("weights", "view"))
    weights.zero_()
    more[0]["step"] = 2
    more.append({})
    assert copy["weights"].sum() == 276 and copy["view"].sum() == sum(range(12, 24))
    assert copy["more"] == [{"step": 1}]
    parameter = torch.nn.Parameter(torch.ones(2))
    assert not snapshot(parameter).requires_grad


def test_a_snapshot_is_written_as_the_tree_is_packed(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    pack_to(folder / "file", snapshot(TREE))
    assert (folder / "file").read_bytes() == pack(TREE)
    (folder / "plain").touch()
    assert (folder / "file").stat().st_mode == (folder / "plain").stat().st_mode


def test_a_flat_tree_is_views_of_one_buffer_and_is_written_as_the_tree_is_packed(tmp_path):
    head, content = flatten(TREE)
    back = unflatten(head, content)
    assert same(back, TREE)
    assert content.numel() == 2 * 32 + 3 * 16, "24, 24, 4, 12 and 16 bytes, each at a multiple of 16"
    pack_to(tmp_path / "file", back)
    assert (tmp_path / "file").read_bytes() == pack(TREE)
    content.zero_()
    assert back["parameter"]["conv.weight"].sum() == 0 and SHARED.sum() == 15
    assert same(unflatten(*flatten({})), {})


def test_a_disk_without_room_is_an_error_of_the_system(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            pack_to(tmp_path / "file", {"a": torch.zeros(1000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(tmp_path / "file"))
    assert not list(tmp_path.iterdir())
    with pytest.raises(FileNotFoundError):
        pack_to(tmp_path / "none" / "file", {})


def test_another_device_changes_no_structure():
    assert same(on_device(TREE, torch.device("cpu")), TREE)
    assert on_device(TREE, torch.device("meta"))["optimizer"]["state"][0]["slow"][0].is_meta


@pytest.mark.parametrize("content", [b"", b"\0" * 40, pickle.dumps(TREE), save({"a": SHARED}), pack(TREE)[:-3]])
def test_no_other_file_is_opened(content):
    with pytest.raises(ValueError, match="no tree of tensors"):
        unpack(content)


def test_what_cannot_be_kept_is_named():
    with pytest.raises(UserError, match=r"^a\.b\.1: a checkpoint holds tensors, numbers and texts, not function$"):
        pack({"a": {"b": [0, print_nothing]}})
    with pytest.raises(UserError, match=r"^a\.b\.1: a checkpoint holds tensors, numbers and texts, not function$"):
        snapshot({"a": {"b": [0, print_nothing]}})


def print_nothing():
    """Something that no file can hold."""
