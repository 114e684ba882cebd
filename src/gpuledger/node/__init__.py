"""The tick loop: takes a Source, a namer of owners and a ledger; publishes a NodeState after each tick.
Imports only model."""
