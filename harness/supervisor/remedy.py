"""Whether a try that died gets one more, and with what."""

from harness.contract.diagnosis import Diagnosis
from harness.contract.outcome import REMEDIES, Remedy, outcome
from harness.contract.spec import RunSpec
from harness.diagnosis.memory import read_shortage


def remedy_for(diagnosis: Diagnosis, spec: RunSpec, environment: dict[str, str]) -> Remedy | None:
    """The cure to try next; None when there is none, it is switched off or was in force already.

    A plain `collective_wedge` has no cure of its own. Near the memory line, which the diagnosis says
    through its runner-up, it gets that of the out-of-memory it may be hiding. An out-of-memory whose
    fragments are too small a share of the card to be called its cause gets the cure of fragmentation
    all the same when they and the free memory together would have held the request: trying costs one
    start, and tells more than the message does.
    """
    if spec.protocol.remedies == "off" or diagnosis.outcome == "ok":
        return None
    name = outcome(diagnosis.outcome).remedy
    if name is None and diagnosis.outcome == "collective_wedge" and diagnosis.runner_up is not None:
        name = outcome(diagnosis.runner_up).remedy
    in_pieces = any(read_shortage(line.text).in_pieces for line in diagnosis.evidence)
    if name is None and diagnosis.outcome == "cuda_oom" and in_pieces:
        name = outcome("cuda_oom_fragmentation").remedy
    if name is None:
        return None
    remedy = REMEDIES[name]
    in_force = all(environment.get(key) == value for key, value in remedy.environment.items())
    return None if in_force else remedy
