"""Meters: energy from counters and power, a kernel's files, NVML's answers, and what ranks tell together."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import awaited

from equipoise.bench import counters, meters
from equipoise.bench.counters import MOST_OTHERS, CoreUse, PowerMeter, others_fraction, sent_bytes
from equipoise.bench.meters import Readings, Sampler, counted_j, drawn, integrated_j


def zone(root, name, label, energy_uj, largest_uj=262_143_328_850):
    folder = root / name
    folder.mkdir(parents=True)
    for file, value in (("name", label), ("energy_uj", energy_uj), ("max_energy_range_uj", largest_uj)):
        (folder / file).write_text(f"{value}\n")
    return folder


@pytest.fixture
def powercap(tmp_path):
    """Files as a machine of two sockets shows them."""
    zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    zone(tmp_path, "intel-rapl:0:0", "core", 400_000)
    zone(tmp_path, "intel-rapl:0:1", "dram", 200_000)
    zone(tmp_path, "intel-rapl:1", "package-1", 5_000_000)
    zone(tmp_path, "intel-rapl:2", "psys", 90_000_000)
    zone(tmp_path, "intel-rapl-mmio:0", "package-0", 1_000_000)
    (tmp_path / "intel-rapl").mkdir()
    return tmp_path


def test_packages_and_their_memory_are_counted_once(powercap):
    found = counters.rapl_sources(powercap).found
    assert [source.part for source in found] == ["package-0", "package-0 dram", "package-1"]
    assert [source.counter_j() for source in found] == pytest.approx([1.0, 0.2, 5.0])
    assert found[0].range_j == pytest.approx(262_143.32885)


def test_a_counter_that_begins_again_goes_on(powercap):
    source = counters.rapl_sources(powercap).found[0]
    readings = []
    for energy_uj in (262_143_000_000, 262_143_300_000, 100_000):
        (powercap / "intel-rapl:0" / "energy_uj").write_text(str(energy_uj))
        readings.append(source.counter_j())
    # 0.3 J to the second; 0.02885 J to the end of the range and 0.1 J beyond.
    assert counted_j(readings, source.range_j) == pytest.approx(0.3 + 0.02885 + 0.1)


def test_a_machine_without_counters_says_so(tmp_path):
    without = counters.rapl_sources(tmp_path / "powercap")
    assert without.found == ()
    assert "energy counter" in without.reason
    assert "no package" in counters.rapl_sources(tmp_path).reason


@pytest.fixture
def nobody():
    """A folder that all may enter, and rights that root has not."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        zone(Path(folder), "intel-rapl:0", "package-0", 1)
        (Path(folder) / "intel-rapl:0" / "energy_uj").chmod(0o400 if os.geteuid() == 0 else 0)
        mine = os.geteuid()
        if mine == 0:
            os.seteuid(65534)
        try:
            yield Path(folder)
        finally:
            os.seteuid(mine)


def test_counters_of_root_alone_say_so(nobody):
    assert "only root" in counters.rapl_sources(nobody).reason


@pytest.mark.law
@given(st.lists(st.floats(0, 90), max_size=20), st.floats(0, 99))
def test_a_counter_gives_the_sum_of_what_was_drawn(parts, start):
    readings = [start]
    for part in parts:
        readings.append((readings[-1] + part) % 100.0)
    assert counted_j(readings, 100.0) == pytest.approx(sum(parts), abs=1e-6)


def test_a_counter_that_is_reset_leaves_energy_to_power_or_unknown():
    # A driver that is loaded anew begins at 0 J; 50 W over two seconds are 100 J.
    source = PowerMeter(part="a", meter="NVML")
    counter = ([0.0, 1.0, 2.0], [5000.0, 5050.0, 20.0])
    assert drawn(source, Readings(counter=counter))["energy_j"] is None
    found = drawn(source, Readings(counter=counter, power=([0.0, 2.0], [50.0, 50.0])))
    assert (found["energy_j"], found["counter_j"]) == (100.0, None)


