"""A capped CPU rank is refused memory by the system itself, and only beyond the cap."""

import subprocess
import sys

PROGRAM = """
import torch
from harness.measure.memory import cap_host_memory, data_bytes
before = data_bytes()
cap_host_memory(0.5)
kept = torch.empty(200 * 2**20, dtype=torch.uint8)
print("grown", data_bytes() - before)
torch.empty(600 * 2**20, dtype=torch.uint8)
"""


def test_allocations_beyond_the_cap_are_refused() -> None:
    child = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert child.returncode == 1
    grown = int(child.stdout.split()[1])
    assert 200 * 2**20 <= grown < 250 * 2**20
    assert "DefaultCPUAllocator: can't allocate memory: you tried to allocate 629145600 bytes" in child.stderr
