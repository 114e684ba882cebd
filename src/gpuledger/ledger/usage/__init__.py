"""What each owner did on each Device: named Snapshots and Sessions in, cells of a quarter of an hour out.
Pure. Imports model and the rest of ledger, but not the store."""
