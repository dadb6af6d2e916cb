"""Images in folders, one per class, in ImageNet's layout: root/train/CLASS/*.jpg and root/val/CLASS/*.jpg.

Worker processes decode, crop and resize; the device normalises. Paths travel to the workers with the batches, so a
worker holds no list of the set's million files.
"""

import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import datasets
from torchvision.transforms import v2

from wirebench.data.base import Batch, Key, at_least, normalise, per_channel
from wirebench.errors import UserError
from wirebench.utils.files import shorten_socket_folder
from wirebench.utils.rng import generator, seed_of

# of ImageNet's training images, as in torchvision's reference recipes
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class ImageFolder:
    """Classification images from folders, cut to `image_size`.

    Training images: a random part (8 to 100 % of the area), resized, half of them mirrored. Test images: the shorter
    side resized to image_size * 256 / 224, the centre cut out. Both are torchvision's reference recipe.

    image_size  height and width of what is yielded, in pixels
    train_size  training images that are used, as many of each class as of any other (one more of the first, where they
                do not divide evenly); 0: all. UserError where a class has fewer
    workers     decoding processes per worker of the run; 0: decode in the training process

    The decoding processes start anew in each epoch, from a fork server, so the program needs the usual
    `if __name__ == "__main__"`. They hand batches over in shared memory: about 2 * workers batches of uint8 images must
    fit into /dev/shm (a container's default is 64 MB).
    """

    def __init__(self, root: str, image_size: int = 224, workers: int = 2, train_size: int = 0) -> None:
        at_least("image_size", image_size, 1)
        at_least("workers", workers, 0)
        at_least("train_size", train_size, 0)
        if not root:
            raise UserError("data.root: 'imagefolder' needs a folder with train/CLASS/ and val/CLASS/")
        folder = Path(root).expanduser()
        train, test = _scan(folder / "train"), _scan(folder / "val")
        _check_same_classes(folder, train.classes, test.classes)
        used = _equally(train, train_size, folder / "train") if train_size else train.samples
        self._files = {True: used, False: test.samples}
        self._workers = workers
        self.num_classes, self.image_shape = len(train.classes), (3, image_size, image_size)
        self.train_size, self.test_size = len(used), len(test.samples)

    def labels(self, train: bool) -> Tensor:
        """All of a split's, int64, in the order of the files' names."""
        return torch.tensor([label for _, label in self._files[train]])

    def batches(
        self, index_batches: Iterable[Tensor], *, train: bool, key: Key, device: torch.device
    ) -> Iterator[Batch]:
        """See `Dataset.batches`; the tensors are the caller's to change. UserError names an image that is broken."""
        loader = DataLoader(
            _Decoder(self.image_shape[1], key if train else None),
            batch_sampler=_items(self._files[train], index_batches),
            num_workers=self._workers,
            collate_fn=_stack,
            pin_memory=device.type == "cuda",
            multiprocessing_context=_processes() if self._workers else None,
            worker_init_fn=_end_with_training,
            # without it the loader draws from torch's global generator, and dropout would depend on the loader
            generator=generator("loader", *key),
        )
        mean, std = per_channel(MEAN, device), per_channel(STD, device)
        for batch in loader:
            if isinstance(batch, _Broken):
                raise UserError(batch.message)
            images, labels = (part.to(device, non_blocking=True) for part in batch)
            yield normalise(images, mean, std), labels


class _Item(NamedTuple):
    """One image of a batch, as a decoding process needs it: its number in the split, its file and its label."""

    number: int
    path: str
    label: int


class _Broken(NamedTuple):
    """Stands for an image that cannot be read: an exception would reach the user with a worker's traceback."""

    message: str


