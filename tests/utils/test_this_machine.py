"""What the system says of any machine, and of the one that all other tests see in its place."""

import socket
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from wirebench.utils import this_machine
from wirebench.utils.this_machine import FabricPort, Interface

REAL = pytest.mark.real_machine


@REAL
@pytest.mark.parametrize(
    ("cpuinfo", "flags"),
    [
        (
            "model name\t: A\nflags\t\t: fpu fma sse4a avx512_bf16 avx f16c avx512f amx_tile fma4 avx2\n"
            "vmx flags\t: ept\n\nprocessor\t: 1\nflags\t\t: avx_vnni\n",
            ["amx_tile", "avx", "avx2", "avx512_bf16", "avx512f", "f16c", "fma"],
        ),
        ("Features\t: fp asimd aes asimdhp sve svebf16 bf16\n", ["asimd", "asimdhp", "bf16", "sve", "svebf16"]),
        ("processor\t: 0\nflags\t\t: fpu sse4a\n", []),
        ("processor\t: 0\n", None),
        (None, None),
    ],
    ids=["x86", "arm", "old", "unlisted", "no-such-file"],
)
def test_the_cpus_flags_that_make_for_speed(cpuinfo, flags, monkeypatch, tmp_path):
    monkeypatch.setattr(this_machine, "CPUINFO", tmp_path / "cpuinfo")
    if cpuinfo is not None:
        (tmp_path / "cpuinfo").write_text(cpuinfo)
    assert this_machine.cpu().flags == flags


@REAL
def test_a_machine_without_a_boot_number_goes_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(this_machine, "BOOT", tmp_path / "none")
    assert this_machine.boot() == this_machine.hostname() == socket.gethostname()


@REAL
def test_any_machine_is_described(tmp_path: Path) -> None:
    assert 1 <= this_machine.cores() <= this_machine.all_cores()
    assert 0 < this_machine.free_memory_bytes() <= this_machine.memory_bytes()
    assert this_machine.free_disk_bytes(tmp_path) >= 0 and this_machine.copy_bytes_per_second() > 0
    assert this_machine.addresses()["lo"] == "127.0.0.1" == this_machine.address_of("localhost")
    assert this_machine.boot() and this_machine.kernel() and this_machine.process_age() >= 0
    assert this_machine.link_mbit("lo") == 0


