"""All tasks: their configs and lengths, and which methods each has with how many seeds."""

from dataclasses import replace

from papers.accuracy import alone, classics, formats, grid, rates, sizes
from papers.accuracy.modern import OWN, SETTINGS, STEPS
from papers.accuracy.task import Task, listed

NO_HEALTH = "output.health_every=0"
GPT = Task(
    "gpt", "today", "configs/tables/today_gpt.toml", 1, 3, 1_853_568, listed, data=False, shared=(NO_HEALTH,),
    settings=SETTINGS["gpt"], own=OWN,
)  # fmt: skip
RESNET = Task(
    "resnet", "today", "configs/tables/convergence_quick.toml", 8, 3, 75_290, listed,
    shared=(NO_HEALTH, f"train.max_steps={STEPS['resnet']}"), settings=SETTINGS["resnet"], own=OWN,
)  # fmt: skip
CLASSICS = tuple(
    Task(name, "convergence", f"configs/tables/convergence_{name}.toml", epochs, seeds, parameters,
         classics.of_density(methods), data=name != "digits")
    for name, epochs, seeds, parameters, methods in (
        ("quick", 8, 5, 75_290, ()),
        ("resnet20", 10, 3, 269_722, classics.FIRST),
        ("vgg16", 20, 3, 14_728_266, classics.VGG16),
        ("digits", 12, 3, 75_290, classics.QUICK),
    )
)  # fmt: skip
"""Of every compressor. vgg16 is for a GPU; digits show in a minute, without CIFAR-10, that the study works."""
MODERN = (GPT, RESNET)
AT_OTHER_RATES = tuple(
    replace(task, name=f"{task.name}{rates.SUFFIX}", seeds=1, methods=rates.at_other_rates) for task in MODERN
)
ALONE = tuple(replace(task, name=f"{task.name}{alone.SUFFIX}", seeds=1, methods=alone.alone) for task in MODERN)
_USUAL = (*MODERN, *AT_OTHER_RATES, *ALONE, *CLASSICS)
_SMALL = next(task for task in sizes.SIZED if task.name == f"gpt_{formats.SIZE}_{sizes.AT}")
GPT_BY_FORMAT = tuple(formats.parts_of(_SMALL, f"gpt_{formats.SIZE}", 32, formats.at_dense_rate))
BY_FORMAT = (*GPT_BY_FORMAT, *formats.parts_of(RESNET, RESNET.name, 128))
"""Losses by wire format."""
AT_SEARCHED_RATES = (*sizes.SEARCHES, *sizes.SIZED, *grid.CELLS, *GPT_BY_FORMAT)
"""The searches, and the tasks that read what they found."""
TASKS = {task.name: task for task in (*_USUAL, *AT_SEARCHED_RATES, *BY_FORMAT)}
USUAL = tuple(task.name for task in _USUAL if task.name not in ("vgg16", "digits"))
"""Tasks of a call that names none."""
CURVES = (*MODERN, *AT_OTHER_RATES, *ALONE, *BY_FORMAT, *grid.CELLS)
"""Tasks whose runs keep the loss on the way."""
