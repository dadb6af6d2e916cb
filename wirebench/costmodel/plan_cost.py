"""What a plan costs on a topology: its seconds, and the bytes on every link.

The papers' model (alpha, beta, gamma: MG-WFBP, Table II; FlexReduce, Eq. 1) is extended from a single link to a tree of
links. Rounds run one after another. A round costs

    latency    for every rank the sum of the start-up times (alpha) of the messages that it sends, and of those that it
               receives; the largest such sum counts. Each message pays the latency of the level at which its two ranks
               meet.
  + wire       for every link and direction all bytes that cross it, divided by its rate (1 / beta); the slowest link
               counts
  + adding     for every rank the bytes that it adds to its own, times gamma; the busiest rank counts. Bytes that
               overwrite are not counted.
  + coding     for every rank the messages that it codes, and then those that it decodes and adds (coding.py); the
               busiest rank counts in each. Messages with a known coding cost no gamma
  + round      what a round costs for every rank that receives in it: where ranks share cores, they are woken in turn
  + shared     the sum of all messages' start-up times and bytes' seconds in what all share, where there is such a thing
  + processor  for every rank what its messages and their bytes cost its processor (topology/processor.py). If ranks
               share cores, adding is part of it, and the cores' work for all ranks counts if it takes longer than the
               rest

An idle link may have a head start (tree.Link); a request finds what the like request before it has left of it.
Transfers of one round between two ranks are one message. A message of a plan with wire formats has the bytes of its
format, and adding fp32 bytes. Without `coding`, which knows the formats' speeds, coding takes no time. docs/topology.md
has the model's limits.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from itertools import groupby
from typing import Literal, NamedTuple

from wirebench.collectives.execution.segments import IN_FLIGHT
from wirebench.collectives.plan import Message, Plan, all_messages, messages, sizes
from wirebench.costmodel.coding import CodedItems, Coding, coded_items
from wirebench.costmodel.routes import DirectedLink, RoutedNetwork, network_of
from wirebench.gradient.flat import FLOAT_BYTES
from wirebench.topology.tree import Link, Topology, link_for

SAME_REQUESTS = 2  # of which the last is priced
"""Of an element in a plan with wire formats, before it is coded."""

Port = tuple[int, Literal["send", "receive"]]
"""A rank as sender or as receiver: it does both at the same time."""


def plan_seconds(plan: Plan, topology: Topology, item_bytes: float, coding: Coding | None = None) -> float:
    """Seconds that `plan` takes on `topology`, with items of `item_bytes` bytes; `coding`: of its wire formats.

    For one indivisible message (a Merge) the plan has one item, and `item_bytes` is the message's size. 0.0 where there
    is nothing to send. Raises ValueError where a link that the plan uses has no speed.
    """
    return _after_one_another(list(_loads(plan, topology, item_bytes, coding)))


def _after_one_another(loads: Sequence["_Load"]) -> float:
    """Seconds of rounds one after another, in which links use what head start they have, and gain it while idle."""
    if not any(load.head_start for load in loads):
        return sum(load.seconds for load in loads)
    head = {link: seconds for load in loads for link, seconds in load.head_start.items()}
    left = dict(head)
    for _ in range(SAME_REQUESTS):
        total = 0.0
        for load in loads:
            wire = {link: max(0.0, seconds - left.get(link, 0.0)) for link, seconds in load.link_seconds.items()}
            took = load.took(max(wire.values()))
            for link, most in head.items():
                used = load.link_seconds.get(link, 0.0)
                left[link] = min(most, max(0.0, left[link] - used) + took - wire.get(link, 0.0))
            total += took
    return total


def pipelined_seconds(
    plans: Sequence[Plan], topology: Topology, item_bytes: float, apart: int = 0, coding: Coding | None = None
) -> float:
    """Seconds of a sum that is cut into segments, one plan each, several of them under way at once (segments.py).

    Segments that start in turn, `apart` rounds after one another, advance in step. Each step takes as long as the
    longest of the rounds that are under way, or as the resource that all of them together keep busy longest: one
    direction of a link, a rank that starts and adds messages, or what all messages share.

    Segments side by side (`apart` is 0) wait and add while others use the wire. The first fills the pipeline and costs
    its full price. Each further one ends when the resource that it needs most is free again: it adds the time for which
    it keeps that resource busy over all its rounds. It starts when one of IN_FLIGHT places is free, and never takes
    less than its own price. Equal segments, none of which waits to start, cost price + (segments - 1) * busiest.
    Raises ValueError as `plan_seconds`.
    """
    # Segments differ by one item at most, so few plans are distinct. Of segments that start in turn, whose rounds are
    # paired with one another's, the first stands for all.
    if apart:
        return _in_turn_seconds(list(_loads(plans[0], topology, item_bytes, coding)), len(plans), apart) if plans else 0
    distinct = {id(plan): plan for plan in plans}
    loads = {key: list(_loads(plan, topology, item_bytes, coding)) for key, plan in distinct.items()}
    prices = {key: (_after_one_another(rounds), _busiest_seconds(rounds)) for key, rounds in loads.items()}
    ends: list[float] = []
    for number, (seconds, busy_seconds) in enumerate(prices[id(plan)] for plan in plans):
        start = ends[number - IN_FLIGHT] if number >= IN_FLIGHT else 0.0
        ends.append(max(start + seconds, ends[-1] + busy_seconds if ends else 0.0))
    return ends[-1] if ends else 0.0


def _in_turn_seconds(loads: Sequence["_Load"], count: int, apart: int) -> float:
    """Seconds of `count` segments, each of the rounds `loads`, that start `apart` steps after one another."""
    known: dict[range, float] = {}
    total = 0.0
    for step in range(len(loads) + apart * (count - 1)):
        # The segment that started last is in round `newest`, the one before it is `apart` rounds further on, and so
        # forth. The same set of rounds is under way in most steps, so each set is priced once.
        newest = step - apart * min(step // apart, count - 1)
        under_way = range(newest, min(step + 1, len(loads)), apart)
        if under_way not in known:
            rounds = [loads[number] for number in under_way]
            known[under_way] = max(max((load.seconds for load in rounds), default=0.0), _busiest_seconds(rounds))
        total += known[under_way]
    return total


def native_seconds(topology: Topology, num_bytes: float) -> float:
    """Seconds of the engine's own all-reduce of a tensor; ValueError where the topology does not say."""
    if not topology.native:
        raise ValueError("the topology does not say how fast the engine's own all-reduce is")
    link = link_for(topology.native, num_bytes)
    return link.latency_seconds + num_bytes * 2 * (topology.size - 1) / topology.size / link.bytes_per_second


