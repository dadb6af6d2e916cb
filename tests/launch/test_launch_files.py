"""The files under launch/: as their operators' own schemas want them, and naming only what there is.

schemas/ has the schemas, slimmed of their descriptions; each says of which repository and commit it is.
"""

import gzip
import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from wirebench.config.loader import load

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


@pytest.mark.sampled(1)
@pytest.mark.parametrize("file", ["mpijob", "trainjob"])
def test_a_mistyped_field_is_found(file: str) -> None:
    job = yaml.safe_load((LAUNCH / f"{file}.yaml").read_text())
    job["spec"]["slotPerWorker"] = 4
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(job | {"metadata": {}}, strict(schema(file)["schema"]))


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
    targets = [line.rpartition(" AS ")[2] for line in (ROOT / "Dockerfile").read_text().splitlines()]
    for service in compose["services"].values():
        assert service["image"] == "wirebench:gpu" and service["build"] == {"context": "..", "target": "gpu"}
    assert "gpu" in targets and more["services"].keys() == plain["services"].keys()
    hosts = {name: service for name, service in compose["services"].items() if name != "key"}
    for name, service in hosts.items():
        gpu, own = f"${{GPU{name[1:]}:-{name[1:]}}}", service["environment"]
        [device] = service["deploy"]["resources"]["reservations"]["devices"]
        assert device == {"driver": "nvidia", "device_ids": [gpu], "capabilities": ["gpu"]}
        assert (own["NVIDIA_VISIBLE_DEVICES"], own["NCCL_SOCKET_IFNAME"], own["NCCL_IB_DISABLE"]) == (gpu, "eth0", "1")
        assert own["LINK"] == "${LINK:-}" and service["cap_add"] == ["NET_ADMIN"], "what the first file says stays"
    assert hosts["h0"]["environment"]["CONFIG"] == "${CONFIG:-configs/smoke.toml} engine.device=cuda"
    assert hosts["h0"]["environment"]["GLOO_SOCKET_IFNAME"] == "eth0"
    assert "key" not in {name for name in compose["services"] if "deploy" in compose["services"][name]}


def test_the_job_for_gpus_is_the_other_one_with_a_rank_for_each_gpu() -> None:
    jobs = [yaml.safe_load((LAUNCH / name).read_text())["spec"] for name in ("mpijob.yaml", "mpijob_gpu.yaml")]
    arguments = []
    for job in jobs:
        launcher, worker = (
            job["mpiReplicaSpecs"][name]["template"]["spec"]["containers"][0] for name in ("Launcher", "Worker")
        )
        assert launcher["image"] == worker["image"]
        arguments.append(launcher["args"])
        ranks = int(launcher["args"][launcher["args"].index("-np") + 1])
        assert ranks == job["slotsPerWorker"] * job["mpiReplicaSpecs"]["Worker"]["replicas"]
    assert launcher["image"].endswith("/wirebench:gpu")
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == jobs[1]["slotsPerWorker"], "NCCL takes one rank a GPU"
    assert "nvidia.com/gpu" not in launcher["resources"]["limits"]
    pod = jobs[1]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
    [mounted] = [each["name"] for each in worker["volumeMounts"] if each["mountPath"] == "/dev/shm"]
    assert [each["emptyDir"]["medium"] for each in pod["volumes"] if each["name"] == mounted] == ["Memory"]
    plain, more = arguments
    added = [word for word in more if word not in plain]
    assert added == ["16", "NCCL_SOCKET_IFNAME=eth0", "NCCL_DEBUG=WARN", "engine.device=cuda"]
    assert [word for word in plain if word not in more] == ["8"]
    assert all(more[more.index(word) - 1] == "-x" for word in added if word.startswith("NCCL_"))


def test_the_compose_file_is_what_compose_takes() -> None:
    compose = yaml.safe_load((LAUNCH / "compose.yaml").read_text())
    jsonschema.Draft7Validator(schema("compose")["schema"]).validate(compose)
    hosts = [name for name in compose["services"] if name != "key"]
    wanted = re.findall(r"(h\d):1", compose["services"]["h0"]["command"][1])
    assert sorted(hosts) == sorted(wanted) == ["h0", "h1", "h2", "h3"]
    # `<<` merges one level: what h0 says of its environment and its order replaces the shared one.
    assert set(compose["services"]["h0"]["depends_on"]) == {"key", "h1", "h2", "h3"}
    assert "LINK" in compose["services"]["h0"]["environment"]


def _words(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        node = list(node.values())
    if isinstance(node, list):
        for each in node:
            yield from _words(each)
    elif isinstance(node, str):
        yield from node.split()


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


CHECK_BUILD = """Horovod v0.28.1:

Available Frameworks:
    [X] PyTorch

Available Tensor Operations:
    [X] NCCL
    [ ] DDL
    [X] Gloo
"""
"""What horovodrun --check-build prints, slimmed."""


@pytest.mark.parametrize(
    ("printed", "imports", "code"),
    [(CHECK_BUILD, 0, 0), (CHECK_BUILD.replace("[X] NCCL", "[ ] NCCL"), 0, 1), (CHECK_BUILD, 1, 1)],
    ids=["nccl", "no nccl", "does not load"],
)
def test_a_gpu_image_without_nccl_fails_its_job(printed: str, imports: int, code: int, tmp_path: Path) -> None:
    """The workflow's own lines, as a runner's shell runs them, beside a stand-in for Docker."""
    steps = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"]["gpu-image"]["steps"]
    runs = [step["run"] for step in steps if "run" in step]
    assert "scripts/images.sh gpu --smoke" in runs
    [check] = [run for run in runs if "--check-build" in run]
    (tmp_path / "printed").write_text(printed)
    docker = tmp_path / "docker"
    docker.write_text(f"""#!/bin/sh
echo "$*" >>"{tmp_path}/calls"
case "$*" in *--check-build*) cat "{tmp_path}/printed" ;; *) exit {imports} ;; esac
""")
    docker.chmod(0o755)
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", check]
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert subprocess.run(shell, env=path, cwd=tmp_path, capture_output=True).returncode == code
    calls = (tmp_path / "calls").read_text().splitlines()
    assert all("wirebench:gpu" in call for call in calls) and len(calls) == (1 if "[ ] NCCL" in printed else 2)


def test_the_gpu_image_is_built_with_nccl() -> None:
    """By GPU_OPS=nccl in the Dockerfile, which the build script makes HOROVOD_GPU_OPERATIONS=NCCL of."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    stage = dockerfile.partition(" AS wheel-gpu")[2].partition("\nFROM ")[0]
    assert "GPU_OPS=nccl" in stage and "COPY --from=wheel-gpu" in dockerfile.partition(" AS gpu")[2]
    assert "export HOROVOD_GPU_OPERATIONS=NCCL" in (ROOT / "scripts/build_horovod.sh").read_text()


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
    assert re.search(r"sudo .*make test-all", runs)


def test_the_python_versions_of_the_workflow_are_those_of_the_project() -> None:
    test = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"]["test"]
    least = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    assert least in test["strategy"]["matrix"]["python"]