def test_power_is_integrated_over_uneven_moments():
    # By hand: 0-1 s at 100 W, then falling to 0 W at 3 s: 100 + 100.
    assert integrated_j([0.0, 1.0, 3.0], [100.0, 100.0, 0.0]) == 200.0


def test_polled_power_that_disagrees_with_the_counter_is_told():
    source = PowerMeter(part="accelerator 0000:3b:00.0", meter="NVML")
    moments = [0.1 * number for number in range(21)]
    told = Readings(counter=(moments, [100 * each for each in moments]), power=(moments, [130.0] * 21))
    found = drawn(source, told)
    assert found["energy_j"] == pytest.approx(200.0)
    assert found["polled_j"] == pytest.approx(260.0)
    assert "30 %" in found["disagreement"]
    told.power[1][:] = [105.0] * 21
    assert drawn(source, told)["disagreement"] is None


def test_a_source_without_counter_is_polled():
    found = drawn(PowerMeter(part="a", meter="amdgpu"), Readings(power=([0.0, 2.0], [50.0, 50.0])))
    assert (found["energy_j"], found["meter"]) == (100.0, "amdgpu power")
    assert drawn(PowerMeter(part="a", meter="amdgpu"), Readings())["energy_j"] is None


def test_a_sampler_reads_at_both_ends_and_between():
    count = iter(range(1000))
    with Sampler([PowerMeter(part="a", meter="m", counter_j=lambda: float(next(count)))], 0.005) as sampler:
        assert awaited(lambda: sampler._readings[0].counter[1][-1] >= 3, limit_s=60)
    (drawn,) = sampler.drawn()
    assert drawn["num_readings"] >= 4
    assert drawn["energy_j"] == drawn["num_readings"] - 1


def test_an_accelerator_of_amd_is_read_from_the_files_of_its_driver(tmp_path):
    sensor = tmp_path / "0000:c1:00.0" / "hwmon" / "hwmon3"
    sensor.mkdir(parents=True)
    (sensor / "power1_average").write_text("203000000\n")
    (sensor.parents[1] / "gpu_busy_percent").write_text("97\n")
    (sensor.parents[1] / "pp_dpm_sclk").write_text("0: 132Mhz\n1: 2100Mhz *\n")
    (found,) = counters.amdgpu_sources(["0000:c1:00.0"], tmp_path).found
    assert (found.power_w(), found.busy_fraction(), found.counter_j) == (pytest.approx(203.0), 0.97, None)
    assert counters.amdgpu_conditions("0000:c1:00.0", tmp_path)["accelerator_clock_hz"] == 2.1e9
    assert "0000:ff" in counters.amdgpu_sources(["0000:ff:00.0"], tmp_path).reason


class Answers:
    """What NVML answers, in its own units, as an A100 did."""

    NVMLError = type("NVMLError", (OSError,), {})
    NVML_CLOCK_SM = 1

    def __init__(self, *, counts=True):
        self.counts = counts

    def nvmlInit(self):  # noqa: N802 - NVML's own names, here and below
        """Nothing to do."""

    def nvmlDeviceGetHandleByPciBusId(self, address):  # noqa: N802
        if address != b"0000:3b:00.0":
            raise self.NVMLError("Not Found")
        return "handle"

    def nvmlDeviceGetTotalEnergyConsumption(self, _handle):  # noqa: N802
        if not self.counts:
            raise self.NVMLError("Not Supported")
        return 123_456

    def nvmlDeviceGetPowerUsage(self, _handle):  # noqa: N802
        return 287_500

    def nvmlDeviceGetUtilizationRates(self, _handle):  # noqa: N802
        return type("Rates", (), {"gpu": 98})

    def nvmlDeviceGetComputeRunningProcesses(self, _handle):  # noqa: N802
        return [object(), object()]


