import pytest

from wirebench.costmodel.piecewise import Piecewise


def test_between_points_and_beyond():
    cost = Piecewise([(100, 2.0), (200, 3.0), (400, 7.0)])
    assert [cost(n) for n in (100, 150, 200, 300, 400, 500)] == [2.0, 2.5, 3.0, 5.0, 7.0, 9.0]
    assert cost(0) == pytest.approx(1.0)
    assert cost(50) == pytest.approx(1.5)


def test_the_start_up_is_at_least_half_of_the_smallest_point():
    assert Piecewise([(100, 2.0), (200, 4.0)])(0) == 1.0
    assert Piecewise([(100, 2.0), (200, 2.0)])(0) == 2.0


def test_one_point_costs_the_same_at_any_size():
    cost = Piecewise([(100, 2.0)])
    assert [cost(n) for n in (0, 100, 1000)] == [2.0, 2.0, 2.0]


def test_noise_does_not_make_larger_messages_cheaper():
    cost = Piecewise([(400, 2.5), (100, 2.0), (200, 3.0)])
    assert [cost(n) for n in (100, 200, 300, 400)] == [2.0, 2.75, 2.75, 2.75]


def test_one_slow_small_message_does_not_raise_all_larger_ones():
    cost = Piecewise([(256, 10.0), (1024, 1.0), (10_000, 2.0), (1_000_000, 8.0)])
    assert [cost(n) for n in (256, 1024, 1_000_000)] == pytest.approx([13 / 3, 13 / 3, 8.0])
    assert cost(0) < 5


def test_a_point_at_zero_stands():
    assert Piecewise([(0, 1.0), (10, 2.0)])(0) == 1.0
