"""Handwritten digits, 8 x 8 grey: 1,797 images that come with scikit-learn, so that a first run needs no download.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998, the test part;
`sklearn.datasets.load_digits`.
"""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from wirebench.data.base import no_root
from wirebench.data.memory import InMemory

MEAN, STD = (0.305,) * 3, (0.376,) * 3


class Digits(InMemory):
    """1,437 training and 360 test images of 10 digits, grey repeated to 3 channels: (3, 8, 8).

    The split is the set's own: the same for every seed of a run, each digit in both parts in proportion.

    augment  shift each training image by up to one pixel each way
    """

    def __init__(self, root: str, augment: bool = True) -> None:
        no_root("digits", root)
        bunch = load_digits()
        # values 0..16 become 0..255
        grey = torch.from_numpy(bunch.images).mul(255 / 16).round().to(torch.uint8)
        images = grey[:, None].repeat(1, 3, 1, 1)
        labels = torch.from_numpy(bunch.target).to(torch.int64)
        chosen = train_test_split(range(len(images)), test_size=0.2, random_state=0, stratify=bunch.target)
        train, test = (torch.tensor(sorted(part)) for part in chosen)
        super().__init__(
            (images[train], labels[train]), (images[test], labels[test]), 10, MEAN, STD, pad=1 if augment else 0
        )
