"""Which machine this is: with a driver that is made up, and with none."""

import json
import subprocess
import sys

import pytest

from attnbook import doctor, machine


class FakeCuda:
    """As much of libcuda as is asked for, with GPUs given as (name, capability). Answers go through pointers."""

    def __init__(self, *gpus, version=13000):
        self.devices, self.version = gpus, version

    def cuDriverGetVersion(self, out):
        out._obj.value = self.version
        return 0

    def cuDeviceGetCount(self, out):
        out._obj.value = len(self.devices)
        return 0

    def cuDeviceGet(self, out, index):
        out._obj.value = index
        return 0

    def cuDeviceGetName(self, buffer, size, device):
        buffer.value = self.devices[device.value][0].encode()[: size - 1]
        return 0

    def cuDeviceGetAttribute(self, out, attribute, device):
        out._obj.value = self.devices[device.value][1][attribute == 76]
        return 0

    def cuDeviceTotalMem_v2(self, out, device):
        out._obj.value = 180 * 2**30
        return 0


@pytest.fixture
def with_gpus(monkeypatch):
    def make(*gpus, torch_cuda="13.0", driver="580.82.07", **settings):
        fake = machine._Driver(FakeCuda(*gpus, **settings))
        monkeypatch.setattr(machine._Driver, "load", classmethod(lambda cls: fake))
        for module in (machine, doctor):
            monkeypatch.setattr(module, "torch_cuda_version", lambda: torch_cuda)
        monkeypatch.setattr(machine, "_driver_version", lambda: driver)
        machine.detect.cache_clear()
        return machine.detect()

    yield make
    machine.detect.cache_clear()


@pytest.fixture
def without_driver(monkeypatch):
    monkeypatch.setattr(machine._Driver, "load", classmethod(lambda cls: None))
    monkeypatch.setattr(machine, "_driver_version", lambda: None)
    machine.detect.cache_clear()
    yield machine.detect()
    machine.detect.cache_clear()


@pytest.mark.parametrize(
    ("name", "capability", "arch"), [("NVIDIA B200", (10, 0), "sm_100a"), ("NVIDIA B300", (10, 3), "sm_103a")]
)
def test_a_blackwell_gpu_runs_the_kernels(with_gpus, name, capability, arch):
    found = with_gpus((name, capability))
    assert (found.backend, found.arch, found.gpu.name) == ("blackwell", arch, name)
    assert found.cuda == "13.0" and "180 GiB" in found.describe() and name in found.describe()


def test_the_second_gpu_is_taken_if_it_is_the_one(with_gpus):
    found = with_gpus(("NVIDIA T4", (7, 5)), ("NVIDIA B200", (10, 0)))
    assert found.gpu.index == 1 and [gpu.kind for gpu in found.gpus] == ["other", "blackwell"]


@pytest.mark.parametrize(("name", "capability"), [("NVIDIA H200", (9, 0)), ("NVIDIA GeForce RTX 5090", (12, 0))])
def test_other_gpus_leave_the_ladder_to_the_emulator(with_gpus, name, capability):
    found = with_gpus((name, capability))
    assert found.backend == "emulator" and found.gpu is None
    assert f"no kernel here runs on the {name}" in found.describe()


def test_a_pytorch_without_cuda_is_seen_and_mended(with_gpus):
    found = with_gpus(("NVIDIA B200", (10, 0)), torch_cuda=None)
    assert found.backend == "emulator" and "without CUDA" in found.why
    (check,) = [check for check in doctor.diagnose().checks if check.name == "NVIDIA GPU"]
    assert check.state == "note" and "pip install --force-reinstall torch==" in check.remedy


def test_an_old_driver_is_seen(with_gpus):
    with_gpus(("NVIDIA B200", (10, 0)), version=12080, driver="570.86")
    (check,) = [check for check in doctor.diagnose().checks if check.name == "NVIDIA GPU"]
    assert check.state == "note" and "older than CUDA 13" in check.found and "580" in check.remedy


def test_without_a_driver_the_emulator_runs(without_driver):
    assert (without_driver.backend, without_driver.gpus, without_driver.cuda) == ("emulator", (), None)
    lines = without_driver.describe().splitlines()
    assert len(lines) == 2 and "no NVIDIA driver here" in lines[0] and "PyTorch" in lines[1]
    json.dumps(without_driver.to_dict())


def test_looking_does_not_import_pytorch():
    code = "import sys; from attnbook.machine import detect; detect().describe(); print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


def test_pytorch_is_asked_for_its_cuda_without_importing_it():
    torch = pytest.importorskip("torch")
    assert machine.torch_cuda_version() == torch.version.cuda


# ---- doctor ----------------------------------------------------------------------------------------------------------


def test_doctor_finds_this_environment_whole(without_driver):
    diagnosis = doctor.diagnose()
    assert diagnosis.ok, diagnosis.report()
    assert "Kernels run here" in diagnosis.report()
    names = {check.name for check in diagnosis.checks}
    assert {"Python", "torch", "nvidia-cutlass-dsl", "nvdisasm", "Chromium", "backend"} <= names
    assert doctor.pins()["torch"] and set(doctor.pins()) <= names


def test_doctor_names_what_is_missing_and_the_command(without_driver, monkeypatch):
    gone = {"torch", "nvidia-cutlass-dsl-libs-cu13", "matplotlib"}
    real = machine.version_of
    monkeypatch.setattr(doctor, "version_of", lambda package: None if package in gone else real(package))
    diagnosis = doctor.diagnose()
    states = {check.name: check for check in diagnosis.checks}
    assert not diagnosis.ok and "Missing: torch." in diagnosis.report()
    assert states["torch"].state == "missing" and states["matplotlib"].state == "note"
    assert f"All packages at once: {sys.executable} -m pip install -r " in diagnosis.report()
    assert states["torch"].remedy.endswith(f'-m pip install "torch=={doctor.pins()["torch"]}"')
    assert '"nvidia-cutlass-dsl[cu13]==' in states["CUDA 13 libraries"].remedy


def test_doctor_sees_another_version(without_driver, monkeypatch):
    real = machine.version_of
    monkeypatch.setattr(doctor, "version_of", lambda package: "2.0.0" if package == "torch" else real(package))
    (check,) = [check for check in doctor.diagnose().checks if check.name == "torch"]
    assert check.state == "note" and "2.0.0" in check.found and "==" in check.remedy


def test_doctor_without_a_browser(without_driver, monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda program: None)
    checks = [check for check in doctor.diagnose().checks if check.name in ("Chromium", "chromedriver")]
    assert [check.state for check in checks] == ["note", "note"]
    assert all("apt-get install chromium" in check.remedy for check in checks)
