"""The files under launch/, as their operators' schemas want them, and environment.yml: they name only what there is.

schemas/ has the schemas, slimmed of their descriptions; each says of which repository and commit it is.
"""

import gzip
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from wirebench.config.loader import load
from wirebench.utils.package import TOP

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = ROOT / "launch"
SCHEMAS = Path(__file__).parent / "schemas"
SCRIPTS = sorted([*LAUNCH.glob("*.sh"), *LAUNCH.glob("*.sbatch")])
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def schema(name: str) -> dict[str, Any]:
    return dict(json.loads(gzip.decompress((SCHEMAS / f"{name}.json.gz").read_bytes())))


def strict(node: Any) -> Any:
    """The same schema, in which a field that it does not name is a mistake: Kubernetes would drop it without a word."""
    if isinstance(node, list):
        return [strict(each) for each in node]
    if not isinstance(node, dict):
        return node
    made = {key: strict(value) for key, value in node.items()}
    if isinstance(node.get("properties"), dict) and not node.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    return made


@pytest.mark.parametrize(("file", "kind"), [("mpijob", "MPIJob"), ("mpijob_gpu", "MPIJob"), ("trainjob", "TrainJob")])
def test_a_job_is_what_its_operator_takes(file: str, kind: str) -> None:
    job, known = yaml.safe_load((LAUNCH / f"{file}.yaml").read_text()), schema(kind.lower())
    assert job["apiVersion"] == f"{known['group']}/{known['version']}"
    assert job["kind"] == known["kind"] == kind
    # `metadata` is any object there; the API server knows what belongs into it.
    jsonschema.validate(job | {"metadata": {}}, strict(known["schema"]))
    assert set(job["metadata"]) == {"name"}


def _merged(below: Any, above: Any) -> Any:
    """As compose merges a second file: mappings key by key; what else stands in the second one replaces the first."""
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    both = {key: _merged(below[key], above[key]) for key in below.keys() & above.keys()}
    return below | above | both


def test_the_compose_file_for_gpus_gives_each_host_one_of_its_own() -> None:
    plain, more = (yaml.safe_load((LAUNCH / name).read_text()) for name in ("compose.yaml", "compose.gpu.yaml"))
    known = jsonschema.Draft7Validator(schema("compose")["schema"])
    known.validate(more)
    compose = _merged(plain, more)
    known.validate(compose)
    assert more["services"].keys() == plain["services"].keys()
    hosts = {name: service for name, service in compose["services"].items() if name != "key"}
    for name, service in hosts.items():
        [device] = service["deploy"]["resources"]["reservations"]["devices"]
        assert (
            device["device_ids"]
            == [service["environment"]["NVIDIA_VISIBLE_DEVICES"]]
            == [f"${{GPU{name[1:]}:-{name[1:]}}}"]
        )
        assert service["cap_add"] == ["NET_ADMIN"], "what the first file says stays"
    assert "engine.device=cuda" in hosts["h0"]["environment"]["CONFIG"]


def test_the_job_for_gpus_is_the_other_one_with_a_rank_for_each_gpu() -> None:
    jobs = [yaml.safe_load((LAUNCH / name).read_text())["spec"] for name in ("mpijob.yaml", "mpijob_gpu.yaml")]
    for job in jobs:
        launcher, worker = (
            job["mpiReplicaSpecs"][name]["template"]["spec"]["containers"][0] for name in ("Launcher", "Worker")
        )
        assert launcher["image"] == worker["image"]
        ranks = int(launcher["args"][launcher["args"].index("-np") + 1])
        assert ranks == job["slotsPerWorker"] * job["mpiReplicaSpecs"]["Worker"]["replicas"]
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == jobs[1]["slotsPerWorker"], "NCCL takes one rank a GPU"
    assert "engine.device=cuda" in launcher["args"] and "nvidia.com/gpu" not in launcher["resources"]["limits"]


def test_the_compose_file_is_what_compose_takes() -> None:
    compose = yaml.safe_load((LAUNCH / "compose.yaml").read_text())
    jsonschema.Draft7Validator(schema("compose")["schema"]).validate(compose)
    hosts = [name for name in compose["services"] if name != "key"]
    wanted = re.findall(r"(h\d):1", compose["services"]["h0"]["command"][1])
    assert sorted(hosts) == sorted(wanted) == ["h0", "h1", "h2", "h3"]
    # `<<` merges one level: what h0 says of its environment and its order replaces the shared one.
    assert set(compose["services"]["h0"]["depends_on"]) == {"key", "h1", "h2", "h3"}
    assert "LINK" in compose["services"]["h0"]["environment"]


