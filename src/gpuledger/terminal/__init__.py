"""`gpuledger top`: takes snapshots of the API (`/api/v1/snapshot`); draws them in a terminal.
Imports textual and rich, model, and the remedies of workloads.checks; never app, config or node."""