def test_millijoules_and_milliwatts_of_nvml_become_joules_and_watts():
    (found,) = counters.nvml_sources(["0000:3b:00.0"], Answers()).found
    assert (found.counter_j(), found.power_w(), found.busy_fraction()) == (123.456, 287.5, 0.98)
    assert found.num_programs() == 2
    (older,) = counters.nvml_sources(["0000:3b:00.0"], Answers(counts=False)).found
    assert older.counter_j is None
    assert "0000:00" in counters.nvml_sources(["0000:00:00.0"], Answers()).reason


def test_nvml_without_a_driver_says_why_it_does_not_start():
    pynvml = pytest.importorskip("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        assert "NVML" in counters.nvml_sources(["0000:3b:00.0"]).reason
    else:
        pytest.skip("a driver of NVIDIA is here")


def test_bytes_of_bridges_are_not_counted_twice_and_infiniband_is(tmp_path):
    table = "Inter-| Receive\n face |bytes\n" + "".join(
        f"  {name}: 9 0 0 0 0 0 0 0 {sent} 0 0 0 0 0 0 0\n"
        for name, sent in (("lo", 7), ("eth0", 100), ("veth1", 20), ("bond0", 100), ("docker0", 20))
    )
    (tmp_path / "proc" / "self" / "net").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "net" / "dev").write_text(table)
    (tmp_path / "sys" / "class" / "net" / "bond0" / "bonding").mkdir(parents=True)
    (tmp_path / "sys" / "class" / "net" / "docker0" / "bridge").mkdir(parents=True)
    port = tmp_path / "sys" / "class" / "infiniband" / "mlx5_0" / "ports" / "1" / "counters"
    port.mkdir(parents=True)
    (port / "port_xmit_data").write_text("250\n")
    assert sent_bytes(tmp_path / "proc", tmp_path / "sys") == {"wire": 120 + 1000, "loopback": 7}


def share(**changes):
    told = {
        "node": "a",
        "cpu_s": 1.0,
        "wall_s": 2.0,
        "num_cores": 1,
        "memory": {"peak": 100},
        "memory_before": 40,
        "sent": None,
        "meters": False,
        "reasons": [],
        "drawn": [],
        "machine": "a",
        "use": None,
        "busy_before": [],
        "num_programs": [],
    }
    return {**told, **changes}


def part(energy_j, name="package-0", meter="RAPL counter"):
    told = {"part": name, "meter": meter, "energy_j": energy_j, "busy_fraction": None, "disagreement": None}
    return told if energy_j is not None else {**told, "meter": None}


def test_ranks_are_put_together_by_what_they_share():
    shares = [share(sent={"wire": 8, "loopback": 6}), share(cpu_s=2.0)]
    found = meters.utilisation(shares, of_accelerators=False)
    assert found["cpu_fraction"] == 0.75
    assert (found["network"], found["network_byte_per_s"]) == ("loopback", 3.0)
    apart = [share(sent={"wire": 8, "loopback": 6}), share(sent={"wire": 10, "loopback": 0})]
    found = meters.utilisation(apart, of_accelerators=False)
    assert (found["network"], found["network_byte_per_s"]) == ("wire", 5.0)
    assert meters.utilisation(shares, of_accelerators=True)["network_byte_per_s"] is None
    assert meters.memory(shares)["memory_growth_bytes"] == [60, 60]


def test_energy_is_summed_over_machines_and_never_without_its_accelerators():
    machines = [
        share(meters=True, drawn=[part(30.0)]),
        share(meters=True, drawn=[part(12.0)], node="b"),
        share(),
    ]
    found = meters.energy(machines, of_accelerators=False)
    assert (found["energy_j"], found["meter"], found["reason"]) == (42.0, "RAPL counter", None)
    lost = [*machines, share(meters=True, drawn=[], reasons=["processors: unreadable"])]
    found = meters.energy(lost, of_accelerators=False)
    assert (found["energy_j"], found["reason"]) == (None, "processors: unreadable")
    chip = part(500.0, "accelerator 0000:3b:00.0", "NVML counter")
    mixed = [share(meters=True, drawn=[chip], reasons=["processors: unreadable"])]
    found = meters.energy(mixed, of_accelerators=True)
    assert (found["energy_j"], found["left_out"]) == (500.0, ["processors: unreadable"])
    silent = [share(meters=True, drawn=[part(30.0), part(None, "accelerator 0000:3b:00.0")])]
    found = meters.energy(silent, of_accelerators=True)
    assert found["energy_j"] is None
    assert "0000:3b:00.0" in found["reason"]