@pytest.mark.parametrize("file", [*SCRIPTS, *sorted(LAUNCH.glob("*.yaml"))], ids=lambda path: path.name)
def test_every_config_and_override_named_exists(file: Path) -> None:
    """What a user copies has to load: each config with all overrides that stand in the file."""
    words = re.split(r"[\s\[\],\"'{}()]+", file.read_text())
    configs = {
        re.sub(r"^.*?(configs/)", r"\1", word) for word in words if "configs/" in word and word.endswith(".toml")
    }
    overrides = [word for word in words if re.fullmatch(r"(engine|network|output|compressor)\.\w+=[\w./$-]+", word)]
    assert configs
    for config in configs:
        load(ROOT / config, [word.replace("$", "") for word in overrides])


@pytest.mark.parametrize("script", [*SCRIPTS, *sorted((ROOT / "scripts").glob("*.sh"))], ids=lambda path: path.name)
def test_scripts_are_sound(script: Path) -> None:
    first = script.read_text().partition("\n")[0]
    shell = "sh" if first.endswith("/sh") else "bash"
    subprocess.run([shell, "-n", str(script)], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", str(script)], check=True)


def test_the_images_ssh_is_what_the_jobs_expect() -> None:
    server, client = (LAUNCH / "sshd_config").read_text(), (LAUNCH / "ssh_config").read_text()
    job = yaml.safe_load((LAUNCH / "mpijob.yaml").read_text())
    dockerfile = (ROOT / "Dockerfile").read_text()
    mount = job["spec"]["sshAuthMountPath"]
    assert f"HostKey {mount}/id_rsa" in server and "Port 2222" in server and "StrictModes no" in server
    assert "Port 2222" in client and "StrictHostKeyChecking no" in client and "UserKnownHostsFile /dev/null" in client
    worker = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    assert worker["args"][-1] in dockerfile, "the server's config is where the image has it"
    assert f"--uid {worker['securityContext']['runAsUser']} " in dockerfile


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_what_there_is(workflow: Path) -> None:
    jobs = yaml.safe_load(workflow.read_text())["jobs"]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert runs and all("timeout-minutes" in job for job in jobs.values())
    for run in runs:
        assert {word for word in re.findall(r"\bmake ([a-z-]+)", run)} <= targets
        files = re.findall(r"(?<![\w/.])((?:scripts|launch|configs|\.ci)/[\w./-]+\w)", run)
        assert all((ROOT / file).exists() for file in files), run
    if shutil.which("actionlint"):
        subprocess.run(["actionlint", str(workflow)], check=True)


def test_once_a_week_no_test_is_left_out_for_want_of_a_package_or_of_rights() -> None:
    steps = yaml.safe_load((ROOT / ".github/workflows/weekly.yml").read_text())["jobs"]["all"]["steps"]
    runs = "\n".join(step.get("run", "") for step in steps)
    told = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("*.py"))
    asked = {word for words in re.findall(r"needs .*: apt-get install ([a-z -]+)", told) for word in words.split()}
    assert asked > {"openssh-server", "munge"} and asked - {"chromium"} <= set(runs.split())  # runners have Chromium
    assert re.search(r"sudo .*make test-weekly", runs)


def test_the_python_versions_of_the_workflow_are_those_of_the_project() -> None:
    test = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"]["test"]
    least = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    assert least in test["strategy"]["matrix"]["python"]


OF_CONDA = {"torch": "pytorch"}


def asked() -> dict[str, str]:
    """The versions that environment.yml allows, by package."""
    listed = yaml.safe_load((TOP / "environment.yml").read_text())["dependencies"]
    split = (entry.partition(" ") for entry in listed if isinstance(entry, str))
    return {name: version for name, _, version in split}


def test_it_has_all_that_the_package_needs():
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    needed = [Requirement(each).name for each in (*project["dependencies"], *project["optional-dependencies"]["train"])]
    assert {OF_CONDA.get(name, name) for name in needed} <= asked().keys()


def test_its_python_and_pytorch_are_those_of_the_package():
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    (torch,) = (Requirement(each).specifier for each in project["dependencies"] if each.startswith("torch"))
    python = SpecifierSet(project["requires-python"])
    for theirs, ours, version in ((asked()["pytorch"], torch, "2.11.0"), (asked()["python"], python, "3.11.0")):
        assert SpecifierSet(theirs).contains(version) and ours.contains(version)
    assert not SpecifierSet(asked()["pytorch"]).contains("2.13.0"), "Horovod was built against an older one"
