"""Random numbers that depend on a key and on nothing else.

Every draw is named by a key such as (seed, epoch, rank); no stream is carried from step to step, so a resumed run
needs no generator state and every engine draws alike.
"""

import hashlib

import torch


def seed_of(*key: int | str) -> int:
    """A 63-bit seed for the key, the same on every machine and in every process."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(*key: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator on `device`, seeded by the key alone."""
    return torch.Generator(device=device).manual_seed(seed_of(*key))


def seed_draws(seed: int, device: torch.device) -> None:
    """Seed what draws without a key on the CPU and on `device`.

    torch.manual_seed writes down a traceback for each back end that does not run: 6 % of the step of a GPT of 0.3M.
    """
    (torch.default_generator.manual_seed if device.type == "cpu" else torch.manual_seed)(seed)


def make_repeatable(seed: int) -> None:
    """Seed what draws without a key, and choose the GPU's repeatable kernels."""
    torch.manual_seed(seed)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
