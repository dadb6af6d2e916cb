"""What the system says of any machine, and of the one that all other tests see in its place."""

import socket
from pathlib import Path

import pytest

from wirebench.utils import this_machine

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
