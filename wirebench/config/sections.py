"""The sections of a config: every key, its type, its default and what it means.

`train.py --help` prints these docstrings. Sections with `options` name a plugin, whose constructor declares the rest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

AS_THE_PAPER = -1
EngineName = Literal["local", "torch", "horovod"]


@dataclass(frozen=True)
class ModelConfig:
    """[model]: `name` is a file of models/; its options follow."""

    name: str = "resnet_cifar"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DataConfig:
    """[data]: the data set; its options follow.

    root             folder of the data, where the set has one
    batch_size       images per worker and step
    eval_batch_size  images per worker and evaluation batch; 0: twice the training batch
    """

    name: str = "digits"
    root: str = ""
    batch_size: int = 32
    eval_batch_size: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CompressorConfig:
    """[compressor]: the gradient compressor; its options follow.

    dense_below  tensors with one dimension or with fewer elements than this are sent dense; 0: off; -1: as the
                 method's paper has it (dgc, iwp, sketched_sgd, signsgd and terngrad: 1, all others: off)
    warmup       densities of the first epochs, e.g. [0.25, 0.0625]; empty: off
    """

    name: str = "none"
    dense_below: int = AS_THE_PAPER
    warmup: tuple[float, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SchedulerConfig:
    """[scheduler]: what is merged into one message, and when; its options follow.

    profile  folder of a run whose layers.json and exchange.json give the times to a scheduler that weighs them: it
             makes the same buckets as there, and so the same bits; empty: it measures in the first steps
    """

    name: str = "wfbp"
    profile: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CollectiveConfig:
    """[collective]: the all-reduce algorithm; its options follow. `native` is the engine's own.

    name         empty: what the compressor's paper uses (gs_sgd, gtopk and iblt: tree, sketched_sgd and fetch_sgd:
                 star, iwp: ring), native for all others
    wire         format of a sum's messages (docs/sums.md: fp8, mxfp6, ...), with compressor none; empty: fp32
    wire_within  their format within machines, until the sum is complete; empty: as `wire`
    """

    name: str = ""
    wire: str = ""
    wire_within: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EngineConfig:
    """[engine]: who moves the bytes.

    name             auto (from the launcher's environment), local, torch or horovod; a recorded config has what ran
    workers          world size; 0: what the launcher started, 4 virtual workers without one
    timeout_seconds  after this long without an answer a peer counts as lost
    rounds           how a Horovod job runs the rounds of a plan: p2p (torch.distributed beside it) or alltoall
    threads          threads per process; 0: cores of the machine divided by its workers
    device           auto, cpu or cuda
    cuda_graphs      replay the compressor's own kernels from CUDA graphs; for methods whose steps are alike
    """

    name: Literal["auto", "local", "torch", "horovod"] = "auto"
    workers: int = 0
    timeout_seconds: float = 60.0
    rounds: Literal["p2p", "alltoall"] = "p2p"
    threads: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    cuda_graphs: bool = False


@dataclass(frozen=True)
class OptimizerConfig:
    """[optimizer]: which one, and its learning-rate schedule.

    name           sgd, adamw, muon (matrices of linear layers inside the model by Muon, the rest by AdamW), or dion2
                   (likewise, a share of each matrix's rows a step)
    momentum       of adamw the first beta. With sgd a compressor that applies it itself (dgc, gs_sgd, sketched_sgd,
                   fetch_sgd, iwp) takes it over, and the weight decay with it: that joins the gradient before it is
                   compressed. demo, dion, lion_sign and zero_one_adam are optimizers in themselves: they go with sgd
                   and momentum 0, and its weight decay is decoupled from their update
    beta2, eps     of adamw, and of its part in muon and dion2
    fraction       share of a matrix's rows that a step of dion2 updates, rounded up
    clip           largest norm of the averaged gradient, which is scaled down to it; of each worker's own before demo,
                   dion, lion_sign and zero_one_adam, in one bucket (scheduler.name=single); 0: off
    lr             base rate; multiplied by the number of workers if scale_lr
    decay_norm     false: weight decay leaves biases and normalisation (one-dimensional tensors) alone
    schedule       constant, step (times gamma at each epoch of milestones); cosine and one_cycle fall to 0 at the end
    warmup_epochs  linear rise over this many epochs to the peak (lr, times workers if scale_lr) from peak / workers, or
                   from 0 with one worker; one_cycle: length of its rise from peak / 25, 0: 30 % of the run
    """

    name: Literal["sgd", "adamw", "muon", "dion2"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    beta2: float = 0.999
    eps: float = 1e-8
    fraction: float = 0.25
    clip: float = 0.0
    weight_decay: float = 0.0
    decay_norm: bool = True
    schedule: Literal["constant", "step", "cosine", "one_cycle"] = "constant"
    milestones: tuple[float, ...] = ()
    gamma: float = 0.1
    warmup_epochs: float = 0.0
    scale_lr: bool = False


@dataclass(frozen=True)
class TrainConfig:
    """[train]: the loop.

    max_steps                stop after this many steps; 0: after `epochs`
    accumulation             micro-batches per step; must divide data.batch_size
    precision                fp32, bf16 (autocast), or auto: the faster of both in a trial of a few passes at the start,
                             or what the resumed checkpoint has; a recorded config has what ran
    warmup_steps             steps that throughput and phase times leave out
    eval_every               epochs between evaluations; 0: only at the end
    checkpoint_every_steps   steps between checkpoints; 0: off
    checkpoint_every_epochs  epochs between checkpoints; 0: off
    keep                     how many checkpoints stay
    resume                   "": no; auto: the newest good checkpoint of output.dir; or a path
    elastic                  go on when ranks are lost or join, from commits in the hosts' memory; needs a launcher that
                             starts ranks anew (docs/elastic.md)
    commit_every_steps       steps between these commits
    mirror                   1: each rank's part of a commit is held on another host, too
    """

    epochs: int = 1
    max_steps: int = 0
    seed: int = 0
    resume: str = ""
    accumulation: int = 1
    label_smoothing: float = 0.0
    precision: Literal["auto", "fp32", "bf16"] = "fp32"
    channels_last: bool = False
    warmup_steps: int = 5
    eval_every: int = 1
    checkpoint_every_steps: int = 0
    checkpoint_every_epochs: int = 0
    keep: int = 2
    elastic: bool = False
    commit_every_steps: int = 10
    mirror: Literal[0, 1] = 0


@dataclass(frozen=True)
class NetworkConfig:
    """[network]: `interface` whose kernel counters are read; empty: the one that the ranks use.

    topology   ranks per machine ("2+3", "(2+2)+(3)") or a file with link speeds (configs/topologies/); empty: by the
               hosts that the ranks run on. Collectives that follow the network read it
    dilation   how many times slower than life an emulated cluster runs. It multiplies the times of a replayed model,
               and only model.name = replay can be slowed down; its links are slowed where they are set up
    straggler  how many times as long as on the other ranks a replayed model computes on the last rank
    """

    interface: str = ""
    topology: str = ""
    dilation: float = 1.0
    straggler: float = 1.0


@dataclass(frozen=True)
class OutputConfig:
    """[output]: `dir` of this run (empty: results/runs/NAME-TIME-HASH) and what goes into it.

    trace_steps      steps in trace.json, counted after the warm-up
    trace_all_ranks  trace the steps of all ranks, not only of rank 0
    health_every     steps between readings of the compression's error, residual and choice (steps.jsonl); 0: none. Such
                     a step sends the dense gradient as well; throughput and mean bytes leave it out
    """

    dir: str = ""
    tensorboard: bool = True
    trace_steps: int = 10
    trace_all_ranks: bool = False
    health_every: int = 0


@dataclass(frozen=True)
class ExpectedConfig:
    """[expected]: what this configuration gave where it was measured; printed beside what a run gives."""

    top1: float = 0.0
    images_per_second: float = 0.0
    seconds: float = 0.0
    machine: str = ""


@dataclass(frozen=True)
class Config:
    """One run. `name` is the file's name without its ending.

    asked  by section and key, the requested values that resolving replaced: a recorded run's config has them, and
           `load` goes back to them for another compressor or scheduler
    """

    name: str = "run"
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    compressor: CompressorConfig = field(default_factory=CompressorConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    collective: CollectiveConfig = field(default_factory=CollectiveConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    expected: ExpectedConfig = field(default_factory=ExpectedConfig)
    asked: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
