"""The GPUs on the PCI bus, and whether this process may use all of them."""

from pathlib import Path

import pytest

from gpuledger.host.pci import PciBus
from gpuledger.host.settings import HostSettings
from gpuledger.model.settings import declared_settings
from pci_tree import PciTree


@pytest.fixture
def tree(tmp_path):
    return PciTree(tmp_path)


def bus_of(tree, **edges):
    return PciBus(tree.sysfs, tree.dev, tree.procfs, **edges)


def test_gpus_have_the_bus_ids_of_nvidia_smi(tree):
    tree.add("0000:3b:00.0", kind="0x030200")
    tree.add("0000:01:00.0", kind="0x030000")
    tree.add("10000:af:00.0")
    assert bus_of(tree).gpus() == ("00000000:01:00.0", "00000000:3B:00.0", "00010000:AF:00.0")


@pytest.mark.parametrize(
    "device",
    [
        {"vendor": "0x1002"},
        {"kind": "0x040300"},
        {"kind": "0x068000"},
        {"driver": "vfio-pci"},
        {"driver": "nouveau"},
        {"driver": ""},
        {"virtual": True},
    ],
    ids=[
        "another vendor",
        "an audio device",
        "an NVSwitch",
        "passed to a virtual machine",
        "another driver",
        "without a driver",
        "a virtual function",
    ],
)
def test_devices_that_the_nvidia_driver_does_not_run_are_omitted(tree, device):
    tree.add("0000:01:00.0")
    tree.add("0000:02:00.0", **device)
    assert bus_of(tree).gpus() == ("00000000:01:00.0",)


def test_gpus_without_a_driver_are_listed_separately(tree):
    for name, driver in (("0000:01:00.0", "nvidia"), ("0000:02:00.0", ""), ("0000:03:00.0", "vfio-pci")):
        tree.add(name, driver=driver)
    bus = bus_of(tree)
    assert bus.without_driver() == ("00000000:02:00.0",)
    tree.bind("0000:02:00.0")
    assert bus.without_driver() == () and len(bus.gpus()) == 2


def test_without_sysfs_there_are_no_gpus(tmp_path):
    assert PciBus(str(tmp_path / "none")).gpus() == ()


def test_a_device_removed_during_the_read_is_omitted(tree):
    tree.add("0000:01:00.0")

    def read(path):
        raise FileNotFoundError(path)

    assert bus_of(tree, read=read).gpus() == ()


def test_a_gpu_added_later_is_listed(tree):
    bus = bus_of(tree)
    assert bus.gpus() == ()
    tree.add("0000:01:00.0")
    assert bus.gpus() == ("00000000:01:00.0",)


def test_unchanged_devices_are_read_once(tree):
    tree.add("0000:01:00.0")
    read = []

    def reader(path):
        read.append(path)
        with open(path, "rb") as file:  # noqa: PTH123  (a path as the bus gives it)
            return file.read()

    bus = bus_of(tree, read=reader)
    assert bus.gpus() == bus.gpus()
    assert len(read) == 2


@pytest.mark.parametrize(
    ("nodes", "all_usable"),
    [
        ((), False),
        (("nvidia0",), False),
        (("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-modeset"), False),
        (("nvidia0", "nvidia1"), True),
        (("nvidia0", "nvidia7"), True),
    ],
)
def test_all_gpus_are_usable_if_each_has_a_device_node(tree, nodes, all_usable):
    tree.add("0000:01:00.0")
    tree.add("0000:02:00.0")
    for node in nodes:
        tree.node(node)
    assert bus_of(tree).all_usable() is all_usable


def test_a_forbidden_device_node_is_not_usable(tree):
    tree.add("0000:01:00.0")
    tree.node("nvidia0")
    assert not bus_of(tree, usable=lambda path: not path.endswith("/dev/nvidia0")).all_usable()


