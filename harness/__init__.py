"""What runs beside the GPUs: one run of one spec, from launch to record.

Imports nothing itself, because the client uses `harness.contract` and `harness.diagnosis` without torch.
"""