class MachineBytes(NamedTuple):
    """Bytes that a machine's network interface carries: to ranks of other machines, and from them."""

    sent: float
    received: float


def uplink_bytes(plan: Plan, topology: Topology, item_bytes: float) -> tuple[MachineBytes, ...]:
    """Bytes that leave and enter each machine, in the order of `topology.machines`.

    To be compared with the counters of the machines' interfaces, which count headers as well.
    """
    machine_of = {rank: number for number, ranks in enumerate(topology.machines) for rank in ranks}
    sent: defaultdict[int, float] = defaultdict(int)
    received: defaultdict[int, float] = defaultdict(int)
    size = sizes(plan, item_bytes)
    for message, adds in all_messages(plan):
        src, dst = machine_of[message.src], machine_of[message.dst]
        if src != dst:
            sent[src] += size(message, adds)
            received[dst] += size(message, adds)
    return tuple(MachineBytes(sent[m], received[m]) for m in range(len(topology.machines)))


def sent_bytes(plan: Plan, item_bytes: float) -> dict[int, float]:
    """Bytes that each rank sends in all rounds together; a rank that sends nothing is missing."""
    sent: defaultdict[int, float] = defaultdict(int)
    size = sizes(plan, item_bytes)
    for message, adds in all_messages(plan):
        sent[message.src] += size(message, adds)
    return dict(sent)


class _Load(NamedTuple):
    """How long a round keeps each resource busy, in seconds: ports, links, adding ranks, what all messages share.

    encoding_seconds  of each rank, before its messages leave; adding_seconds: of adding, or decoding with it
    round_seconds  what it costs to wake its receivers, and what passes between rounds inside the engine
    work_seconds   of each rank's processor; cores_seconds: how long the cores that all share take for all of it
    head_start     of the links that have one
    """

    latency_seconds: Mapping[Port, float]
    link_seconds: Mapping[DirectedLink, float]
    encoding_seconds: Mapping[int, float]
    adding_seconds: Mapping[int, float]
    shared_seconds: float
    round_seconds: float
    work_seconds: Mapping[int, float]
    cores_seconds: float
    head_start: Mapping[DirectedLink, float]

    @property
    def seconds(self) -> float:
        """The price of the round alone: the busiest of each kind of resource, one after the other."""
        return self.took(max(self.link_seconds.values()))

    def took(self, wire: float) -> float:
        """The round's seconds if the wait for the busiest link takes `wire` seconds."""
        start = max(self.latency_seconds.values()) + self.round_seconds
        adding = max(self.encoding_seconds.values(), default=0.0) + max(self.adding_seconds.values(), default=0.0)
        own = max(self.work_seconds.values(), default=0.0)
        return start + max(wire + adding + self.shared_seconds + own, self.cores_seconds)


