"""The words both halves share: spec, record, outcome, engine settings, units. Standard library only."""
