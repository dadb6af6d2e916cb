"""gTop-k with the messages of its authors' code, 16 bytes an entry in host memory; for the gs-SGD paper's Table II.

HKBU-HPML/gtopkssgd, allreducer.py: indices and values travel in one NumPy array of float64. What that costs is the
study's question, so it is a plugin of the study and no option of `gtopk`; the merge is gtopk's own.

python train.py CONFIG.toml compressor.name=papers.gs_sgd.released_gtopk compressor.density=0.01
"""

import numpy as np
import torch
from torch import Tensor

from wirebench.compressors.gtopk import GTopK
from wirebench.compressors.sparse.encoding import SparseCode

ENTRY_BYTES = 16


class ReleasedGTopK(GTopK):
    """gTop-k with `density` of the entries, whose messages are pairs of float64.

    density  share of a bucket's entries that each rank sends, and that survive
    """

    def __init__(self, density: float = 0.001) -> None:
        super().__init__(density)
        self.code: SparseCode = _Pairs()


class _Pairs(SparseCode):
    """Entries as (index, value) pairs of float64, in host memory."""

    @property
    def value_bytes(self) -> int:
        """How many bytes a value takes in a message."""
        return ENTRY_BYTES // 2

    def encode(self, index: Tensor, values: Tensor, numel: int) -> Tensor:
        """All indices, then all values."""
        pairs = np.concatenate([index.cpu().numpy().astype(np.float64), values.cpu().numpy().astype(np.float64)])
        return torch.from_numpy(pairs).view(torch.uint8).to(index.device)

    def decode(self, message: Tensor, numel: int) -> tuple[Tensor, Tensor]:
        """(int64 indices, fp32 values)."""
        pairs = message.cpu().clone().view(torch.float64).numpy()
        half = len(pairs) // 2
        index, values = pairs[:half].astype(np.int64), pairs[half:].astype(np.float32)
        return torch.from_numpy(index).to(message.device), torch.from_numpy(values).to(message.device)

    def expected_bytes(self, count: int, numel: int) -> int:
        """Bytes of a message of `count` entries."""
        return ENTRY_BYTES * count