class _Parcel(NamedTuple):
    """A message as pricing sees it: how many items it carries, and how many of them are added, not which.

    coded  its bytes in a wire format; 0: it has none, and items have their own size
    """

    src: int
    dst: int
    items: int
    added_items: int
    coded: float = 0.0

    def size(self, item_bytes: float) -> float:
        """Its bytes."""
        return self.coded or self.items * item_bytes


class _Round(NamedTuple):
    """What is priced of a round: its messages, and what ranks code and decode; both sorted, since most are alike."""

    parcels: tuple[_Parcel, ...]
    coded: tuple[CodedItems, ...]


def _loads(plan: Plan, topology: Topology, item_bytes: float, coding: Coding | None) -> Iterator[_Load]:
    """The load of every round that carries anything."""
    assert item_bytes > 0, f"an item has a size, got {item_bytes} bytes"
    # The rounds of a ring differ in which items travel, hardly in how many: equal ones are priced once.
    known: dict[_Round, _Load] = {}
    for each in _shapes(plan):
        if each not in known:
            known[each] = _load(each, topology, item_bytes, coding)
        yield known[each]


@lru_cache(maxsize=4096)
def _shapes(plan: Plan) -> tuple[_Round, ...]:
    """Every round that has any messages. Kept, since a fit prices one plan thousands of times."""
    coded = sizes(plan, 0.0)
    halves = ((plan.reduce, True), (plan.copy, False))
    parcels = (
        tuple(sorted(_parcel(message, adds, coded(message, adds)) for message in messages(transfers)))
        for rounds, adds in halves
        for transfers in rounds
    )
    both = zip(parcels, coded_items(plan), strict=True)
    return tuple(_Round(each, tuple(sorted(work))) for each, work in both if each)


def _parcel(message: Message, adds: bool, coded: float) -> _Parcel:
    added = sum(part.stop - part.start for part in message.parts if adds and not part.fresh)
    return _Parcel(message.src, message.dst, message.stop - message.start, added, coded)


def _load(this: _Round, topology: Topology, item_bytes: float, coding: Coding | None) -> _Load:
    parcels = this.parcels
    network = network_of(topology.root)
    crossed = network.crossings(tuple((parcel.src, parcel.dst) for parcel in parcels))
    sizes = [parcel.size(item_bytes) for parcel in parcels]
    latency: defaultdict[Port, float] = defaultdict(float)
    adding: defaultdict[int, float] = defaultdict(float)
    encoding: defaultdict[int, float] = defaultdict(float)
    for parcel, size, level in zip(parcels, sizes, crossed.meetings, strict=True):
        start_up = network.levels[level].link(size).latency_seconds
        latency[parcel.src, "send"] += start_up
        latency[parcel.dst, "receive"] += start_up
        if coding is None or not parcel.coded:  # decoding was measured with its adding
            adding[parcel.dst] += parcel.added_items * item_bytes * topology.reduce_seconds_per_byte
    if coding is not None:
        for each in this.coded:
            (adding if each.decodes else encoding)[each.rank] += each.seconds(coding, item_bytes / FLOAT_BYTES)
    # Planning prices some ten thousand rounds, most of them with messages of one size: then few links differ.
    links, kinds = crossed.links, tuple(range(len(crossed.links)))
    if len(set(sizes)) == 1:
        links, kinds = crossed.firsts, crossed.kinds
    carried, speeds = [], []
    for _, level, those in links:
        total = 0.0
        for number in those:
            total += sizes[number]
        carried.append(total)
        speeds.append(network.levels[level].link(max(sizes[number] for number in those)))
    waits = [num_bytes / speed.bytes_per_second for num_bytes, speed in zip(carried, speeds, strict=True)]
    every = tuple(zip(crossed.names, kinds, strict=True))
    wire, head = {link: waits[kind] for link, kind in every}, dict[DirectedLink, float]()
    if any(speed.lanes > 1 for speed in speeds):
        wire |= _on_lanes(parcels, network, item_bytes, {link: (carried[kind], speeds[kind]) for link, kind in every})
    if any(speed.head_start_seconds for speed in speeds):
        heads = ((link, speeds[kind].head_start_seconds) for link, kind in every)
        head = {link: start for link, start in heads if start}
    waking = topology.round_seconds * len({parcel.dst for parcel in parcels}) + topology.processor.engine_round_seconds
    shared = _shared_seconds(parcels, topology, item_bytes)
    work = _work(parcels, topology, item_bytes)
    if topology.processor.cores:
        for rank, seconds in (*adding.items(), *encoding.items()):
            work[rank] += seconds
        adding.clear()
        encoding.clear()
    cores = topology.processor.together(work.values())
    return _Load(latency, wire, encoding, adding, shared, waking, work, cores, head)