def use(taken_s, own_s, cores=(0, 1)):
    return CoreUse(cores=cores, wall_s=10.0, taken_s=taken_s, own_s=own_s)


def test_others_are_what_ranks_that_share_cores_did_not_take_themselves():
    # Two cores for ten seconds, of which 18 s were taken: the ranks took 6 and 8, others 4 of 20.
    together = [("a", use(18.0, 6.0)), ("a", use(18.0, 8.0))]
    assert others_fraction(together) == pytest.approx(0.2)
    # Ranks with a core each: on the second of them others took 3 of 10.
    apart = [("a", use(9.0, 9.0, cores=(0,))), ("a", use(10.0, 7.0, cores=(1,)))]
    assert others_fraction(apart) == pytest.approx(0.3)
    # The same cores of another machine are others.
    assert others_fraction([("a", use(18.0, 18.0)), ("b", use(18.0, 8.0))]) == pytest.approx(0.5)
    # Clocks tick: a rank may seem to have taken more than all did.
    assert others_fraction([("a", use(5.0, 5.01))]) == 0.0
    assert others_fraction([]) is None


SPIN = """
import os, sys, time
os.sched_setaffinity(0, [int(sys.argv[1])])
print(1, flush=True)
end_s = time.process_time() + float(sys.argv[2])
while time.process_time() < end_s:
    pass
"""
# What a process sees while one that it started computes for a second; then the same itself.
SEEING = """
import os, subprocess, sys, time
from equipoise.bench.counters import core_use, others_fraction
os.sched_setaffinity(0, [int(sys.argv[1])])
before = core_use()
if sys.argv[2] == "starts":
    subprocess.run([sys.executable, "-c", sys.argv[3], sys.argv[1], "1.0"], check=True)
else:
    end_s = time.process_time() + 1.0
    while time.process_time() < end_s:
        pass
found = core_use().since(before)
print(found.own_s, others_fraction([("here", found)]))
"""


def seen(way):
    """What a process counts as its own, and the share of others, on one core."""
    core = str(min(os.sched_getaffinity(0)))
    command = [sys.executable, "-c", SEEING, core, way, SPIN]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    return tuple(map(float, ended.stdout.split()[-2:]))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system counts no cores")
def test_what_a_process_starts_is_its_own_and_what_others_take_is_not():
    # The kernel counts in ticks, rounded down at each reading.
    least_s = 1.0 - 2 / os.sysconf("SC_CLK_TCK")
    own_s, _ = seen("starts")
    assert least_s <= own_s < 3.0
    core = str(min(os.sched_getaffinity(0)))
    with subprocess.Popen([sys.executable, "-c", SPIN, core, "600"], stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        own_s, others = seen("computes")
        other.kill()
    assert least_s <= own_s < 2.0
    assert others > MOST_OTHERS


def test_programs_on_an_accelerator_besides_the_rank_and_load_before_it_are_told():
    shares = [
        share(busy_before=[0.02], num_programs=[1.0]),
        share(busy_before=[0.6], num_programs=[3.0]),
    ]
    found = meters.others(shares)
    assert found["others_accelerator_fraction"] == 0.6
    assert found["num_others_on_accelerators"] == 2
    # NVML counts none where processes are those of another container.
    assert meters.others([share(num_programs=[0.0])])["num_others_on_accelerators"] is None