class _Decoder(Dataset):
    """Turns an _Item into (image uint8 (3, H, W), label), in a worker process.

    With a key, the image is augmented by numbers that depend on the seed, the epoch and the image's number alone.
    """

    def __init__(self, image_size: int, key: Key | None) -> None:
        self.key = key
        if key is not None:
            steps = [v2.RandomResizedCrop(image_size), v2.RandomHorizontalFlip()]
        else:
            steps = [v2.Resize(round(image_size * 256 / 224)), v2.CenterCrop(image_size)]
        self.transform = v2.Compose([*steps, v2.PILToTensor()])

    def __getitem__(self, item: _Item) -> tuple[Tensor, int] | _Broken:
        if not os.path.isfile(item.path):  # a pipe would keep whoever reads it
            return _Broken(f"data.root: {item.path} is not a readable image: it is no file")
        try:
            with Image.open(item.path) as file:
                image = file.convert("RGB")
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            return _Broken(f"data.root: {item.path} is not a readable image: {' '.join(str(error).split())}")
        if self.key is None:
            return self.transform(image), item.label
        # transforms draw from torch's global generator, which is not ours to move when decoding in the training process
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed_of("augment", self.key.seed, self.key.epoch, item.number))
            return self.transform(image), item.label


def _items(files: list[tuple[str, int]], index_batches: Iterable[Tensor]) -> Iterator[list[_Item]]:
    for batch in index_batches:
        yield [_Item(number, *files[number]) for number in batch.tolist()]


def _stack(samples: list[tuple[Tensor, int] | _Broken]) -> Batch | _Broken:
    """One uint8 batch and its labels, or the first broken image."""
    good = []
    for sample in samples:
        if isinstance(sample, _Broken):
            return sample
        good.append(sample)
    return torch.stack([image for image, _ in good]), torch.tensor([label for _, label in good])


def _processes() -> multiprocessing.context.BaseContext:
    """Workers come from a fork server: a fork of the training process, with its communication threads, can hang."""
    shorten_socket_folder()
    context = multiprocessing.get_context("forkserver")
    # imported once in the server, so that a worker starts in milliseconds
    context.set_forkserver_preload([__name__])
    return context


def _end_with_training(worker: int) -> None:
    """In a decoding process: end when the training process does, however it ends.

    PyTorch's own watch looks at the parent, which is the fork server; and that lives as long as the processes it made.
    """
    training = multiprocessing.parent_process()
    assert training is not None

    def watch() -> None:
        multiprocessing.connection.wait([training.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="end-with-training", daemon=True).start()


def _scan(folder: Path) -> datasets.ImageFolder:
    try:
        return datasets.ImageFolder(str(folder))
    except OSError as error:
        if not isinstance(error, FileNotFoundError):  # a file where a folder should be, a folder that nobody may read
            raise UserError(f"data.root: {error.filename or folder}: {error.strerror}") from error
        # torchvision says which: no such folder, no class folder in it, or classes without an image
        reason = str(error) if folder.is_dir() else "no such folder"
        raise UserError(f"data.root: {folder}: {reason}; needs {folder}/CLASS/*.jpg") from error


def _equally(split: datasets.ImageFolder, count: int, folder: Path) -> list[tuple[str, int]]:
    """The first `count` files, by name, that all classes share equally; UserError where a class has too few."""
    each, more = divmod(count, len(split.classes))
    wanted = [each + (label < more) for label in range(len(split.classes))]
    used: list[tuple[str, int]] = []
    for path, label in split.samples:
        if wanted[label]:
            wanted[label] -= 1
            used.append((path, label))
    short = next((split.classes[label] for label, missing in enumerate(wanted) if missing), None)
    if short is not None:
        raise UserError(f"data.train_size: {count} images of {len(wanted)} classes: {folder / short} has too few")
    return used


def _check_same_classes(root: Path, train: list[str], test: list[str]) -> None:
    for name in sorted(set(train) ^ set(test)):
        there, missing = ("train", "val") if name in train else ("val", "train")
        raise UserError(
            f"data.root: {root}: class {name!r} is in {there}/ but not in {missing}/; both need the same classes"
        )
