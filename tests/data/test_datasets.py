"""What every data set promises, run over every data set there is."""

import pytest
import torch

from tests.data.samples import CPU, small_set, write_images
from wirebench import data
from wirebench.data import Key
from wirebench.data.base import fingerprint
from wirebench.data.imagefolder import ImageFolder
from wirebench.data.memory import InMemory
from wirebench.data.sequences import ByteSequences
from wirebench.data.synthetic import Synthetic

KEY = Key(seed=3, epoch=1, rank=0)
OPTIONS = {"synthetic": {"image_size": 16, "num_classes": 7}, "imagefolder": {"image_size": 16, "workers": 0}}


@pytest.fixture(scope="module", params=data.available())
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> data.Dataset:
    root = ""
    if request.param == "cifar10":
        root = str(request.getfixturevalue("cifar10")[0])
    if request.param == "imagefolder":
        write_images(folder := tmp_path_factory.mktemp("images"))
        root = str(folder)
    if request.param == "text":
        folder = tmp_path_factory.mktemp("text")
        (folder / "a.txt").write_text("".join(f"{number}\n" for number in range(100_000)))
        root = str(folder)
    return data.build(request.param, root, **OPTIONS.get(request.param, {}))


def test_batches_have_the_promised_shapes_types_and_labels(dataset: data.Dataset) -> None:
    for train in (True, False):
        index_batches = [torch.tensor([5, 0, 3]), torch.tensor([2])]
        batches = list(dataset.batches(iter(index_batches), train=train, key=KEY, device=CPU))
        assert [len(labels) for _, labels in batches] == [3, 1]
        for images, labels in batches:
            if dataset.image_shape:
                assert images.shape == (len(labels), *dataset.image_shape)
                assert images.dtype == torch.float32
                assert images.isfinite().all()
                assert images.abs().max() < 10
            else:
                assert isinstance(dataset, ByteSequences)
                assert images.shape == labels.shape == (len(labels), dataset.length)
                assert images.dtype == torch.int64
            assert labels.dtype == torch.int64
            assert dataset.num_classes >= 2
            assert labels.min() >= 0
            assert labels.max() < dataset.num_classes


def test_labels_that_are_told_are_those_of_the_batches(dataset: data.Dataset) -> None:
    if isinstance(dataset, ByteSequences):
        assert not hasattr(dataset, "labels"), "a long text's labels are not copied to be told"
        return
    for train in (True, False):
        assert isinstance(dataset, InMemory | ImageFolder | Synthetic)
        told = dataset.labels(train)
        index = torch.tensor([5, 0, 3])
        [(_, labels)] = dataset.batches([index], train=train, key=KEY, device=CPU)
        assert told.tolist() == [] or told[index].tolist() == labels.tolist()


def test_a_fingerprint_tells_sizes_and_labels_apart() -> None:
    """Also of a set that has no labels at hand: some samples are read."""
    one, other = small_set(), small_set()
    other.labels(True)[7] = 8
    for untold in (False, True):
        given = [Untold(each) if untold else each for each in (one, other, small_set(train_size=41))]
        prints = [fingerprint(each) for each in given]
        assert prints[0] == fingerprint(Untold(small_set()) if untold else small_set())
        assert [key for key in prints[0] if prints[0][key] != prints[1][key]] == ["checksum of the training labels"]
        assert prints[2]["training samples"] == 41


class Untold:
    """A set that only has what every set must have."""

    def __init__(self, inner: data.Dataset) -> None:
        self.num_classes, self.image_shape, self.batches = inner.num_classes, inner.image_shape, inner.batches
        self.train_size, self.test_size = inner.train_size, inner.test_size


def test_the_same_key_gives_the_same_batches(dataset: data.Dataset) -> None:
    def read() -> list[tuple[torch.Tensor, torch.Tensor]]:
        return list(dataset.batches([torch.tensor([1, 4]), torch.tensor([0])], train=True, key=KEY, device=CPU))

    for (images, labels), (again, labels_again) in zip(read(), read(), strict=True):
        assert torch.equal(images, again)
        assert torch.equal(labels, labels_again)


def test_torchs_global_generator_is_left_alone(dataset: data.Dataset) -> None:
    before = torch.get_rng_state()
    list(dataset.batches([torch.tensor([1, 4])], train=True, key=KEY, device=CPU))
    assert torch.equal(torch.get_rng_state(), before)
