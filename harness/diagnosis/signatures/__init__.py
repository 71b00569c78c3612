"""Every signature, in the order they are tried: the first that matches a line is what the line says."""

from harness.diagnosis.signatures.benign import BENIGN
from harness.diagnosis.signatures.communication import COMMUNICATION
from harness.diagnosis.signatures.machine import MACHINE
from harness.diagnosis.signatures.program import NETWORK, PROGRAM
from harness.diagnosis.signatures.signature import Signature

SIGNATURES: tuple[Signature, ...] = (*BENIGN, *MACHINE, *NETWORK, *COMMUNICATION, *PROGRAM)

_names = [s.name for s in SIGNATURES]
if len(set(_names)) != len(_names):
    raise ValueError(f"two signatures share a name: {sorted(n for n in _names if _names.count(n) > 1)}")
