"""`dtbench fit`: whether a model trains on given cards, by the memory ledger, before anybody rents one."""