def test_tests_see_the_same_machine_everywhere(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    assert this_machine.cpu().model == "Test Processor" and this_machine.hostname() == "test-host"
    assert this_machine.cores() == 2 and this_machine.free_disk_bytes(tmp_path) == 10**12
    assert this_machine.copy_bytes_per_second() == 1.4e10 * request.config.getoption("memory_rate")


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


CARDS: dict[str, tuple[dict[str, str], tuple[float, str]]] = {
    "card": ({"speed": "1000\n", "duplex": "full\n", "device/vendor": ""}, (1000.0, "full")),
    "half": ({"speed": "100\n", "duplex": "half\n", "device/vendor": ""}, (100.0, "half")),
    "bond": ({"speed": "20000\n", "duplex": "full\n", "bonding/slaves": ""}, (20000.0, "full")),
    "no link": ({"speed": "-1\n", "duplex": "unknown\n", "device/vendor": ""}, (0.0, "")),
    "odd": ({"speed": "\n", "duplex": "\n", "device/vendor": ""}, (0.0, "")),
    "no files": ({"device/vendor": ""}, (0.0, "")),
    "veth": ({"speed": "10000\n", "duplex": "full\n"}, (0.0, "")),
    "own": (
        {"speed": "1000\n", "duplex": "full\n", "device/vendor": "", "address": "02:00:00:00:00:01\n"},
        (1000.0, "full"),
    ),
    "another namespace's": ({"speed": "1000\n", "device/vendor": "", "address": "02:00:00:00:00:02\n"}, (0.0, "")),
}


@REAL
@pytest.mark.parametrize("card", CARDS)
def test_what_a_card_negotiated(card: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also without ethtool and as any user; where the system says nothing, it is 0."""
    files, cable = CARDS[card]
    _machine(monkeypatch, tmp_path, {"eth0": ["10.0.0.1"]})
    _write(tmp_path / "eth0", files)
    assert this_machine.interfaces() == {"eth0": Interface(("10.0.0.1",), True, 1500, *cable)}


@REAL
def test_a_virtual_machines_card_has_no_rate_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _machine(monkeypatch, tmp_path, {"eth0": ["10.0.0.1"]})
    _write(tmp_path, {"eth0/speed": "50000\n", "eth0/duplex": "full\n", "drivers/hv_netvsc/name": ""})
    (tmp_path / "eth0/device").mkdir()
    (tmp_path / "eth0/device/driver").symlink_to(tmp_path / "drivers/hv_netvsc")
    assert this_machine.interfaces()["eth0"].mbit == 0


@REAL
def test_interfaces_have_addresses_that_lead_somewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """None is link-local, and the IPv4 ones come first; a sandbox may allow no ioctl, and have no /sys."""
    known = {"eth0": ["fe80::1%eth0", "fd00::1", "10.0.0.1"], "eth1": ["fe80::2%eth1"], "lo": ["127.0.0.1", "::1"]}
    _machine(monkeypatch, tmp_path / "none", known)
    found = this_machine.interfaces()
    assert {name: each.addresses for name, each in found.items()} == {
        "eth0": ("10.0.0.1", "fd00::1"), "lo": ("127.0.0.1", "::1"),
    }  # fmt: skip

    def refuses() -> None:
        raise PermissionError

    monkeypatch.setattr(psutil, "net_if_stats", refuses)
    assert this_machine.interfaces()["eth0"] == Interface(("10.0.0.1", "fd00::1"), True, 0, 0.0, "")


def _machine(monkeypatch: pytest.MonkeyPatch, folder: Path, known: dict[str, list[str]]) -> None:
    """A machine with these addresses by interface, whose /sys/class/net is `folder`."""

    def told(addresses: list[str]) -> list[SimpleNamespace]:
        six = [
            SimpleNamespace(family=socket.AF_INET6 if ":" in each else socket.AF_INET, address=each)
            for each in addresses
        ]
        return [*six, SimpleNamespace(family=psutil.AF_LINK, address="02:00:00:00:00:01")]

    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {name: told(each) for name, each in known.items()})
    stats = SimpleNamespace(isup=True, mtu=1500)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: dict.fromkeys(known, stats))
    monkeypatch.setattr(this_machine, "INTERFACES", folder)


@REAL
def test_ports_of_adapters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(this_machine, "INFINIBAND", tmp_path)
    assert this_machine.fabric_ports() == []
    here = "mlx5_1/ports/1"
    _write(tmp_path, {
        f"{here}/rate": "100 Gb/sec (4X EDR)\n", f"{here}/state": "4: ACTIVE\n", f"{here}/link_layer": "Ethernet\n",
        "mlx5_0/ports/1/rate": "2.5 Gb/sec (1X SDR)\n", "mlx5_0/ports/1/state": "1: DOWN\n",
    })  # fmt: skip
    assert this_machine.fabric_ports() == [
        FabricPort("mlx5_0", 1, 2.5, "DOWN", ""), FabricPort("mlx5_1", 1, 100.0, "ACTIVE", "Ethernet"),
    ]  # fmt: skip


@REAL
def test_tcp_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(this_machine, "NETWORK", tmp_path)
    assert this_machine.tcp_settings() == {}
    _write(tmp_path, {"ipv4/tcp_rmem": "4096\t131072\t6291456\n", "core/rmem_max": "212992\n"})
    assert this_machine.tcp_settings() == {"tcp_rmem": "4096 131072 6291456", "rmem_max": "212992"}


@REAL
def test_a_names_own_addresses() -> None:
    assert this_machine.own_addresses_of("127.0.0.1") == ["127.0.0.1"]
    assert this_machine.own_addresses_of("203.0.113.99") == this_machine.own_addresses_of("no-such-host.invalid") == []
