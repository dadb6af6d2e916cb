"""When 0/1 Adam updates its variance, and when it sums: functions of the step alone, which need no state."""

from typing import NamedTuple


class Intervals(NamedTuple):
    """The policies of arXiv 2202.06009, section 6, with the names of DeepSpeed's options behind.

    kappa         dense steps at each distance 1, 2, 4 ...                                      (var_update_scaler)
    freeze_step   no dense step from this one on                                                (var_freeze_step)
    double_every  steps after `freeze_step` until an interval has two steps, then four, and so on  (local_step_scaler)
    longest       steps of the longest interval, a power of two                                 (local_step_clipper)
    """

    kappa: int
    freeze_step: int
    double_every: int
    longest: int

    def check(self) -> None:
        """ValueError for numbers that make no sense."""
        for name in ("kappa", "freeze_step", "double_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, got {getattr(self, name)}")
        if self.longest < 1 or self.longest & (self.longest - 1):
            raise ValueError(f"longest is a power of two, got {self.longest}")

    def is_dense(self, step: int) -> bool:
        """Whether this step updates the variance."""
        begin, distance, _ = self._distance(step)
        return step < self.freeze_step and (step - begin) % distance == 0

    def dense_steps(self, step: int) -> int:
        """How many dense steps there were up to this one, itself included."""
        step = min(step, self.freeze_step - 1)
        begin, distance, before = self._distance(step)
        return before + (step - begin) // distance + 1

    def around(self, step: int) -> tuple[int, int]:
        """First step of the interval that `step` lies in, and the number of its steps; the last of them sums."""
        since = step - self.freeze_step
        if since < 0:
            return step, 1
        final = self.longest.bit_length() - 1
        stage = min(since // self.double_every, final)
        stage_begins = self.freeze_step + stage * self.double_every
        place = (step - stage_begins) >> stage << stage
        # An interval that would reach into the next stage ends with its own.
        length = 1 << stage if stage == final else min(1 << stage, self.double_every - place)
        return stage_begins + place, length

    def _distance(self, step: int) -> tuple[int, int, int]:
        """The first dense step at the distance that holds at `step`, the distance, the number of dense steps before."""
        stage = (step // self.kappa + 1).bit_length() - 1
        return self.kappa * ((1 << stage) - 1), 1 << stage, self.kappa * stage
