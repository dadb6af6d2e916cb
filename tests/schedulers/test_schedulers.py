import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import own
from wirebench import schedulers
from wirebench.compose.resolve import KINDS, resolve
from wirebench.config import catalog, loader
from wirebench.errors import UserError
from wirebench.exchange.builtin import EnginesOwn
from wirebench.exchange.overlapped import AfterBackward
from wirebench.gradient.schedule import LayerCost
from wirebench.planner.schedules import built
from wirebench.schedulers.builtin import Builtin
from wirebench.schedulers.fused import Fused

MIB = 2**20
NAMES = own.names("scheduler", schedulers.available())
layer_lists = st.lists(
    st.builds(LayerCost, st.just("layer"), st.integers(1, 3_000_000), st.floats(0, 0.1)), min_size=1, max_size=60
)


def _built(name):
    return schedulers.build(name, **own.options("scheduler"))


def cost(numel):
    """Seconds of an exchange at 0.1 ms and 10 Gbit/s."""
    return 1e-4 + numel * 3.2e-9


def of_sizes(*megabytes):
    """Layers of these sizes in MiB of fp32."""
    return [LayerCost(f"layer{i}", int(mb * MIB / 4)) for i, mb in enumerate(megabytes)]


@pytest.mark.parametrize("name", NAMES)
@given(layers=layer_lists)
def test_groups_cover_all_layers_in_order_without_gaps(name, layers):
    groups = _built(name).partition(layers, cost)
    assert [i for group in groups for i in group] == list(range(len(layers)))
    assert all(isinstance(group, range) and group.step == 1 and len(group) for group in groups)


@pytest.mark.parametrize("name", NAMES)
def test_partition_is_pure(name):
    scheduler, layers = _built(name), of_sizes(3, 0.1, 7, 30, 0.001, 2)
    assert scheduler.partition(layers, cost) == scheduler.partition(list(layers), cost)
    assert scheduler.partition(layers, cost) == _built(name).partition(layers, cost)


@given(layers=layer_lists)
def test_wfbp_sends_every_layer_alone(layers):
    assert schedulers.build("wfbp").partition(layers, cost) == [range(i, i + 1) for i in range(len(layers))]


@given(layers=layer_lists)
def test_single_sends_one_message_after_the_backward_pass(layers):
    scheduler = schedulers.build("single")
    assert scheduler.partition(layers, cost) == [range(0, len(layers))]
    assert scheduler.driver is AfterBackward


@pytest.mark.parametrize(("earlier", "name"), schedulers.PLUGINS.aliases.items())
def test_earlier_names_still_work(earlier, name):
    made = schedulers.build(earlier)
    assert type(made) is type(schedulers.build(name)) and earlier not in schedulers.available()
    assert type(built([earlier])[earlier]) is type(made), "the planner knows it, too"
    given = loader.load(
        "configs/smoke.toml", [f"scheduler.name={earlier}", "engine.name=torch", "compressor.name=none"]
    )
    assert resolve(given).scheduler.name == earlier
    assert f"scheduler {earlier}" in catalog.explain([earlier], KINDS, {})


@given(layers=layer_lists, cap=st.floats(0.01, 30), first=st.floats(0.01, 30))
def test_fused_closes_a_message_as_soon_as_it_reaches_its_cap(layers, cap, first):
    groups = Fused(bucket_cap_mb=cap, first_bucket_mb=first).partition(layers, cost)
    for position, group in enumerate(groups):
        limit = int((first if position == 0 else cap) * MIB)
        sizes = [4 * layers[i].numel for i in group]
        assert sum(sizes[:-1]) < limit
        assert sum(sizes) >= limit or position == len(groups) - 1


def test_fused_by_hand():
    groups = Fused(bucket_cap_mb=25).partition(of_sizes(0.5, 0.5, 10, 10, 5, 40, 1), cost)
    assert groups == [range(0, 2), range(2, 5), range(5, 6), range(6, 7)]


def test_builtin_leaves_everything_to_the_engine():
    scheduler = schedulers.build("builtin", bucket_cap_mb=10.0)
    assert isinstance(scheduler, Builtin)
    assert scheduler.driver is EnginesOwn
    assert scheduler.bucket_cap_mb == 10.0
    # As DDP: its first bucket is smaller only where nobody has named a cap.
    assert scheduler.partition(of_sizes(*[1] * 12), cost) == [range(0, 10), range(10, 12)]
    assert schedulers.build("builtin").partition(of_sizes(*[1] * 12), cost) == [range(0, 1), range(1, 12)]


def test_builtin_has_a_cap_for_each_bucket_and_the_last_one_for_all_others():
    scheduler = schedulers.build("builtin", bucket_caps_mb=[2, 0.5, 3.0])
    groups = scheduler.partition(of_sizes(1, 1, 1, 1, 1, 1, 1, 1, 1, 0.1), cost)
    assert groups == [range(0, 2), range(2, 3), range(3, 6), range(6, 9), range(9, 10)]


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("fused", {"bucket_cap_mb": 0.0}, "0 MiB"),
        ("fused", {"first_bucket_mb": -1.0}, "0 MiB"),
        ("builtin", {"bucket_cap_mb": -1.0}, "bucket_cap_mb .*got -1.0"),
        ("builtin", {"bucket_caps_mb": [1.0, 0.0]}, r"bucket_caps_mb .*got \[1\.0, 0\.0\]"),
        ("builtin", {"bucket_caps_mb": [1.0], "bucket_cap_mb": 1.0}, "bucket_caps_mb replaces bucket_cap_mb"),
        ("mg_wfbp_later", {"least_elements": -1}, "least_elements .*got -1"),
    ],
)
def test_options_out_of_their_range_are_refused_by_name(name, options, said):
    with pytest.raises(UserError, match=f"^scheduler.*{said}"):
        schedulers.build(name, **options)


def test_who_waits_for_the_backward_pass_and_who_needs_a_profile():
    found = {name: schedulers.build(name) for name in schedulers.available()}
    after = {name for name, s in found.items() if s.driver.starts == "backward"}
    assert after == {"naive", "single", "outer"}
    profiled = {name for name, s in found.items() if s.needs_profile}
    assert profiled == {"asc_wfbp", "mg_wfbp", "mg_wfbp_later", "optimal"}