def _on_lanes(
    parcels: Sequence[_Parcel],
    network: RoutedNetwork,
    item_bytes: float,
    carried: Mapping[DirectedLink, tuple[float, Link]],
) -> dict[DirectedLink, float]:
    """Seconds on links of several lanes: all share the bytes evenly, but what a rank sends, or gets, takes one."""
    of_rank: defaultdict[tuple[DirectedLink, int], float] = defaultdict(float)
    for parcel in parcels:
        for link in network.route(parcel.src, parcel.dst).links:
            of_rank[link, parcel.src if link[1] == "up" else parcel.dst] += parcel.size(item_bytes)
    most = {link: num_bytes / speed.lanes for link, (num_bytes, speed) in carried.items() if speed.lanes > 1}
    for (link, _), num_bytes in of_rank.items():
        if link in most:
            most[link] = max(most[link], num_bytes)
    return {link: num_bytes / carried[link][1].bytes_per_second for link, num_bytes in most.items()}


def _work(parcels: Iterable[_Parcel], topology: Topology, item_bytes: float) -> defaultdict[int, float]:
    """Seconds of one core that a round's messages cost each rank at its ends of them."""
    work: defaultdict[int, float] = defaultdict(float)
    if topology.processor.free:
        return work
    message, byte = topology.processor.message(topology.size), topology.processor.seconds_per_byte
    for parcel in parcels:
        end = message + parcel.size(item_bytes) * byte
        work[parcel.src] += end
        work[parcel.dst] += end
    return work


def _shared_seconds(parcels: Iterable[_Parcel], topology: Topology, item_bytes: float) -> float:
    """Seconds that a round's messages take of what all of them share; 0 where the topology has no such thing."""
    if not topology.shared:
        return 0.0
    each = [parcel.size(item_bytes) for parcel in parcels]
    links = [link_for(topology.shared, size) for size in each]
    return sum(link.latency_seconds + size / link.bytes_per_second for link, size in zip(links, each, strict=True))


def _busiest_seconds(loads: Iterable[_Load]) -> float:
    """The longest time for which these rounds together keep one resource busy.

    Resources are each direction of a link, each rank's sending, its receiving, its processor, the cores that ranks
    share, and what all messages share. A rank sends and receives at once, but codes and adds in the thread that
    receives.
    """
    shared = cores = 0.0
    links: defaultdict[DirectedLink, float] = defaultdict(float)
    ports: defaultdict[Port, float] = defaultdict(float)
    ranks: defaultdict[int, float] = defaultdict(float)
    for _, same in groupby(loads, key=id):  # most rounds are like the one before, and have its load
        load, *rest = same
        plus = cache(partial(_plus, 1 + len(rest)))
        shared, cores = plus(shared, load.shared_seconds), plus(cores, load.cores_seconds)
        for link, seconds in load.link_seconds.items():
            links[link] = plus(links[link], seconds)
        of_port: dict[Port, tuple[float, ...]] = {port: (seconds,) for port, seconds in load.latency_seconds.items()}
        for rank, seconds in (*load.adding_seconds.items(), *load.encoding_seconds.items()):
            of_port[rank, "receive"] = (*of_port.get((rank, "receive"), ()), seconds)
        for port, each in of_port.items():
            ports[port] = plus(ports[port], *each)
        for rank, seconds in load.work_seconds.items():
            ranks[rank] = plus(ranks[rank], seconds)
    return max(shared, cores, *links.values(), *ports.values(), *ranks.values())


def _plus(times: int, value: float, *seconds: float) -> float:
    """The value after these seconds, in turn, were added to it so many times: the last bit depends on their order."""
    for _ in range(times):
        for each in seconds:
            value += each
    return value
