"""The words both halves share: spec, record, outcome, engine settings, units. Light to import: no torch."""