@pytest.mark.parametrize(
    ("minors", "nodes", "usable"),
    [
        ((), ("nvidia0", "nvidia1", "nvidia2"), ("02", "03")),
        ((), ("nvidia0", "nvidia1"), ()),
        ((0, 1, 2), ("nvidia0", "nvidia1"), ("02",)),
        ((0, 1, 2), ("nvidia1", "nvidia2"), ("02", "03")),
        ((0, 1, 2), ("nvidia0", "nvidia1", "nvidia7", "nvidia8"), ("02",)),
        # A container toolkit lists only the GPUs of the container.
        ((0, 1), ("nvidia0", "nvidia1"), ("02",)),
    ],
    ids=["all nodes", "a node is missing", "its node", "both nodes", "old nodes", "procfs of a container"],
)
def test_a_gpu_is_usable_if_its_own_device_node_is(tree, minors, nodes, usable):
    names = [f"0000:0{n}:00.0" for n in (1, 2, 3)]
    for name in names:
        tree.add(name)
    for name, minor in zip(names, minors, strict=False):
        tree.minor(name, minor)
    for node in nodes:
        tree.node(node)
    bus = bus_of(tree)
    absent = bus.gpus()[1:]
    assert bus.usable(absent) == tuple(f"00000000:{number}:00.0" for number in usable)


def test_gpus_of_other_drivers_do_not_count_as_unusable(tree):
    for name, driver in (
        ("01", "nvidia"),
        ("02", "nvidia"),
        ("03", ""),
        ("04", "vfio-pci"),
        ("05", "nouveau"),
    ):
        tree.add(f"0000:{name}:00.0", driver=driver)
    tree.node("nvidia0")
    tree.node("nvidia1")
    assert bus_of(tree).usable(("00000000:02:00.0",)) == ("00000000:02:00.0",)


def test_the_path_of_sysfs_is_a_setting():
    (item,) = [item for _, item, _ in declared_settings(HostSettings) if item.key == "sysfs"]
    assert item.flags == ("--sysfs",)


def connect(tree, name, lanes):
    """Move a device below the port to which it is connected, as in the kernel's tree."""
    port = Path(tree.sysfs, "devices", "port")
    port.mkdir(parents=True)
    (port / name).mkdir()
    if lanes is not None:
        (port / "max_link_width").write_text(f"{lanes}\n")
    entry = Path(tree.sysfs, "bus/pci/devices", name)
    entry.parent.mkdir(parents=True, exist_ok=True)
    entry.symlink_to(port / name)


@pytest.mark.parametrize(
    ("name", "address"),
    [("0000:3b:00.0", "00000000:3B:00.0"), ("10000:af:00.0", "00010000:AF:00.0")],
)
@pytest.mark.parametrize(
    ("lanes", "width"), [(8, 8), (16, 16), (0, None), (255, None), ("?", None), (None, None)]
)
def test_the_lanes_of_a_slot_are_those_of_its_port(tree, name, address, lanes, width):
    connect(tree, name, lanes)
    assert bus_of(tree).slot_width(address) == width


@pytest.mark.parametrize(
    ("speed", "generation"),
    [
        ("2.5 GT/s PCIe", 1),
        ("8 GT/s", 3),
        ("32.0 GT/s PCIe", 5),
        ("64.0 GT/s PCIe", 6),
        ("Unknown", None),
        ("7.0 GT/s PCIe", None),
        ("", None),
        ("nan GT/s", None),
    ],
)
def test_the_generation_of_a_slot_is_that_of_the_speed_of_its_port(tree, speed, generation):
    connect(tree, "0000:3b:00.0", 16)
    Path(tree.sysfs, "devices", "port", "max_link_speed").write_text(f"{speed}\n")
    assert bus_of(tree).slot_generation("00000000:3B:00.0") == generation


@pytest.mark.parametrize("read", ["slot_width", "slot_generation"])
@pytest.mark.parametrize("address", ["00000000:01:00.0", "", "no address"])
def test_the_slot_of_an_unknown_address_is_unknown(tree, read, address):
    assert getattr(bus_of(tree), read)(address) is None
