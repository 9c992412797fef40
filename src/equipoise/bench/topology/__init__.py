"""How a machine's accelerators are connected: read from what tools print, or from this machine."""

from equipoise.bench.topology.reading import here, read
from equipoise.bench.topology.topology import Device, DeviceLink, Nic, Topology

__all__ = ["Device", "DeviceLink", "Nic", "Topology", "here", "read"]
